package search

import (
	"math"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// prices predicts the seconds of what is in no program yet, for bounds and estimates; programs give the verdict. It
// remembers nothing, since measurements improve the machine's costs.
type prices struct {
	req     *Request
	machine *Machine
}

// dealt returns the prices for pipelines of so many stages.
func (p prices) dealt(stages int) prices {
	m := *p.machine
	m.Cost = m.dealt(stages, p.req.Graph.PerSequence())
	return prices{p.req, &m}
}

// node returns the seconds of an operator on that many rows.
func (p prices) node(n *graph.Node, rows int) float64 {
	return p.machine.Cost.Cost(callOf(p.req.Graph, n, rows))
}

// callOf returns a node's call on operands of the right extents, without addresses.
func callOf(g *graph.Graph, n *graph.Node, rows int) *device.Call {
	c := &device.Call{Op: n.Op, Attr: n.Attr, Stream: device.Compute}
	if n.Op == graph.AllReduce {
		c.Stream = device.Collective
		for r := range g.Shared() {
			c.Peers = append(c.Peers, r)
		}
	}
	for _, d := range g.Dims(n, rows, nil) {
		c.Args = append(c.Args, device.Operand{DType: d.DType, Rows: d.Rows, Cols: d.Cols, Stride: d.Cols})
	}
	return c
}

// toNextStage returns the seconds of a message with a micro-batch of b sequences from the first stage to the next.
func (p prices) toNextStage(b int) float64 {
	g := p.req.Graph
	out := &g.Values[g.Segments[0].Out]
	o := device.Operand{DType: out.DType, Rows: b * g.Seq, Cols: out.Cols, Stride: out.Cols}
	return p.machine.Cost.Cost(&device.Call{Op: graph.Send, Stream: device.Send, Args: []device.Operand{o}, Peers: []int{1}})
}

// collective returns the seconds of a collective of n elements among ranks.
func (p prices) collective(op graph.Op, n int, ranks []int) float64 {
	whole, part := device.Operand{DType: graph.F32, Rows: 1, Cols: n, Stride: n}, n/len(ranks)
	return p.machine.Cost.Cost(&device.Call{Op: op, Stream: device.Collective, Peers: ranks, Rank: ranks[0],
		Args: []device.Operand{whole, {DType: graph.F32, Rows: 1, Cols: part, Stride: part}}})
}

// copy returns the seconds of a copy between device and host.
func (p prices) copy(stream device.Stream, bytes int64) float64 {
	cols := int(min(bytes, math.MaxInt32))
	to := device.Operand{Tier: device.DeviceTier, DType: graph.F32, Rows: 1, Cols: cols, Stride: cols}
	from := to
	from.Tier = device.HostTier
	if stream == device.DevToHost {
		to, from = from, to
	}
	sec := p.machine.Cost.Cost(&device.Call{Op: graph.Copy, Stream: stream, Args: []device.Operand{to, from}})
	return sec * float64(bytes) / float64(4*cols)
}

// update returns the seconds to update n elements in a tier.
func (p prices) update(stream device.Stream, t device.Tier, n int) float64 {
	return p.machine.Cost.Cost(p.updateCall(stream, t, n))
}

// updateCall returns the call that updates n elements in a tier.
func (p prices) updateCall(stream device.Stream, t device.Tier, n int) *device.Call {
	rule := p.req.Optimizer.For(false) // of others the products come on top, in programs
	c := &device.Call{Op: rule.Op, Stream: stream, Args: make([]device.Operand, rule.LowerHalvesAt())}
	dtype := p.req.Graph.Narrowest()
	master, moments := p.req.State.TypesFor(dtype)
	operand := func(d graph.DType) device.Operand {
		return device.Operand{Tier: t, DType: d, Rows: 1, Cols: n, Stride: n}
	}
	if c.Args[0], c.Args[rule.GradientAt()] = operand(dtype), operand(graph.F32); dtype == graph.I8 {
		c.Attr.Unit = 1 // whatever it is, the time is the same
	}
	for k := range rule.Moments {
		if c.Args[1+k] = operand(moments); moments == graph.U8 {
			c.Args[1+k].Cols = graph.PackedMoments(n)
			c.Args[1+k].Stride = c.Args[1+k].Cols
		}
	}
	if master != dtype {
		c.Args = append(c.Args, operand(graph.U16))
	}
	return c
}

// updateAll returns the seconds to update n elements whose state lives in a tier,
// including the transfers of gradients and weights.
func (p prices) updateAll(n int64, r residency) float64 {
	if n == 0 {
		return 0
	}
	cols := int(min(n, math.MaxInt32))
	whole := device.Operand{DType: graph.F32, Rows: 1, Cols: cols, Stride: cols}
	stream := device.Compute
	if r.state != device.DeviceTier {
		stream = device.HostCompute
	}
	sec := p.update(stream, device.DeviceTier, cols)
	for _, way := range [][2]device.Tier{{device.DeviceTier, device.HostTier}, {device.DiskTier, device.HostTier}, {device.HostTier, device.DiskTier}} {
		if way[0] == device.DeviceTier && r.state == device.DeviceTier || way[0] != device.DeviceTier && r.state != device.DiskTier {
			continue
		}
		from, to := whole, whole
		from.Tier, to.Tier = way[0], way[1]
		streams := [device.NumTiers]device.Stream{device.DevToHost, device.DiskWrite, device.DiskRead}
		sec += p.machine.Cost.Cost(&device.Call{Op: graph.Copy, Stream: streams[way[0]], Args: []device.Operand{to, from}})
	}
	return sec * float64(n) / float64(cols)
}

// carry returns the seconds to stream the state of n elements to the device while other elements' state
// returns, along with the gradients and weights that must move too under this placement.
func (p prices) carry(n int64, r residency) float64 {
	dtype := p.req.Graph.Narrowest()
	weight := dtype.Size()
	up := plan.StateBytes(p.req.Optimizer, p.req.State, dtype)
	down := up
	if r.weights == device.HostTier {
		down += weight
		up += weight
	}
	if r.grads == device.HostTier && p.req.Options.Clip > 0 {
		up += 4
	}
	cost := p.machine.Cost
	return max(p.copy(device.HostToDev, n*up)*(1+cost.Slowdown(device.HostToDev, device.DevToHost)),
		p.copy(device.DevToHost, n*down)*(1+cost.Slowdown(device.DevToHost, device.HostToDev)))
}
