package verify

import (
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// find returns the n-th instruction with an operator.
func find(p *program.Program, op graph.Op, n int) int {
	for i := range p.Instrs {
		if p.Instrs[i].Op == op {
			if n == 0 {
				return i
			}
			n--
		}
	}
	panic("there is no such instruction")
}

func edit(rank int, op graph.Op, n int, change func(in *program.Instr)) func([]*program.Program) {
	return func(ps []*program.Program) { change(&ps[rank].Instrs[find(ps[rank], op, n)]) }
}

// drop leaves an instruction out, and finds new waits for the others.
func drop(rank int, op graph.Op, n int) func([]*program.Program) {
	return func(ps []*program.Program) {
		m := &mutator{Program: ps[rank]}
		i := find(ps[rank], op, n)
		m.reorder(slices.Delete(m.order(), i, i+1))
		for k := range m.Instrs {
			m.Instrs[k].Waits = nil
		}
		waitByForce(ps[rank])
	}
}

// TestGridDefects: one defect per check of what ranks do together, with the error
// that people get to read.
func TestGridDefects(t *testing.T) {
	pipe := gridOptions{1, 2, 2, "", false}
	data := gridOptions{2, 1, 1, "", false}
	zero := gridOptions{2, 1, 1, "state", false}
	half := program.Region{Buf: 0, Rows: 1, Cols: 1, Stride: 1}
	for _, c := range []struct {
		o    gridOptions
		edit func(ps []*program.Program)
		want string
	}{
		// Who is there.
		{data, func(ps []*program.Program) { ps[1].Rank = 0 }, "program 1 of 2 is that of rank 0"},
		{data, func(ps []*program.Program) { ps[1].RowUnit = 4 }, "rank 1 has row unit 4, rank 0 has 2"},
		{data, edit(1, graph.AllReduce, 0, func(in *program.Instr) { in.Peers = []int{1, 2} }), "rank 1: instruction i9 (all_reduce on collective): it meets rank 2, whose program is not given"},
		// Messages.
		{pipe, edit(0, graph.Send, 1, func(in *program.Instr) { in.Tag = 0 }), "rank 0: instruction i5 (send on send): i2 sends tag 0 to rank 1 already"},
		{pipe, edit(1, graph.Recv, 1, func(in *program.Instr) { in.Tag = 0 }), "i0 receives tag 0 from rank 0 already"},
		{pipe, edit(0, graph.Send, 1, func(in *program.Instr) { in.Tag = 7 }), "rank 1 never receives tag 7 from rank 0"},
		{pipe, drop(1, graph.Send, 1), "rank 1 never sends tag 101 to rank 0"},
		{pipe, edit(1, graph.Recv, 1, func(in *program.Instr) { in.Args[0].Rows = 2 }), "operand dst (buffer a.1) meets operand src of i5 (send on send) of rank 0, which is 4x6 there and 2x6 here"},
		{pipe, func(ps []*program.Program) {
			b := &ps[1].Buffers[ps[1].Instrs[find(ps[1], graph.Recv, 0)].Args[0].Buf]
			b.DType = graph.BF16
		}, "which is f32 there and bf16 here"},
		{pipe, func(ps []*program.Program) {
			b := &ps[1].Buffers[ps[1].Instrs[find(ps[1], graph.Recv, 0)].Args[0].Buf]
			b.Cuts = []int{3}
		}, "which is cut at other places"},
		// Collectives.
		{data, drop(1, graph.AllReduce, 1), "rank 0: instruction i15 (all_gather on collective): it is collective 2 of ranks [0 1], but rank 1 has only 2"},
		{zero, edit(1, graph.AllGather, 0, func(in *program.Instr) { in.Op = graph.ReduceScatter }), "instruction i13 (reduce_scatter on collective): it meets i13 (all_gather on collective) of rank 0"},
		{zero, edit(1, graph.ReduceScatter, 0, func(in *program.Instr) { in.Args[0] = program.Region{} }), "operand src has 24 elements, the parts of ranks [0 1] have 16 in all"},
		{data, edit(1, graph.AllReduce, 0, func(in *program.Instr) { in.Args[0].Cols, in.Args[0].Stride = 16, 16 }), "which is 1x24 there and 1x16 here"},
		{zero, edit(1, graph.ReduceScatter, 0, func(in *program.Instr) { in.Args[0].Off = 0; in.Args[0].Cols = 16; in.Args[0].Stride = 16 }), "the parts of ranks [0 1] have 32 in all"},
		{zero, func(ps []*program.Program) {
			for r := range ps {
				p := ps[r]
				in := &p.Instrs[find(p, graph.AllGather, 2)]
				in.Args[1] = [2]program.Region{{Buf: in.Args[1].Buf, Off: 10, Rows: 1, Cols: 20, Stride: 20}, {Buf: in.Args[1].Buf, Rows: 1, Cols: 10, Stride: 10}}[r]
			}
		}, "hint: cut it where the parts end"},
		{zero, edit(0, graph.ReduceScatter, 0, func(in *program.Instr) { in.Args[0] = half }), "rank 0: "},
		// Homes.
		{data, func(ps []*program.Program) {
			for _, p := range ps {
				p.Homes[0].Slab = -1
			}
		}, "it has no slab -1"},
		// Content.
		{data, func(ps []*program.Program) {
			for r := range ps {
				drop(r, graph.AllReduce, 0)(ps)
			}
		}, `buffers p:w0 of rank 0 and p:w0 of rank 1 both hold "p:w0+0", but end with`},
		{zero, func(ps []*program.Program) {
			for r := range ps {
				drop(r, graph.AllGather, 1)(ps)
			}
		}, `both hold "p:w0+0", but end with different content`},
		{data, func(ps []*program.Program) { ps[1].BatchRow = 0 }, "gets a value that the reference never computes"},
		{data, func(ps []*program.Program) {
			for r := range ps {
				edit(r, graph.AllReduce, 0, func(in *program.Instr) { in.Op, in.Args = graph.AllGather, []program.Region{in.Args[0], {}} })(ps)
			}
		}, "operand dst has 24 elements, the parts of ranks [0 1] have 0 in all"},
		// Cycles.
		{gridOptions{1, 2, 4, "", true}, func([]*program.Program) {}, "the ranks wait for each other for ever:\n  i"},
		{pipe, func(ps []*program.Program) {
			edit(0, graph.Send, 0, func(in *program.Instr) { in.Tag = 1 })(ps)
			edit(0, graph.Send, 1, func(in *program.Instr) { in.Tag = 0 })(ps)
		}, `for ever:
  i0 (recv on recv) of rank 1 waits for i5 (send on send) of rank 0, which comes after i2 (send on send) of rank 0
  i2 (send on send) of rank 0 waits for i7 (recv on recv) of rank 1, which comes after i0 (recv on recv) of rank 1`},
	} {
		ps := gridPrograms(c.o)
		c.edit(ps)
		err := Verify(ps...)
		if err == nil {
			_, err = Equivalent(ps, gridPrograms(gridVariants[0]))
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%+v:\n got %v\nwant %s", c.o, err, c.want)
		}
	}
	if err := Verify(gridPrograms(data)[1]); err == nil || !strings.Contains(err.Error(), "give the programs of all ranks together") {
		t.Errorf("one of two programs: %v", err)
	}
	if err := Verify(); err == nil {
		t.Error("no programs verify")
	}
}

// TestFullQueues: programs whose streams are free of cycles may still hang if a
// stream has no room for everything that is launched before what it waits for.
func TestFullQueues(t *testing.T) {
	for _, c := range []struct {
		n    int
		want string
	}{{device.QueueLen - 2, ""}, {device.QueueLen + 2, "is not launched, as the queue of compute is full behind"}} {
		var ps []*program.Program
		for r := range 2 {
			s := &smallBuilder{Program: &program.Program{Rank: r, RowUnit: smallUnit}}
			in, out := s.matrix("in", program.ClassActivations, graph.F32, 2, 2), s.matrix("out", program.ClassActivations, graph.F32, 2, 2)
			x, y := s.matrix("x", program.ClassInputs, graph.F32, 2, 2), s.matrix("y", program.ClassActivations, graph.F32, 2, 2)
			s.Buffers[x].Persistent, s.Buffers[x].Init = true, []string{"x"}
			g := &gridBuilder{smallBuilder: s}
			g.copy(device.Compute, s.BufferRegion(out), s.BufferRegion(x))
			g.message(graph.Recv, 1-r, 1-r, s.BufferRegion(in))
			for range c.n {
				g.op(device.Compute, graph.Act, graph.Attr{}, s.BufferRegion(y), s.BufferRegion(in))
			}
			g.message(graph.Send, 1-r, r, s.BufferRegion(out))
			placeApart(s.Program)
			s.Instrs[2].Waits = []int{1}
			s.Instrs[len(s.Instrs)-1].Waits = []int{0}
			ps = append(ps, s.Program)
		}
		err := Verify(ps...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%d instructions: %v, want %q", c.n, err, c.want)
		}
	}
}

// TestOwnPlace: a part may be inside the whole, but only where it belongs.
func TestOwnPlace(t *testing.T) {
	pair := func(op graph.Op, offs [2]int, acc bool) error {
		var ps []*program.Program
		for r := range 2 {
			g := &gridBuilder{smallBuilder: &smallBuilder{Program: &program.Program{Rank: r}}}
			w := g.flat("w", device.DeviceTier, program.ClassWeights, graph.F32, 8, []int{4}, "a", "b")
			args := []program.Region{g.BufferRegion(w), piecesOf(w, 0, offs[r], offs[r]+4)}
			if op == graph.ReduceScatter {
				slices.Reverse(args)
			}
			g.between(op, []int{0, 1}, acc, args...)
			placeApart(g.Program)
			ps = append(ps, g.Program)
		}
		rs, err := newRanks(ps)
		if err == nil {
			err = rs.executions(false).run()
		}
		return err
	}
	for _, op := range []graph.Op{graph.AllGather, graph.ReduceScatter} {
		if err := pair(op, [2]int{0, 4}, false); err != nil {
			t.Errorf("%v: %v", op, err)
		}
		for _, offs := range [][2]int{{0, 0}, {4, 0}, {4, 4}} {
			if err := pair(op, offs, false); err == nil || !strings.Contains(err.Error(), "its place is") {
				t.Errorf("%v at %v: %v", op, offs, err)
			}
		}
	}
	if err := pair(graph.ReduceScatter, [2]int{0, 4}, true); err == nil || !strings.Contains(err.Error(), "overlaps operand") {
		t.Errorf("added to a part of what is reduced: %v", err)
	}
}

// TestUnorderedSums: sums of the same terms are equal in any order and grouping,
// and no others are: not with a term missing, repeated, elsewhere or made differently.
func TestUnorderedSums(t *testing.T) {
	term := func(n int) Value { return seedOp.hashInts(n, n) }
	sum := func(list ...int) Value {
		v := noTerms
		for _, n := range list {
			v = v.plus(term(n))
		}
		return v
	}
	want := sum(1, 2, 3)
	for _, v := range []Value{sum(3, 1, 2), sum(2).plus(sum(1, 3)), term(1).plus(term(2)).plus(term(3)), noTerms.plus(want), term(2).plus(sum(3, 1)).plus(noTerms)} {
		if v != want {
			t.Errorf("%v is not %v", v, want)
		}
	}
	other := []Value{{}, noTerms, sum(1, 2), sum(1, 2, 3, 3), sum(1, 2, 4), sum(1, 1, 1), term(1), term(6), sum(1, 2).hashWith(term(3)), sum(1, 2, 3).hashWith(sum()), sum(1).plus(sum(2, 3).hashWith(noTerms))}
	for _, v := range other {
		if v == want || v[1]&1 != 0 && v == (Value{}) {
			t.Errorf("%v is %v too", v, want)
		}
	}
	if sum(1) == term(1) || term(1)[1]&1 != 0 || sum(1)[1]&1 != 1 {
		t.Error("a sum of one term looks like the term")
	}
}
