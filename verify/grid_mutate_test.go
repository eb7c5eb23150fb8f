package verify

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Law L8 for several ranks: one rank's program is broken at random, or all of
// them in the same way, and Verify or Equivalent must reject the result, unless
// the oracle finds it as good as the original.

// talking draws an instruction between ranks.
func (m *mutator) talking(ops ...graph.Op) (int, *program.Instr) {
	var list []int
	for i := range m.Instrs {
		if op := m.Instrs[i].Op; op.Info().Between && (len(ops) == 0 || slices.Contains(ops, op)) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return -1, nil
	}
	i := list[m.IntN(len(list))]
	return i, &m.Instrs[i]
}

var gridMutations = []mutation{
	{"another tag", func(m *mutator) string {
		i, in := m.talking(graph.Send, graph.Recv)
		if in == nil {
			return ""
		}
		_, other := m.talking(graph.Send, graph.Recv)
		if m.IntN(2) == 0 {
			in.Tag, other.Tag = other.Tag, in.Tag
			return fmt.Sprintf("tag of i%d is that of another", i)
		}
		in.Tag += m.IntN(5) - 2
		return fmt.Sprintf("tag of i%d is %d", i, in.Tag)
	}},
	{"another peer", func(m *mutator) string {
		i, in := m.talking()
		if in == nil {
			return ""
		}
		switch k := m.IntN(len(in.Peers)); m.IntN(4) {
		case 0:
			in.Peers = slices.Delete(in.Peers, k, k+1)
		case 1:
			in.Peers = slices.Insert(in.Peers, k, in.Peers[k]+1)
		case 2:
			slices.Reverse(in.Peers)
		default:
			in.Peers[k] += m.IntN(5) - 2
		}
		return fmt.Sprintf("i%d meets %v", i, in.Peers)
	}},
	{"swap what meets", func(m *mutator) string {
		i, a := m.talking()
		j, b := m.talking()
		if a == nil || i >= j || a.Stream != b.Stream {
			return ""
		}
		o := m.order()
		o[i], o[j] = o[j], o[i]
		m.reorder(o)
		return fmt.Sprintf("i%d and i%d change places", i, j)
	}},
	{"swap operands of what meets", func(m *mutator) string {
		i, a := m.talking()
		j, b := m.talking()
		if a == nil || i == j || a.Op != b.Op {
			return ""
		}
		a.Args, b.Args = b.Args, a.Args
		return fmt.Sprintf("i%d and i%d exchange operands", i, j)
	}},
	{"another collective", func(m *mutator) string {
		i, in := m.talking(graph.AllReduce, graph.ReduceScatter, graph.AllGather)
		if in == nil {
			return ""
		}
		in.Op = []graph.Op{graph.AllReduce, graph.ReduceScatter, graph.AllGather}[m.IntN(3)]
		if m.IntN(2) == 0 && len(in.Args) == 2 {
			in.Args[0], in.Args[1] = in.Args[1], in.Args[0]
		}
		if in.Op == graph.AllReduce {
			in.Args = in.Args[:1]
		}
		return fmt.Sprintf("i%d is %v", i, in.Op)
	}},
	{"nothing to give", func(m *mutator) string {
		i, in := m.talking(graph.ReduceScatter, graph.AllGather)
		if in == nil {
			return ""
		}
		j := 1
		if in.Op == graph.ReduceScatter {
			j = 0
		}
		in.Args[j] = program.Region{}
		return fmt.Sprintf("i%d leaves out operand %d", i, j)
	}},
	{"less to give", func(m *mutator) string {
		i, in := m.talking()
		if in == nil {
			return ""
		}
		r := &in.Args[m.IntN(len(in.Args))]
		if r.Absent() {
			return ""
		}
		if b := &m.Buffers[r.Buf]; b.RowUnit > 0 {
			r.Rows -= b.RowUnit
		} else {
			if len(b.Cuts) == 0 {
				return ""
			}
			c := b.Cuts[m.IntN(len(b.Cuts))]
			if m.IntN(2) == 0 {
				r.Cols = c - r.Off
			} else {
				r.Off, r.Cols = c, r.Off+r.Cols-c
			}
			r.Stride = r.Cols
		}
		return fmt.Sprintf("i%d exchanges %dx%d", i, r.Rows, r.Cols)
	}},
	{"other rows of the batch", func(m *mutator) string {
		m.BatchRow += (m.IntN(5) - 2) * m.RowUnit
		return fmt.Sprintf("the batch begins at row %d", m.BatchRow)
	}},
	{"another rank", func(m *mutator) string {
		m.Rank += m.IntN(3) - 1
		return fmt.Sprintf("it is of rank %d", m.Rank)
	}},
	{"another part", func(m *mutator) string {
		if len(m.Homes) == 0 {
			return ""
		}
		h := &m.Homes[m.IntN(len(m.Homes))]
		h.At = []int{0, 10, 16, h.At + 1}[m.IntN(4)]
		return fmt.Sprintf("%s of parameter %d begins with element %d", h.Kind, h.Param, h.At)
	}},
	{"drop what meets", func(m *mutator) string {
		i, in := m.talking()
		if in == nil {
			return ""
		}
		m.reorder(slices.Delete(m.order(), i, i+1))
		return fmt.Sprintf("i%d is dropped", i)
	}},
	{"repeat what meets", func(m *mutator) string {
		i, in := m.talking()
		if in == nil {
			return ""
		}
		m.reorder(slices.Insert(m.order(), i, i))
		return fmt.Sprintf("i%d runs twice", i)
	}},
	{"add or replace", func(m *mutator) string {
		i, in := m.talking(graph.ReduceScatter)
		if in == nil {
			return ""
		}
		in.Attr.Acc = !in.Attr.Acc
		return fmt.Sprintf("acc of i%d is %v", i, in.Attr.Acc)
	}},
	{"exchange on another stream", func(m *mutator) string {
		i, in := m.talking()
		if in == nil {
			return ""
		}
		in.Stream = device.Stream(m.IntN(int(device.NumStreams)))
		return fmt.Sprintf("i%d is on %v", i, in.Stream)
	}},
}

func copyAll(ps []*program.Program) []*program.Program {
	list := make([]*program.Program, len(ps))
	for r, p := range ps {
		list[r] = copyOf(p)
	}
	return list
}

func textsOf(ps []*program.Program) (list []string) {
	for _, p := range ps {
		list = append(list, p.String())
	}
	return list
}

// breakSome applies a mutation to one rank or, with the same choices, to all.
func breakSome(mu mutation, ps []*program.Program, rng *rand.Rand) string {
	if rng.IntN(2) == 0 {
		r := rng.IntN(len(ps))
		if did := mu.apply(&mutator{ps[r], rng}); did != "" {
			return fmt.Sprintf("rank %d: %s", r, did)
		}
		return ""
	}
	seed, all := rng.Uint64(), ""
	for r, p := range ps {
		if did := mu.apply(&mutator{p, rand.New(rand.NewPCG(seed, 0))}); did != "" {
			all += fmt.Sprintf("rank %d: %s; ", r, did)
		}
	}
	return all
}

// testMutantsOf breaks programs n times; mutants that are accepted must be as
// good as the original. It counts them by mutation. More are kinds that only these programs have.
func testMutantsOf(t *testing.T, ps, reference []*program.Program, n int, rng *rand.Rand, rejected, accepted map[string]int, more ...mutation) {
	t.Helper()
	kinds := slices.Concat(mutations, gridMutations, gridMutations, more)
	texts := textsOf(ps)
	for made := 0; made < n; {
		q, mu := copyAll(ps), kinds[rng.IntN(len(kinds))]
		did := breakSome(mu, q, rng)
		if did == "" || slices.Equal(textsOf(q), texts) {
			continue
		}
		made++
		if rng.IntN(2) == 0 {
			for _, p := range q {
				rewait(p)
			}
		}
		err := Verify(q...)
		eq := Different
		if err == nil {
			eq, err = Equivalent(q, reference)
		}
		if err != nil {
			rejected[mu.name]++
			if !strings.Contains(err.Error(), "hint:") {
				t.Errorf("%s: error without a hint: %v", did, err)
			}
			continue
		}
		accepted[mu.name]++
		if why := harmlessAll(q, reference, eq, rng); why != "" {
			t.Errorf("%s: accepted as %v, but %s: %s (%s)", ps[0].Name, eq, why, did, mu.name)
		}
	}
}

func TestGridMutants(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 5))
	reference := gridPrograms(gridVariants[0])
	rejected, accepted := map[string]int{}, map[string]int{}
	for _, o := range gridVariants {
		if o.ranks() > 1 {
			testMutantsOf(t, gridPrograms(o), reference, testkit.Count(0, 60, 120), rng, rejected, accepted)
		}
	}
	for _, mu := range slices.Concat(mutations, gridMutations) {
		if rejected[mu.name] == 0 && mu.name != "turn a copy round" && mu.name != "another class" { // there are none; of classes hardly any matters
			t.Errorf("no mutant was rejected by: %s", mu.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(accepted)) {
		t.Logf("%4d rejected, %4d accepted and harmless: %s", rejected[name], accepted[name], name)
	}
}

// TestRankMutants breaks lowered programs of several ranks.
func TestRankMutants(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 6))
	rejected, accepted := map[string]int{}, map[string]int{}
	for _, o := range testkit.Sample([]struct {
		model    string
		ranks    int
		schedule string
	}{{"llama", 2, ""}, {"gpt2", 3, ""}, {"llama", 2, "1f1b"}, {"gpt2", 4, "gpipe"}, {"llama", 2, "chimera"}}, 1, 3) {
		m := *samples.TinyModels[o.model]
		if rng.IntN(2) == 0 {
			samples.FreezeSome(&m, rng)
		}
		g, err := graph.Build(&m, 4, []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)])
		if err != nil {
			t.Fatal(err)
		}
		pl := plan.Plain(g, 1)
		samples.DrawOptimizer(pl, g, rng)
		pl.MicroBatches, pl.Ranks, pl.Chunks = 2, o.ranks, plan.Layout(g, 200)
		for i := range pl.Chunks {
			pl.Chunks[i].Shard = plan.Shardings()[rng.IntN(len(plan.Shardings()))]
			if o.schedule != "" { // tied weights are used by ranks in different orders
				pl.Chunks[i].Shard = plan.Shardings()[rng.IntN(2)]
			}
		}
		if o.schedule != "" {
			pl.Pipeline = &plan.Pipeline{Schedule: o.schedule, Ranks: 2, Slices: 1, Stages: []int{0, 2}}
		}
		pl.Cache = pl.CacheNeeded(g)
		mutateRanks(t, g, pl, rng, rejected, accepted)
	}
	for n := 0; n < testkit.Count(0, 1, 3); { // anything else: slices, deferred weight gradients, swapping, documents
		g, pl := samples.RandomRanks(t, rng)
		if pl.Ranks < 2 || pl.Ranks > 4 || pl.MicroBatches > 4 || g.Params[0].Rows > 24 || pl.Validate(g) != nil {
			continue
		}
		n++
		mutateRanks(t, g, pl, rng, rejected, accepted)
	}
	for n := 0; n < testkit.Count(0, 1, 4); { // shared sequences
		g, pl := samples.RandomRanks(t, rng)
		if pl.Parts() == 1 || pl.Ranks > 4 || pl.MicroBatches > 2 || g.Whole > 32 || g.Params[0].Rows > 24 || pl.Validate(g) != nil {
			continue
		}
		n++
		mutateRanks(t, g, pl, rng, rejected, accepted)
	}
	for n := 0; n < testkit.Count(0, 1, 4); { // shared matrices
		g, pl := samples.RandomSlabs(t, rng)
		if pl.Ranks > 4 || pl.MicroBatches > 2 || g.Params[0].Rows > 24 || pl.Validate(g) != nil {
			continue
		}
		n++
		mutateRanks(t, g, pl, rng, rejected, accepted)
	}
	total := 0
	for _, n := range rejected {
		total += n
	}
	if total < testkit.Count(0, 30, 100) {
		t.Errorf("only %d mutants were rejected", total)
	}
}

// mutateRanks breaks the programs of a plan. About the unbroken programs, the oracle
// must agree with Equivalent.
func mutateRanks(t *testing.T, g *graph.Graph, pl *plan.Plan, rng *rand.Rand, rejected, accepted map[string]int, more ...mutation) {
	t.Helper()
	ps, reference := lowerAll(t, g, pl, betas)
	if err := Verify(ps...); err != nil {
		t.Fatalf("%+v: %v", pl, err)
	}
	eq, err := Equivalent(ps, reference)
	if err != nil {
		t.Fatalf("%+v: %v", pl, err)
	}
	if why := harmlessAll(ps, reference, eq, rng); why != "" {
		t.Fatalf("%+v: %v, but the oracle finds: %s", pl, eq, why)
	}
	testMutantsOf(t, ps, reference, testkit.Count(0, 15, 30), rng, rejected, accepted, more...)
}
