package verify

import (
	"fmt"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Programs of several ranks made by hand: the two layers of the small programs,
// on replicas that share the tokens, each a pipeline of one or two stages. Rank
// r is stage r mod stages of replica r div stages.

type gridOptions struct {
	replicas, stages, micro int
	shard                   string // see Shardings
	tight                   bool   // messages reuse each other's memory, too
}

func (o gridOptions) ranks() int { return o.replicas * o.stages }

// gridVariants begin with the reference. Three replicas share two pieces of each
// weight, so the third has none.
var gridVariants = []gridOptions{
	{1, 1, 1, "", false}, {1, 1, 4, "", false}, {1, 2, 1, "", true}, {1, 2, 4, "", false},
	{2, 1, 1, "", true}, {2, 1, 2, "state", false}, {2, 1, 1, "grads", false}, {2, 1, 2, "grads", true}, {2, 1, 2, "weights", true},
	{4, 1, 1, "state", false}, {4, 1, 1, "weights", true}, {2, 2, 1, "", false}, {2, 2, 2, "state", false}, {2, 2, 2, "grads", false}, {2, 2, 2, "weights", false},
}

// gridPieces is where each weight is cut, in every variant.
var gridPieces = []int{16, 10}

type gridBuilder struct {
	*smallBuilder
	gridOptions
	rank    int
	scalars int
	clip    int
	weights []gridWeight
}

// gridWeight is one of the two matrices on one rank.
type gridWeight struct {
	k, elems       int
	group          []int
	lo, hi         int // what this rank updates
	p, m, v        int // homes: of everything, or of lo:hi
	at             int // the element that p begins with
	full, dw, part int // buffers of everything; of what was reduced in parts
	partAt         int
}

func gridPrograms(o gridOptions) (list []*program.Program) {
	for r := range o.ranks() {
		list = append(list, gridProgram(o, r))
	}
	return list
}

func gridProgram(o gridOptions, rank int) *program.Program {
	rows := smallTokens / o.replicas
	g := &gridBuilder{smallBuilder: &smallBuilder{Program: &program.Program{
		Name: fmt.Sprintf("grid %+v", o), RowUnit: smallUnit, Rank: rank, BatchRow: rank / o.stages * rows}}, gridOptions: o, rank: rank}
	g.scalars = g.flat("scalars", device.DeviceTier, program.ClassInputs, graph.F32, graph.NumScalars, nil, "scalars")
	g.clip = g.flat("clip", device.DeviceTier, program.ClassReductions, graph.F32, 2, nil, "clip.before")
	for k := range smallWeights {
		if o.stages == 1 || rank%o.stages == k {
			g.weights = append(g.weights, g.weight(k))
		}
	}
	g.compute(rows)
	for i := range g.weights {
		g.reduce(&g.weights[i])
	}
	g.norm()
	for i := range g.weights {
		g.update(&g.weights[i])
	}
	if o.tight {
		placeByForce(g.Program)
	} else {
		placeApart(g.Program)
	}
	waitByForce(g.Program)
	return g.Program
}

// placeApart gives every buffer bytes of its own.
func placeApart(p *program.Program) {
	for i := range p.Buffers {
		b := &p.Buffers[i]
		b.Addr = (p.Height[b.Tier] + b.Align - 1) / b.Align * b.Align
		p.Height[b.Tier] = b.Addr + b.Size
	}
	p.Capacity = p.Height
}

func (g *gridBuilder) between(op graph.Op, peers []int, acc bool, args ...program.Region) {
	g.op(device.Collective, op, graph.Attr{Acc: acc}, args...)
	g.Instrs[len(g.Instrs)-1].Peers = peers
}

func (g *gridBuilder) message(op graph.Op, peer, tag int, r program.Region) {
	stream := device.Send
	if op == graph.Recv {
		stream = device.Recv
	}
	g.op(stream, op, graph.Attr{}, r)
	in := &g.Instrs[len(g.Instrs)-1]
	in.Peers, in.Tag = []int{peer}, tag
}

// shardOf is the piece of weight k that a replica updates.
func (g *gridBuilder) shardOf(k, replica int) (lo, hi int) {
	elems := smallWeights[k].rows * smallWeights[k].cols
	if g.shard == "" || g.replicas == 1 {
		return 0, elems
	}
	ends := []int{0, gridPieces[k], elems}
	return ends[min(replica, 2)], ends[min(replica+1, 2)]
}

// kept is a persistent buffer with elements lo to hi of weight k.
func (g *gridBuilder) kept(kind optimizer.Kind, class program.Class, k, lo, hi int) int {
	name := fmt.Sprintf("%s:w%d", kind, k)
	var cuts []int
	var init []string
	for _, at := range []int{0, gridPieces[k]} {
		switch {
		case at > lo && at < hi:
			cuts = append(cuts, at-lo)
		case at < lo || at >= hi:
			continue
		}
		init = append(init, fmt.Sprintf("%s+%d", name, at))
	}
	buf := g.flat(name, device.DeviceTier, class, graph.F32, hi-lo, cuts, init...)
	g.Homes = append(g.Homes, program.Home{Param: k, Kind: kind, At: lo, Region: g.BufferRegion(buf)})
	return buf
}

func (g *gridBuilder) temp(name string, class program.Class, k, lo, hi int) int {
	var cuts []int
	if c := gridPieces[k]; c > lo && c < hi {
		cuts = []int{c - lo}
	}
	return g.flat(fmt.Sprintf("%s%d.%d", name, k, len(g.Buffers)), device.DeviceTier, class, graph.F32, hi-lo, cuts)
}

func (g *gridBuilder) weight(k int) gridWeight {
	w := gridWeight{k: k, elems: smallWeights[k].rows * smallWeights[k].cols, part: -1}
	for r := range g.ranks() {
		if g.stages == 1 || r%g.stages == k {
			w.group = append(w.group, r)
		}
	}
	w.lo, w.hi = g.shardOf(k, g.rank/g.stages)
	if g.shard == "weights" && g.replicas > 1 {
		w.full, w.at = g.temp("full", program.ClassWeights, k, 0, w.elems), w.lo
		src := program.Region{}
		if w.lo < w.hi {
			w.p = g.kept(optimizer.Weights, program.ClassWeights, k, w.lo, w.hi)
			src = g.BufferRegion(w.p)
		}
		g.between(graph.AllGather, w.group, false, g.BufferRegion(w.full), src)
	} else {
		w.p = g.kept(optimizer.Weights, program.ClassWeights, k, 0, w.elems)
		w.full = w.p
	}
	if w.lo < w.hi {
		w.m, w.v = g.kept(optimizer.FirstMoment, program.ClassState, k, w.lo, w.hi), g.kept(optimizer.SecondMoment, program.ClassState, k, w.lo, w.hi)
	}
	w.dw = g.temp("dw", program.ClassGrads, k, 0, w.elems)
	return w
}

func (g *gridBuilder) matrixOf(buf, k int) program.Region {
	w := smallWeights[k]
	return program.Region{Buf: buf, Rows: w.rows, Cols: w.cols, Stride: w.cols}
}

func piecesOf(buf, at, lo, hi int) program.Region {
	return program.Region{Buf: buf, Off: lo - at, Rows: 1, Cols: hi - lo, Stride: hi - lo}
}

// gridActs are the activations of one micro-batch on one rank.
type gridActs struct{ h, a, da program.Region }

// compute runs all micro-batches through the stages that this rank has.
func (g *gridBuilder) compute(rows int) {
	n := rows / g.micro
	first, last := g.rank%g.stages == 0, g.rank%g.stages == g.stages-1
	batch := func(name string, dt graph.DType, cols int) int {
		b := g.matrix("batch."+name, program.ClassInputs, dt, rows, cols)
		g.Buffers[b].Persistent, g.Buffers[b].Init = true, []string{g.Buffers[b].Name}
		return b
	}
	var x, y, total int
	if first {
		x = batch("x", graph.F32, 4)
	}
	if last {
		y = batch("targets", graph.I32, 1)
		total = g.flat("loss", device.DeviceTier, program.ClassReductions, graph.F64, 1, nil, "loss.before")
	}
	acts := make([]gridActs, g.micro)
	mat := func(name string, i, cols int) program.Region {
		return g.BufferRegion(g.matrix(fmt.Sprintf("%s.%d", name, i), program.ClassActivations, graph.F32, n, cols))
	}
	for i := range acts {
		act := &acts[i]
		act.a, act.da = mat("a", i, 6), mat("da", i, 6)
		if first {
			act.h = mat("h", i, 6)
			g.op(device.Compute, graph.Linear, graph.Attr{}, act.h, g.rows(x, i*n, n), g.matrixOf(g.weights[0].full, 0), program.Region{}, program.Region{})
			g.op(device.Compute, graph.Act, graph.Attr{Act: model.GELUErf}, act.a, act.h)
		}
		if first && !last {
			g.message(graph.Send, g.rank+1, i, act.a)
		}
		if !first {
			g.message(graph.Recv, g.rank-1, i, act.a)
		}
		if last {
			g.head(i, *act, mat("z", i, 5), mat("l", i, 1), g.rows(y, i*n, n), total)
		}
		if last && !first {
			g.message(graph.Send, g.rank-1, 100+i, act.da)
		}
	}
	for i := range acts {
		act := &acts[i]
		if !first {
			continue
		}
		if !last {
			g.message(graph.Recv, g.rank+1, 100+i, act.da)
		}
		g.op(device.Compute, graph.ActBwd, graph.Attr{Act: model.GELUErf}, act.da, act.da, act.h)
		g.gradient(&g.weights[0], i, g.rows(x, i*n, n), act.da)
	}
}

// head is the second layer with the loss, forwards and backwards.
func (g *gridBuilder) head(i int, act gridActs, z, l, y program.Region, total int) {
	w := &g.weights[len(g.weights)-1]
	g.op(device.Compute, graph.Linear, graph.Attr{}, z, act.a, g.matrixOf(w.full, 1), program.Region{}, program.Region{})
	g.op(device.Compute, graph.CrossEntropy, graph.Attr{Grad: true}, l, z, y, g.BufferRegion(g.scalars))
	g.op(device.Compute, graph.LossSum, graph.Attr{Acc: i > 0}, g.BufferRegion(total), l)
	g.gradient(w, i, act.a, z)
	g.op(device.Compute, graph.LinearDX, graph.Attr{}, act.da, z, g.matrixOf(w.full, 1))
}

// gradient adds a micro-batch's contribution and, if gradients are divided,
// reduces it right away.
func (g *gridBuilder) gradient(w *gridWeight, i int, x, dy program.Region) {
	divided := g.replicas > 1 && (g.shard == "grads" || g.shard == "weights")
	g.op(device.Compute, graph.LinearDW, graph.Attr{Acc: i > 0 && !divided}, g.matrixOf(w.dw, w.k), x, dy)
	if !divided {
		return
	}
	dst := program.Region{}
	if w.lo < w.hi {
		if w.part < 0 {
			w.part, w.partAt = g.temp("part", program.ClassGrads, w.k, w.lo, w.hi), w.lo
		}
		dst = g.BufferRegion(w.part)
	}
	g.between(graph.ReduceScatter, w.group, i > 0, dst, piecesOf(w.dw, 0, 0, w.elems))
}

// reduce sums complete gradients, in place.
func (g *gridBuilder) reduce(w *gridWeight) {
	if g.replicas == 1 || g.shard == "grads" || g.shard == "weights" {
		if w.part < 0 {
			w.part = w.dw
		}
		return
	}
	w.part = w.dw
	if g.shard == "" {
		g.between(graph.AllReduce, w.group, false, piecesOf(w.dw, 0, 0, w.elems))
		return
	}
	dst := program.Region{}
	if w.lo < w.hi {
		dst = piecesOf(w.dw, 0, w.lo, w.hi)
	}
	g.between(graph.ReduceScatter, w.group, false, dst, piecesOf(w.dw, 0, 0, w.elems))
}

// norm sums squares of what this rank owns, piece by piece.
func (g *gridBuilder) norm() {
	var own [][]int // per rank: weight, from, to
	count := make([]int, g.ranks())
	for r := range g.ranks() {
		for k := range smallWeights {
			lo, hi := g.shardOf(k, r/g.stages)
			if g.stages > 1 && r%g.stages != k || g.shard == "" && r >= g.stages {
				continue
			}
			for _, q := range [][2]int{{0, gridPieces[k]}, {gridPieces[k], smallWeights[k].rows * smallWeights[k].cols}} {
				if q[0] >= lo && q[1] <= hi && lo < hi {
					count[r]++
					if r == g.rank {
						own = append(own, []int{k, q[0], q[1]})
					}
				}
			}
		}
	}
	slots := func(name string, n int) int {
		var cuts []int
		for c := 1; c < n; c++ {
			cuts = append(cuts, c)
		}
		return g.flat(name, device.DeviceTier, program.ClassReductions, graph.F64, n, cuts)
	}
	src, all := program.Region{}, -1
	if len(own) > 0 {
		all = slots("parts", len(own))
		src = g.BufferRegion(all)
	}
	for n, q := range own {
		w := g.weights[slices.IndexFunc(g.weights, func(w gridWeight) bool { return w.k == q[0] })]
		g.op(device.Compute, graph.NormPart, graph.Attr{}, piecesOf(all, 0, n, n+1), piecesOf(w.part, w.partAt, q[1], q[2]))
	}
	if g.ranks() > 1 {
		total := 0
		var world []int
		for r, n := range count {
			total, world = total+n, append(world, r)
		}
		all = slots("parts.all", total)
		g.between(graph.AllGather, world, false, g.BufferRegion(all), src)
	}
	g.op(device.Compute, graph.NormAll, graph.Attr{Clip: 1}, g.BufferRegion(g.clip), g.BufferRegion(all), g.BufferRegion(g.scalars))
}

// update steps what this rank owns, and gathers the rest.
func (g *gridBuilder) update(w *gridWeight) {
	if w.lo < w.hi {
		g.op(device.Compute, graph.AdamW, graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1},
			piecesOf(w.p, w.at, w.lo, w.hi), g.BufferRegion(w.m), g.BufferRegion(w.v), piecesOf(w.part, w.partAt, w.lo, w.hi), g.BufferRegion(g.clip), g.BufferRegion(g.scalars))
	}
	if g.replicas == 1 || g.shard == "" || g.shard == "weights" {
		return
	}
	src := program.Region{}
	if w.lo < w.hi {
		src = piecesOf(w.p, 0, w.lo, w.hi)
	}
	g.between(graph.AllGather, w.group, false, g.BufferRegion(w.p), src)
}

// TestGrids: however the work is divided, programs verify and compute the same: bit
// for bit where each sum is on one rank, else up to the order of sums.
func TestGrids(t *testing.T) {
	reference := gridPrograms(gridVariants[0])
	var all [][]*program.Program
	for _, o := range gridVariants {
		ps := gridPrograms(o)
		all = append(all, ps)
		if err := Verify(ps...); err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		want := Exact
		if o.replicas > 1 {
			want = Reordered
		}
		for _, pair := range [][2][]*program.Program{{ps, reference}, {reference, ps}} {
			if eq, err := Equivalent(pair[0], pair[1]); err != nil || eq != want {
				t.Errorf("%+v: %v, want %v: %v", o, eq, want, err)
			}
		}
	}
	// Where gradients are divided, and when weights are gathered, changes no bit.
	for _, pair := range [][2]int{{5, 8}, {7, 8}, {9, 10}, {12, 14}, {13, 14}} {
		want := Exact
		if pair[0] == 5 || pair[0] == 12 { // reduced once, or per micro-batch
			want = Reordered
		}
		if eq, err := Equivalent(all[pair[0]], all[pair[1]]); err != nil || eq != want {
			t.Errorf("%+v and %+v: %v, want %v: %v", gridVariants[pair[0]], gridVariants[pair[1]], eq, want, err)
		}
	}
}
