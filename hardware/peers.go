package hardware

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Probing the links between ranks.
//
// Approach: messages of growing size between two ranks give the link's curve, like
// copies between tiers. Collectives are priced as rings over that link
// (Hardware.exchangeSeconds) and corrected by a factor per operator, element type and
// number of ranks, measured once each: ranks that share memory or a switch get
// slower with their number, and sums cost more than gathers (Mist, EuroSys 2025,
// fits 1.1 for a reduce-scatter, 2.1 for an all-reduce).
// Known weakness: groups that use one link inside a host at the same time do not slow
// each other down (those that share a network do, see Network); a number of ranks that was not measured has no factor; where ranks share
// cores, small collectives of many ranks wait for each other longer than the
// messages take.

const (
	peerSmall = 4 << 10 // bytes over all ranks
	peerLarge = 16 << 20
)

// PeerBytes is the size of each rank's arena that ProbePeers reserves.
const PeerBytes = 2 * peerLarge

// ProbePeers adds to h the links between newly opened devices, which are the ranks 0, 1, ... of one run on the hosts that on says,
// whatever its link (nil: on one), and what collectives take in groups of 2, 4, ... and all. The devices cannot be reused
// afterwards.
func ProbePeers(devices []device.Device, on *Network, h *Hardware) error {
	if len(devices) < 2 {
		return errors.New("probe peers: at least two devices are needed")
	}
	for _, d := range devices {
		if err := d.Reserve(device.DeviceTier, PeerBytes); err != nil {
			return fmt.Errorf("probe peers: %w", err)
		}
	}
	if on != nil && on.PerHost > 1 {
		between := joint{devices: devices, ranks: []int{0, 1}}
		network := *on
		network.Link = between.link()
		worked := secondsWorked(devices[0])
		network.Duty = min(worked[device.Recv]/max(between.spent[device.Recv], 1e-9), 1)
		h.Network = &network
		if between.err != nil {
			return fmt.Errorf("probe the network: %w", between.err)
		}
	}
	two := joint{devices: devices, ranks: []int{0, 1}}
	if h.Network != nil {
		two.ranks = h.Network.ranksOfFirst()[:2]
	}
	before := secondsWorked(devices[0], devices[two.ranks[1]])
	h.Links = append(h.Links, two.link())
	measured := two.collectives()
	worked := secondsWorked(devices[0], devices[two.ranks[1]])
	for s := range worked {
		worked[s] -= before[s]
	}
	h.Duties = append(h.Duties, duties(&two.spent, &worked)...)
	err := two.err
	for _, ranks := range groups(len(devices), h.Network) {
		b := joint{devices: devices, ranks: ranks}
		measured = append(measured, b.collectives()...)
		err = errors.Join(err, b.err)
	}
	if err != nil {
		return fmt.Errorf("probe peers: %w", err)
	}
	h.Add(measured)
	return nil
}

// TimeSums returns what sums of so many bytes each over two newly opened devices take, in seconds, the least of some. The
// devices cannot be reused afterwards.
func TimeSums(devices []device.Device, bytes ...int) (list []float64, err error) {
	for _, d := range devices {
		if err := d.Reserve(device.DeviceTier, int64(slices.Max(bytes))); err != nil {
			return nil, fmt.Errorf("time sums: %w", err)
		}
	}
	two := joint{devices: devices, ranks: []int{0, 1}}
	for _, n := range bytes {
		list = append(list, two.measure(graph.AllReduce, n).Seconds)
	}
	return list, two.err
}

// groups returns the groups of n ranks that are measured besides a pair of one host: those of the first 4, 8, ... and all
// ranks, and on several hosts also the first two, and those of the first host.
func groups(n int, hosts *Network) (list [][]int) {
	all := make([]int, n)
	for r := range all {
		all[r] = r
	}
	if hosts != nil {
		list = append(list, all[:2])
		own := hosts.ranksOfFirst()
		for k := 2; k < len(own); {
			k = min(2*k, len(own))
			list = append(list, own[:k])
		}
	}
	for k := 2; k < n; {
		k = min(2*k, n)
		list = append(list, all[:k])
	}
	return list
}

// ranksOfFirst returns the ranks of the first host.
func (n *Network) ranksOfFirst() (ranks []int) {
	for r := range n.Ranks() {
		if n.Host(r) == 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// joint runs calls on some ranks' devices at once and keeps the first error.
type joint struct {
	devices []device.Device            // of all ranks
	ranks   []int                      // that take part, ascending
	spent   [device.NumStreams]float64 // seconds of calls
	err     error
}

// link measures messages of growing size between the two ranks.
func (b *joint) link() Link {
	l := Link{From: device.DeviceTier, To: device.DeviceTier}
	var last float64
	for n := peerSmall; n <= peerLarge; n *= 8 {
		last = max(last, b.measure(graph.Recv, n).Seconds) // more bytes never take less
		l.Curve = append(l.Curve, Point{int64(n), last})
	}
	p, q := l.Curve[0], l.Curve[len(l.Curve)-1]
	l.Bandwidth = float64(q.Bytes) / q.Seconds
	l.Latency = p.Seconds // small messages may go through caches, faster than the bandwidth
	return l
}

// collectives measures one collective of each kind.
func (b *joint) collectives() (list []Measurement) {
	for _, op := range []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce, graph.AllToAll} {
		list = append(list, b.measure(op, peerLarge))
	}
	return list
}

// measure returns the least time of a collective of the ranks, or of a message from the second to the first.
// It is that of a call that follows another, from end to end. So it includes the time that ranks need to learn
// that all have arrived, which is all of the time of small calls over a network.
func (b *joint) measure(op graph.Op, bytes int) Measurement {
	const runs = 8
	m := Measurement{Call: exchangeCall(op, 0, b.ranks, bytes), Seconds: math.Inf(1), Runs: runs}
	spans := make([][]device.Span, len(b.ranks))
	first := make([]int, len(b.ranks))
	for i, r := range b.ranks {
		spans[i] = make([]device.Span, 2)
		call := exchangeCall(op, i, b.ranks, bytes)
		var err error
		if first[i], err = b.devices[r].Prepare([]device.Call{call, call}, spans[i]); err != nil {
			b.err = errors.Join(b.err, err)
		}
	}
	for range runs {
		if b.err != nil {
			return m
		}
		errs := make([]error, len(b.ranks))
		var all sync.WaitGroup
		for i, r := range b.ranks {
			all.Go(func() {
				d := b.devices[r]
				d.Launch(first[i])
				d.Launch(first[i] + 1)
				errs[i] = d.Sync()
			})
		}
		all.Wait()
		b.err = errors.Join(errs...)
		for i := range b.ranks {
			b.spent[exchangeCall(op, i, b.ranks, bytes).Stream] += spans[i][1].End - spans[i][0].Start
		}
		m.Seconds = min(m.Seconds, max(spans[0][1].End-spans[0][0].End, 1e-9))
	}
	return m
}

// exchangeCall returns the call of the i-th of some ranks, of an operator on the given bytes over all of them.
func exchangeCall(op graph.Op, i int, ranks []int, bytes int) device.Call {
	flat := func(lo, hi int) device.Operand {
		return device.Operand{DType: graph.F32, Addr: 4 * int64(lo), Rows: 1, Cols: hi - lo, Stride: hi - lo}
	}
	whole := bytes / 4
	part := flat(device.Part(whole, i, len(ranks)))
	c := device.Call{Op: op, Stream: device.Collective, Peers: ranks, Rank: ranks[i]}
	switch op {
	case graph.AllGather:
		c.Args = []device.Operand{flat(0, whole), part}
	case graph.ReduceScatter:
		c.Args = []device.Operand{part, flat(0, whole)}
	case graph.AllReduce:
		c.Args = []device.Operand{flat(0, whole)}
	case graph.AllToAll:
		const cols = 256
		rows := whole / cols / (2 * len(ranks)) * 2
		all := device.Operand{DType: graph.F32, Rows: rows * len(ranks), Cols: cols, Stride: cols}
		own := device.Operand{DType: graph.F32, Addr: int64(bytes), Rows: rows, Cols: cols * len(ranks), Stride: cols * len(ranks)}
		c.Args = []device.Operand{all, own}
	case graph.Recv: // or, at the other end, send
		c.Stream, c.Peers, c.Args = device.Recv, ranks[1:2], []device.Operand{flat(0, whole)}
		if i == 1 {
			c.Op, c.Stream, c.Peers = graph.Send, device.Send, ranks[:1]
		}
	}
	return c
}
