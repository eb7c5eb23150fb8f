package hardware

import (
	"math"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Probing of how streams slow each other down.
//
// Approach: for each ordered pair of streams, a typical call of the one runs
// again and again, by itself and then while the other is kept busy; the factor
// is what the mean of those calls grew by. On a CPU copies take a core from the
// products, so they may run at two thirds of their speed, while a link that is
// throttled hardly matters; on a GPU copy engines are apart, but both ways of a
// link may share a bus.
//
// Known weakness: one call stands for all of its stream.

const (
	contendRounds = 4
	contendRuns   = 2     // of the call that is measured, per round
	contendLeast  = 0.01  // less is noise
	contendMost   = 2     // more is other software: streams of a device share at most cores, memory and links
	contendCopy   = 0.002 // seconds that copies take, as far as there is room
)

// contention measures all pairs of streams of a machine with such links.
func (b *bench) contention(links []Link) (list []Contention) {
	tokens, weight := [2]int{256, 1024}, [2]int{1024, 1024}
	calls := []device.Call{{Op: graph.Linear, Stream: device.Compute, Args: operands(device.DeviceTier, graph.F32, tokens, tokens, weight)}}
	if len(links) > 0 {
		long := [2]int{1, 4 << 20}
		calls = append(calls, device.Call{Op: graph.Add, Stream: device.HostCompute, Args: operands(device.HostTier, graph.F32, long, long)})
	}
	for _, l := range links {
		n := int64(l.Bandwidth*contendCopy) &^ 4095
		n = min(max(n, 64<<10), ProbeBytes/4)
		calls = append(calls, copied(streamOf(l.From, l.To), l.From, l.To, ProbeBytes-n, n))
	}
	alone := make([]float64, len(calls))
	for i := range calls {
		alone[i] = b.crowded(calls[i], contendRuns, nil, 0)
	}
	for i := range calls {
		for k := range calls {
			if i == k || b.err != nil || onDisk(&calls[i]) && !onDisk(&calls[k]) {
				continue // disks are too slow to feel the others
			}
			// Enough for calls that take twice as long as by themselves.
			n := int(2*contendRuns*alone[i]/alone[k]) + 2
			f := b.crowded(calls[i], contendRuns, &calls[k], min(n, device.QueueLen/2))/alone[i] - 1
			if f > contendLeast {
				list = append(list, Contention{calls[i].Stream, calls[k].Stream, min(f, contendMost)})
			}
		}
	}
	return list
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

// crowded runs a call several times while another runs n times beside it, and
// returns the mean seconds of those that the others accompanied, the first at
// least: of the best of a few rounds, since whatever else the machine does can
// only add to it.
func (b *bench) crowded(c device.Call, runs int, other *device.Call, n int) float64 {
	var calls []device.Call
	for k := range runs {
		calls = append(calls, moved(c, k))
	}
	for k := range n {
		calls = append(calls, moved(*other, k))
	}
	spans := make([]device.Span, len(calls))
	if b.err != nil {
		return 1
	}
	first, err := b.device.Prepare(calls, spans)
	b.keep(err)
	best := math.Inf(1)
	for r := 0; r < contendRounds && b.err == nil; r++ {
		for i := range calls {
			b.device.Launch(first + (i+runs)%len(calls)) // the others first
		}
		b.keep(b.device.Sync())
		own, crowd := spans[:runs], spans[runs:]
		var sum, count float64
		for k, s := range own {
			if k == 0 || len(crowd) == 0 || s.Start >= crowd[0].Start && s.End <= crowd[len(crowd)-1].End {
				sum, count = sum+s.End-s.Start, count+1
			}
		}
		best = min(best, max(sum/count, 1e-9))
	}
	return best
}
