package hardware

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Probing of how streams slow each other down.
//
// Approach: for each ordered pair of streams, a typical call of the one runs
// again and again, in turn by itself and while the other is kept busy; the factor
// is what the mean of those calls grew by. On a CPU copies take a core from the
// products, so they may run at two thirds of their speed, while a link that is
// throttled hardly matters; on a GPU copy engines are apart, but both ways of a
// link may share a bus. What cores that both need explain (cores.go) is taken
// out of the factors.
//
// Known weakness: one call stands for all of its stream.

const (
	contendRounds = 3
	contendRuns   = 4     // of the call that is measured, per round
	contendLeast  = 0.03  // less is noise
	contendMost   = 2     // more is other software: streams of a device share at most cores, memory and links
	contendCopy   = 0.002 // seconds that copies take, as far as there is room
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
	tokens, weight := [2]int{256, 1024}, [2]int{1024, 1024}
	calls := []device.Call{{Op: graph.Linear, Stream: device.Compute, Args: operands(device.DeviceTier, graph.F32, tokens, tokens, weight)}}
	if h.Engine(device.HostCompute) != nil {
		long := [2]int{1, 4 << 20}
		calls = append(calls, device.Call{Op: graph.Add, Stream: device.HostCompute, Args: operands(device.HostTier, graph.F32, long, long)})
	}
	for _, l := range h.Links {
		n := int64(l.Bandwidth*contendCopy) &^ 4095
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
			f := b.slower(calls[i], calls[k], n)/h.shared(calls[i].Stream, calls[k].Stream) - 1
			if f > contendLeast {
				list = append(list, Contention{calls[i].Stream, calls[k].Stream, min(f, contendMost)})
			}
		}
	}
	return list
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

// slower is how many times as long a call takes, in the mean of a few in a row,
// while another runs n times: the best of a few rounds beside others over
// the best by itself, in turn, since whatever else the machine does can only add
// to them and changes by the second.
func (b *bench) slower(c, other device.Call, n int) float64 {
	var calls []device.Call
	for k := range contendRuns {
		calls = append(calls, moved(c, k))
	}
	for k := range n {
		calls = append(calls, moved(other, k))
	}
	spans := make([]device.Span, len(calls))
	if b.err != nil {
		return 1
	}
	first, err := b.device.Prepare(calls, spans)
	b.keep(err)
	own, crowd := spans[:contendRuns], spans[contendRuns:]
	best := [2]float64{math.Inf(1), math.Inf(1)} // by itself, beside others
	for r := 0; r < 2*contendRounds && b.err == nil; r++ {
		if r%2 == 1 {
			for i := range crowd {
				b.device.Launch(first + contendRuns + i)
			}
		}
		for i := range own {
			b.device.Launch(first + i)
		}
		b.keep(b.device.Sync())
		var sum, count float64
		for k, s := range own { // that the others accompanied, the first at least
			if k == 0 || r%2 == 0 || s.Start >= crowd[0].Start && s.End <= crowd[n-1].End {
				sum, count = sum+s.End-s.Start, count+1
			}
		}
		best[r%2] = min(best[r%2], max(sum/count, 1e-9))
	}
	return best[1] / best[0]
}
