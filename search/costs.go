package search

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// Estimated costs of parts of a step, before lowering. They serve bounds and the
// order in which pipelines are tried; programs give the verdict.

// costs are the estimated costs of one micro-batch.
type costs struct {
	segments []schedule.Times
	message  float64 // seconds to the next stage
	// For one layer and each recomputation policy, from least work to least memory: seconds of recomputed work,
	// and bytes kept for the backward pass.
	again []float64
	kept  []int64
}

// remakes returns the recomputation policies that pipelines choose from, from least work to least memory. With
// slices, only policies that keep what later slices read are valid.
func (s *search) remakes(v variant) (list []plan.Retention) {
	for _, name := range plan.Recomputations() {
		if pin := s.req.Pins.Recompute; (pin == "" || pin == name) && (v.slices <= 1 || slices.Contains(plan.SlicesTake(s.graph), name)) {
			list = append(list, plan.Recomputed(name))
		}
	}
	return list
}

// costs estimates a micro-batch of b sequences. The head's forward pass runs within
// its backward pass (see lower.Lower), and none of that is deferred.
func (s *search) costs(b int) *costs {
	if c := s.priced[b]; c != nil {
		return c
	}
	g, rows := s.graph, b*s.graph.Seq
	c := &costs{}
	for i := range g.Segments {
		seg := &g.Segments[i]
		var t schedule.Times
		for k := range seg.Forward {
			t.F += s.m.Cost.Cost(s.call(&seg.Forward[k], rows))
		}
		for k := range seg.Backward {
			n := &seg.Backward[k]
			if sec := s.m.Cost.Cost(s.call(n, rows)); g.WeightGradient(n) {
				t.W += sec
			} else {
				t.B += sec
			}
		}
		if i == g.Head() {
			t = schedule.Times{B: t.F + t.B + t.W}
		}
		c.segments = append(c.segments, t)
	}
	typical := g.Model.Layers - 1 // lower layers may be frozen
	saved := plan.Saved(g, typical, rows)
	for _, r := range s.remakes(variant{}) {
		var sec float64
		for _, n := range r.Again(&g.Segments[1+typical]) {
			sec += s.m.Cost.Cost(s.call(n, rows))
		}
		var kept int64
		for a, bytes := range saved {
			if r[a] == plan.Kept {
				kept += bytes
			}
		}
		c.again, c.kept = append(c.again, sec), append(c.kept, kept)
	}
	out := &g.Values[g.Segments[0].Out]
	c.message = s.between(graph.Send, out.DType, rows, out.Cols, 2)
	s.priced[b] = c
	return c
}

// between returns the seconds of a message, or of a collective among that many ranks.
func (s *search) between(op graph.Op, dt graph.DType, rows, cols, ranks int) float64 {
	o := device.Operand{DType: dt, Rows: rows, Cols: cols, Stride: cols}
	c := &device.Call{Op: op, Stream: device.Send, Args: []device.Operand{o}, Peers: []int{1}}
	if op != graph.Send {
		c.Stream, c.Peers = device.Collective, make([]int, ranks)
		c.Args = append(c.Args, device.Operand{DType: dt, Rows: 1, Cols: cols / ranks, Stride: cols / ranks})
		for i := range c.Peers {
			c.Peers[i] = i
		}
	}
	return s.m.Cost.Cost(c)
}

// updating returns the seconds to update n elements whose state lives in a tier,
// including the transfers of gradients and weights.
func (s *search) updating(n int64, r residency) float64 {
	if n == 0 {
		return 0
	}
	cols := int(min(n, math.MaxInt32))
	whole := device.Operand{DType: graph.F32, Rows: 1, Cols: cols, Stride: cols}
	stream := device.Compute
	if r.state != device.DeviceTier {
		stream = device.HostCompute
	}
	sec := s.m.Cost.Cost(s.updateCall(stream, device.DeviceTier, cols))
	for _, way := range [][2]device.Tier{{device.DeviceTier, device.HostTier}, {device.DiskTier, device.HostTier}, {device.HostTier, device.DiskTier}} {
		if way[0] == device.DeviceTier && r.state == device.DeviceTier || way[0] != device.DeviceTier && r.state != device.DiskTier {
			continue
		}
		from, to := whole, whole
		from.Tier, to.Tier = way[0], way[1]
		streams := [device.NumTiers]device.Stream{device.DevToHost, device.DiskWrite, device.DiskRead}
		sec += s.m.Cost.Cost(&device.Call{Op: graph.Copy, Stream: streams[way[0]], Args: []device.Operand{to, from}})
	}
	return sec * float64(n) / float64(cols)
}

// states returns a lower bound on the bytes per tier of n trained and some frozen
// elements that a group of ranks shards.
func (s *search) states(n, frozen int64, r residency, group int) (need [device.NumTiers]int64) {
	share := func(bytes int64, from string) int64 { // per rank, for what is sharded from this level on
		if plan.ShardLevel(r.shard) >= plan.ShardLevel(from) {
			return bytes / int64(group)
		}
		return bytes
	}
	need[r.weights] += share((n+frozen)*s.graph.DType.Size(), "weights")
	if r.state == device.DeviceTier {
		need[r.grads] += share(4*n, "grads")
	}
	need[r.state] += share(plan.StateBytes(s.req.Optimizer, s.req.State, s.graph.DType)*n, "state")
	return need
}

// updateCall returns the call that updates n elements in a tier.
func (s *search) updateCall(stream device.Stream, t device.Tier, n int) *device.Call {
	rule := s.req.Optimizer.Rule()
	c := &device.Call{Op: rule.Op, Stream: stream, Args: make([]device.Operand, rule.LowerHalvesAt())}
	master, moments := s.req.State.Types()
	operand := func(d graph.DType) device.Operand {
		return device.Operand{Tier: t, DType: d, Rows: 1, Cols: n, Stride: n}
	}
	c.Args[0], c.Args[rule.GradientAt()] = operand(s.graph.DType), operand(graph.F32)
	for k := range rule.Moments {
		c.Args[1+k] = operand(moments)
	}
	if master != s.graph.DType {
		c.Args = append(c.Args, operand(graph.U16))
	}
	return c
}
