package hardware

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Probing the links between ranks.
//
// Approach: messages of growing size between two ranks give the link's curve, like
// copies between tiers. Collectives are priced as rings over that link
// (Hardware.between) and corrected by a factor per operator, element type and
// number of ranks, measured once each: ranks that share memory or a switch get
// slower with their number, and sums cost more than gathers (Mist, EuroSys 2025,
// fits 1.1 for a reduce-scatter, 2.1 for an all-reduce).
// Known weakness: groups that use one link at the same time do not slow each other
// down; a number of ranks that was not measured has no factor; where ranks share
// cores, small collectives of many ranks wait for each other longer than the
// messages take.

const (
	peerSmall = 4 << 10 // bytes over all ranks
	peerLarge = 16 << 20
)

// PeerBytes is the size of each rank's arena that ProbePeers reserves.
const PeerBytes = 2 * peerLarge

// ProbePeers measures messages and collectives between newly opened devices, the ranks
// 0, 1, ... of one run, in groups of 2, 4, ... and all. The caller adds the link to
// Hardware.Links and the duties to Hardware.Duties, and then passes the measurements to
// Hardware.Add. The devices cannot be reused afterwards.
func ProbePeers(devices []device.Device) (Link, []Measurement, []Duty, error) {
	l := Link{From: device.DeviceTier, To: device.DeviceTier}
	if len(devices) < 2 {
		return l, nil, nil, errors.New("probe peers: at least two devices are needed")
	}
	for _, d := range devices {
		if err := d.Reserve(device.DeviceTier, PeerBytes); err != nil {
			return l, nil, nil, fmt.Errorf("probe peers: %w", err)
		}
	}
	two := joint{devices: devices[:2]}
	var last float64
	for n := peerSmall; n <= peerLarge; n *= 8 {
		last = max(last, two.measure(graph.Recv, n).Seconds) // more bytes never take less
		l.Curve = append(l.Curve, Point{int64(n), last})
	}
	p, q := l.Curve[0], l.Curve[len(l.Curve)-1]
	l.Bandwidth = float64(q.Bytes) / q.Seconds
	l.Latency = p.Seconds // small messages may go through caches, faster than the bandwidth
	measured := two.collectives()
	busy := duties(&two.spent, two.devices...)
	err := two.err
	for n := 2; err == nil && n < len(devices); {
		n = min(2*n, len(devices))
		b := joint{devices: devices[:n]}
		measured = append(measured, b.collectives()...)
		err = b.err
	}
	if err != nil {
		return l, nil, nil, fmt.Errorf("probe peers: %w", err)
	}
	return l, measured, busy, nil
}

// joint runs calls on several devices at once and keeps the first error.
type joint struct {
	devices []device.Device
	spent   [device.NumStreams]float64 // seconds of calls
	err     error
}

// collectives measures one collective of each kind.
func (b *joint) collectives() (list []Measurement) {
	for _, op := range []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce} {
		list = append(list, b.measure(op, peerLarge))
	}
	return list
}

// measure returns the least time of a collective of all devices, or of a message from the second to the first.
// It is that of a call that follows another, from end to end. So it includes the time that ranks need to learn
// that all have arrived, which is all of the time of small calls over a network.
func (b *joint) measure(op graph.Op, bytes int) Measurement {
	const runs = 8
	m := Measurement{Call: exchangeCall(op, 0, len(b.devices), bytes), Seconds: math.Inf(1), Runs: runs}
	spans := make([][]device.Span, len(b.devices))
	first := make([]int, len(b.devices))
	for r, d := range b.devices {
		spans[r] = make([]device.Span, 2)
		call := exchangeCall(op, r, len(b.devices), bytes)
		var err error
		if first[r], err = d.Prepare([]device.Call{call, call}, spans[r]); err != nil {
			b.err = errors.Join(b.err, err)
		}
	}
	for range runs {
		if b.err != nil {
			return m
		}
		errs := make([]error, len(b.devices))
		var all sync.WaitGroup
		for r, d := range b.devices {
			all.Go(func() {
				d.Launch(first[r])
				d.Launch(first[r] + 1)
				errs[r] = d.Sync()
			})
		}
		all.Wait()
		b.err = errors.Join(errs...)
		for r := range b.devices {
			b.spent[exchangeCall(op, r, len(b.devices), bytes).Stream] += spans[r][1].End - spans[r][0].Start
		}
		m.Seconds = min(m.Seconds, max(spans[0][1].End-spans[0][0].End, 1e-9))
	}
	return m
}

// exchangeCall returns rank r's call of an operator of n ranks on the given bytes over all ranks.
func exchangeCall(op graph.Op, r, n, bytes int) device.Call {
	flat := func(lo, hi int) device.Operand {
		return device.Operand{DType: graph.F32, Addr: 4 * int64(lo), Rows: 1, Cols: hi - lo, Stride: hi - lo}
	}
	whole := bytes / 4
	part := flat(device.Part(whole, r, n))
	c := device.Call{Op: op, Stream: device.Collective}
	for k := range n {
		c.Peers = append(c.Peers, k)
	}
	switch op {
	case graph.AllGather:
		c.Args = []device.Operand{flat(0, whole), part}
	case graph.ReduceScatter:
		c.Args = []device.Operand{part, flat(0, whole)}
	case graph.AllReduce:
		c.Args = []device.Operand{flat(0, whole)}
	case graph.Recv: // or, at the other end, send
		c.Stream, c.Peers, c.Args = device.Recv, []int{1}, []device.Operand{flat(0, whole)}
		if r == 1 {
			c.Op, c.Stream, c.Peers = graph.Send, device.Send, []int{0}
		}
	}
	return c
}
