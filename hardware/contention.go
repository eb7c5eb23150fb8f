package hardware

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
)

// Measuring how streams slow each other down.
//
// Approach: for each ordered pair of streams, run a typical call of the first a few times alone, then
// immediately again while the second is kept busy. The factor is the growth of the mean time, as a median over
// passes over all pairs: background load changes by the second, so both times are measured close together and
// the passes are spread out. The part explained by cores that both need (cores.go) is divided out.
//
// Example: on a CPU, copies take a core from matrix products, which may fall to two
// thirds of their speed, while a throttled link hardly matters. On a GPU copy
// engines are separate, but both directions of a link may share a bus.
//
// Known weakness: one call represents all calls of its stream.

const (
	contendPasses = 7
	contendRuns   = 3     // measured calls per pass and condition
	contendLeast  = 0.03  // smaller factors are noise
	contendMost   = 2     // limit of a factor: more is due to other software
	contendCopy   = 0.001 // seconds per copy, as far as the arena has room,
	contendSleep  = 0.006 // and on links whose copies sleep (throttled): long compared with a late wake-up
)

// ProbeContention measures how the streams of a newly opened device slow each other
// down, while all other ranks are idle, and adds that to the description that Probe
// returned. The device cannot be reused afterwards.
func ProbeContention(d device.Device, h *Hardware) error {
	b := newBench(d, h.Memory)
	h.Contention = b.contention(h)
	if b.err != nil {
		return fmt.Errorf("probe: %w", b.err)
	}
	return h.Validate()
}

// contention measures all pairs of streams and returns those above contendLeast.
func (b *bench) contention(h *Hardware) (list []Contention) {
	pairs := b.pairs(h)
	for range contendPasses {
		for i := range pairs {
			b.compare(&pairs[i])
		}
	}
	if b.err != nil {
		return nil
	}
	for i := range pairs {
		p := &pairs[i]
		if f := stat.Median(p.ratios)/h.shared(p.of, p.by) - 1; f > contendLeast {
			list = append(list, Contention{p.of, p.by, min(f, contendMost)})
		}
	}
	return list
}

// pair holds prepared calls of one stream (own) and of another that keep it busy
// meanwhile (crowd).
type pair struct {
	of, by     device.Stream
	own, crowd []device.Span
	first      int       // first call of own; those of crowd follow
	ratios     []float64 // per pass: time while by is busy over time alone
}

// pairs prepares all pairs to be measured.
func (b *bench) pairs(h *Hardware) (list []pair) {
	tokens, weight := [2]int{128, 1024}, [2]int{1024, 1024}
	calls := []device.Call{{Op: graph.Linear, Stream: device.Compute, Args: operands(device.DeviceTier, graph.F32, tokens, tokens, weight)}}
	if h.Engine(device.HostCompute) != nil {
		long := [2]int{1, 4 << 20}
		calls = append(calls, device.Call{Op: graph.Add, Stream: device.HostCompute, Args: operands(device.HostTier, graph.F32, long, long)})
	}
	for _, l := range h.Links {
		seconds := contendCopy
		if l.From != device.DiskTier && l.To != device.DiskTier && h.duty(streamOf(l.From, l.To)) < 0.5 {
			seconds = contendSleep
		}
		n := int64(l.Bandwidth*seconds) &^ 4095
		n = min(max(n, 64<<10), ProbeBytes/4)
		calls = append(calls, copied(streamOf(l.From, l.To), l.From, l.To, ProbeBytes-n, n))
	}
	alone := make([]float64, len(calls))
	for i := range calls {
		alone[i] = b.seconds(calls[i])[0]
	}
	for i := range calls {
		for k := range calls {
			if i == k || b.err != nil || onDisk(&calls[i]) && !onDisk(&calls[k]) {
				continue // disks are too slow to be slowed by the others
			}
			// Enough for calls that take twice as long as alone.
			n := min(int(2*contendRuns*alone[i]/alone[k])+2, device.QueueLen/2)
			list = append(list, b.pair(calls[i], calls[k], n))
		}
	}
	return list
}

// pair prepares contendRuns calls like c, and n like other.
func (b *bench) pair(c, other device.Call, n int) pair {
	var calls []device.Call
	for k := range contendRuns {
		calls = append(calls, moved(c, k))
	}
	for k := range n {
		calls = append(calls, moved(other, k))
	}
	spans := make([]device.Span, len(calls))
	first, err := b.device.Prepare(calls, spans)
	b.keep(err)
	return pair{of: c.Stream, by: other.Stream, own: spans[:contendRuns], crowd: spans[contendRuns:], first: first}
}

// shared returns the factor by which calls of one stream take longer because those
// of another use the same cores.
func (h *Hardware) shared(of, by device.Stream) float64 {
	var active, slower [device.NumStreams]float64
	active[of], active[by] = h.demand(of), h.demand(by)
	if h.Crowd(&active, &slower) {
		return slower[of]
	}
	return 1
}

// moved returns the k-th of several copies in a row. Each starts where the last one
// ended, so that its data is not in the caches. Other calls are returned unchanged.
func moved(c device.Call, k int) device.Call {
	if c.Op != graph.Copy {
		return c
	}
	n := c.Args[graph.CopyDst].Bytes()
	at := int64(k) % (ProbeBytes / n) * n
	return copied(c.Stream, c.Args[graph.CopySrc].Tier, c.Args[graph.CopyDst].Tier, at, n)
}

// onDisk reports whether a call reads or writes the disk.
func onDisk(c *device.Call) bool {
	return c.Stream == device.DiskRead || c.Stream == device.DiskWrite
}

// compare measures once the ratio of a pair's times: with the other stream busy, over alone just before. A
// rehearsal comes first: what the previous pair's calls had left in the processor's caches made a GPU's copies
// from there take two to four times as long.
func (b *bench) compare(p *pair) {
	var mean [2]float64 // alone, with the other stream busy
	for r := -1; r < len(mean); r++ {
		if b.err != nil {
			return
		}
		if r != 0 {
			for i := range p.crowd {
				b.device.Launch(p.first + contendRuns + i)
			}
		}
		for i := range p.own {
			b.device.Launch(p.first + i)
		}
		b.keep(b.device.Sync())
		if r < 0 {
			continue
		}
		var sum, count float64
		for k, s := range p.own { // only calls fully overlapped by the others, but at least the first
			if k == 0 || r == 0 || s.Start >= p.crowd[0].Start && s.End <= p.crowd[len(p.crowd)-1].End {
				sum, count = sum+s.End-s.Start, count+1
			}
		}
		mean[r] = max(sum/count, 1e-9)
	}
	p.ratios = append(p.ratios, mean[1]/mean[0])
}
