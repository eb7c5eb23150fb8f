package verify

import (
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

const sliceSeq = 24 // rows of a sequence; slices begin at multiples of 8

// slice is rows [from, to) of the first of two sequences, or of both.
type slice struct{ from, to int }

var both = slice{0, 2 * sliceSeq}

// slicedProgram runs attention, forwards and backwards, on two sequences. The
// slices of a pass run in the given order and belong to the first sequence; the
// second one follows in one piece. Sums of dkv are kept in type sum and, if that is
// fp32, cast to bf16 at the end.
func slicedProgram(forward, backward []slice, sum graph.DType) *program.Program {
	s := &smallBuilder{Program: &program.Program{Name: "slices", RowUnit: smallUnit}}
	const n = 2 * sliceSeq
	mat := func(name string, class program.Class, dt graph.DType, cols int, cuts ...int) int {
		b := s.matrix(name, class, dt, n, cols)
		s.Buffers[b].Cuts = cuts
		if class != program.ClassActGrads {
			s.Buffers[b].Persistent, s.Buffers[b].Init = true, []string{name}
		}
		return b
	}
	qkv, do := mat("qkv", program.ClassInputs, graph.F32, 3, 1), mat("do", program.ClassInputs, graph.F32, 1)
	o, lse := mat("o", program.ClassReductions, graph.F32, 1), mat("lse", program.ClassReductions, graph.F32, 1)
	dq, dkv := mat("dq", program.ClassReductions, graph.F32, 1), mat("dkv", program.ClassReductions, graph.BF16, 2)
	starts := mat("starts", program.ClassInputs, graph.I32, 1)
	delta, sums := mat("delta", program.ClassActGrads, graph.F32, 1), dkv
	if sum == graph.F32 {
		sums = mat("sums", program.ClassActGrads, graph.F32, 2)
	}
	attr := graph.Attr{Seq: sliceSeq, Heads: 1, KVHeads: 1, HeadDim: 1}
	run := func(r slice, begin int, back, acc bool) {
		band := func(buf, from, lo, cols int) program.Region {
			stride := s.Buffers[buf].Cols
			return program.Region{Buf: buf, Off: from*stride + lo, Rows: r.to - from, Cols: cols, Stride: stride}
		}
		q, kv := band(qkv, r.from, 0, 1), band(qkv, begin, 1, 2)
		if !back {
			s.op(device.Compute, graph.Attention, attr, band(o, r.from, 0, 1), band(lse, r.from, 0, 1), q, kv, band(starts, r.from, 0, 1))
			return
		}
		a := attr
		a.Acc = acc
		s.op(device.Compute, graph.AttentionBwd, a, band(dq, r.from, 0, 1), band(sums, begin, 0, 2), band(delta, r.from, 0, 1),
			band(do, r.from, 0, 1), q, kv, band(o, r.from, 0, 1), band(lse, r.from, 0, 1), band(starts, r.from, 0, 1))
	}
	for back, list := range [][]slice{forward, backward} {
		for i, r := range list {
			run(r, 0, back == 1, i > 0)
		}
		if list[0] != both {
			run(slice{sliceSeq, n}, sliceSeq, back == 1, false)
		}
	}
	if sum == graph.F32 {
		s.op(device.Compute, graph.Cast, graph.Attr{}, s.BufferRegion(dkv), s.BufferRegion(sums))
	}
	placeByForce(s.Program)
	return s.Program
}

// TestSlices: which ways of cutting a sequence mean the same as not cutting it. The
// oracle, which executes them row by row, must agree.
func TestSlices(t *testing.T) {
	all := []slice{both}
	plain := slicedProgram(all, all, graph.BF16)
	want, err := meaning(plain)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	outcome := behaviour(plain, outputs(plain), rng)
	for name, c := range map[string]struct {
		forward, backward []slice
		sum               graph.DType
		same              bool
	}{
		"sums in fp32":            {all, all, graph.F32, true},
		"forwards anywhere":       {[]slice{{0, 2}, {2, 10}, {10, 24}}, all, graph.BF16, true},
		"forwards in any order":   {[]slice{{10, 24}, {0, 2}, {2, 10}}, all, graph.BF16, true},
		"from last to first":      {all, []slice{{16, 24}, {8, 16}, {0, 8}}, graph.F32, true},
		"one slice":               {[]slice{{0, 24}}, []slice{{0, 24}}, graph.BF16, true},
		"sums rounded in between": {all, []slice{{8, 24}, {0, 8}}, graph.BF16, false},
		"out of order":            {all, []slice{{16, 24}, {0, 8}, {8, 16}}, graph.F32, false},
		"a slice twice":           {all, []slice{{8, 24}, {8, 16}, {0, 8}}, graph.F32, false},
		"a slice never":           {[]slice{{0, 2}, {10, 24}}, all, graph.F32, false},
	} {
		p := slicedProgram(c.forward, c.backward, c.sum)
		have, err := meaning(p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if same := maps.Equal(have, want); same != c.same {
			t.Errorf("%s: same meaning is %v, want %v", name, same, c.same)
		}
		if same := maps.Equal(behaviour(p, outputs(p), rng), outcome); same != c.same {
			t.Errorf("%s: the oracle says %v, want %v", name, same, c.same)
		}
	}
}

// TestBadSlices: what Verify says of them.
func TestBadSlices(t *testing.T) {
	all := []slice{both}
	for _, c := range []struct {
		backward []slice
		want     string
	}{
		{[]slice{{6, 24}, {0, 6}}, "a slice of rows 6 to 24, which are not multiples of 8"},
		{[]slice{{0, 6}}, "a slice of rows 0 to 6"},
		{[]slice{{8, 48}}, "40 queries and 48 keys with sequences of 24 rows"},
		{[]slice{{0, 8}, {8, 24}}, "operand dkv (buffer sums) is read before it is written"},
	} {
		if _, err := meaning(slicedProgram(all, c.backward, graph.F32)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.backward, err, c.want)
		}
	}
}

// TestSlicesTake: where keys and values are results of norms, cheap to recompute, slices still keep
// them, since later ones read them.
func TestSlicesTake(t *testing.T) {
	for name, want := range map[string]string{"gpt2": "none light", "llama": "none light", "neox": "none light", "sinks": "none light", "gemma3": "none", "olmo2": "none"} {
		g := samples.BuildGraph(t, name, graph.F32)
		if got := strings.Join(plan.SlicesTake(g), " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		pl := plan.Plain(g, 1)
		pl.MicroBatches, pl.Ranks = 2, 2
		pl.Pipeline = &plan.Pipeline{Schedule: "seq1f1b", Ranks: 2, Slices: 2, Stages: []int{0, 1}}
		for _, keep := range []string{"none", "light"} {
			for l := range pl.Activations {
				pl.Activations[l] = plan.Recomputed(keep)
			}
			if err := pl.Validate(g); (err == nil) != strings.Contains(want, keep) {
				t.Errorf("%s with %s: %v", name, keep, err)
			}
		}
	}
}
