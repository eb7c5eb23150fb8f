package hardware

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
)

// Probing of how streams slow each other down.
//
// Approach: for each ordered pair of streams, a typical call of the one runs a few
// times by itself, and right after that while the other is kept busy; the factor
// is what the mean of those calls grew by, in the median of passes over all pairs:
// what else a machine does changes by the second, so both are measured in the same
// moment and the passes in different ones. On a CPU copies take a core from the
// products, so they may run at two thirds of their speed, while a link that is
// throttled hardly matters; on a GPU copy engines are apart, but both ways of a
// link may share a bus. What cores that both need explain (cores.go) is taken
// out of the factors.
//
// Known weakness: one call stands for all of its stream.

const (
	contendPasses = 7
	contendRuns   = 3     // of the call that is measured, each time
	contendLeast  = 0.03  // less is noise
	contendMost   = 2     // more is other software: streams of a device share at most cores, memory and links
	contendCopy   = 0.001 // seconds that copies take, as far as there is room
	contendSleep  = 0.006 // of a link that is throttled, whose copies sleep: waking up late is no factor
)

// ProbeContention measures on a device that was just opened what its streams do
// to each other, while all other ranks rest, and adds it to the description that
// Probe made of it. The device is of no use afterwards.
func ProbeContention(d device.Device, h *Hardware) error {
	b := newBench(d, h.Memory)
	h.Contention = b.contention(h)
	if b.err != nil {
		return fmt.Errorf("probe: %w", b.err)
	}
	return h.Validate()
}

// contention measures all pairs of streams.
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

// pair is calls of one stream and calls of another that accompany them, prepared.
type pair struct {
	of, by     device.Stream
	own, crowd []device.Span
	first      int       // of own; those of crowd follow
	ratios     []float64 // of each pass: beside others over alone
}

// pairs prepares all that are measured.
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
				continue // disks are too slow to feel the others
			}
			// Enough for calls that take twice as long as by themselves.
			n := min(int(2*contendRuns*alone[i]/alone[k])+2, device.QueueLen/2)
			list = append(list, b.pair(calls[i], calls[k], n))
		}
	}
	return list
}

// pair prepares a few of a call in a row, and another n times.
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

// shared is how many times as long a stream's calls take because another's use
// the same cores.
func (h *Hardware) shared(of, by device.Stream) float64 {
	var active, slower [device.NumStreams]float64
	active[of], active[by] = 1, 1
	if h.Crowd(&active, &slower) {
		return slower[of]
	}
	return 1
}

// moved is the k-th of copies in a row, which find nothing of what they copy in the
// caches: each goes on where the one before has ended. Other calls are as they
// were.
func moved(c device.Call, k int) device.Call {
	if c.Op != graph.Copy {
		return c
	}
	n := c.Args[0].Bytes()
	at := int64(k) % (ProbeBytes / n) * n
	return copied(c.Stream, c.Args[1].Tier, c.Args[0].Tier, at, n)
}

// onDisk reports whether a call reads or writes the disk.
func onDisk(c *device.Call) bool {
	return c.Stream == device.DiskRead || c.Stream == device.DiskWrite
}

// compare measures once how many times as long a pair's calls take beside the
// others as right before, alone.
func (b *bench) compare(p *pair) {
	var mean [2]float64 // alone, beside others
	for r := range mean {
		if b.err != nil {
			return
		}
		if r == 1 {
			for i := range p.crowd {
				b.device.Launch(p.first + contendRuns + i)
			}
		}
		for i := range p.own {
			b.device.Launch(p.first + i)
		}
		b.keep(b.device.Sync())
		var sum, count float64
		for k, s := range p.own { // that the others accompanied, the first at least
			if k == 0 || r == 0 || s.Start >= p.crowd[0].Start && s.End <= p.crowd[len(p.crowd)-1].End {
				sum, count = sum+s.End-s.Start, count+1
			}
		}
		mean[r] = max(sum/count, 1e-9)
	}
	p.ratios = append(p.ratios, mean[1]/mean[0])
}
