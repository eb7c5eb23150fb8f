//go:build linux

package cuda_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
)

// text is a sequence that a Generator has continued greedily by itself.
type text struct {
	ids      []int32
	prompt   int
	logits   [][]float64 // after the prompt, then after each further token
	slot, at int
}

// TestSequencesTogether: sequences that join, leave and take steps at random have the logits that each has by itself, to the bit.
func TestSequencesTogether(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	type togetherCase struct {
		name  string
		dtype graph.DType
		bits  int // of caches
	}
	cases := []togetherCase{
		{"llama-tiny", graph.BF16, 8},
		{"gpt2-tiny", graph.F32, 0},
		{"gemma2-tiny", graph.F32, 4},
		{"gemma4-small-tiny", graph.F32, 0},
		{"deepseek3-tiny", graph.F32, 8},
		{"mixtral-tiny", graph.BF16, 4},
		{"gpt-oss-tiny", graph.F32, 0},
		{"qwen3-next-tiny", graph.BF16, 0},
		{"granite-h-tiny", graph.F32, 8},
		{"lfm2-tiny", graph.BF16, 0},
	}
	if testkit.AtLevel() == testkit.All {
		configs, err := filepath.Glob(torch + "*/config.json")
		check(t, err)
		for _, config := range configs {
			name := filepath.Base(filepath.Dir(config))
			cases = append(cases, togetherCase{name, graph.F32, 0}, togetherCase{name, graph.BF16, 0})
		}
	}
	for _, c := range cuda.CasesOf(cases, 1) {
		t.Run(fmt.Sprint(c.name, " ", c.dtype, " ", c.bits), func(t *testing.T) {
			f, err := folder.Open(torch + c.name)
			check(t, err)
			defer f.Close()
			if c.bits > 0 {
				check(t, f.CompressCaches(c.bits))
			}
			const length, sequences = 12, 3
			alone := func() *machine.Alone {
				return &machine.Alone{Device: gpu(t, load(t, c.name)), Capacity: program.NoLimits}
			}
			g, err := f.Generator(t.Context(), alone(), length, c.dtype)
			check(t, err)
			defer func() { check(t, g.Close()) }()
			s, err := f.OpenSlots(t.Context(), alone(), length, sequences, c.dtype)
			check(t, err)
			defer func() { check(t, s.Close()) }()
			together(t, f, g, s, s.Sequences, length)
			if model.Remembers(f.Model) || testkit.AtLevel() < testkit.All && !cuda.OnGPU() { // blocks refuse such models: TestBlockPolicies
				return
			}
			b, err := f.OpenBlock(t.Context(), gpu(t, load(t, c.name)), drawBlock(t, f, length, c.dtype))
			check(t, err)
			defer func() { check(t, b.Close()) }()
			together(t, f, g, b, b.Sequences(), length)
		})
	}
}

// drawBlock draws a block whose caches, hidden states and weights are anywhere. The device attends, whose bits are others than the host's.
func drawBlock(t *testing.T, f *folder.Folder, length int, dtype graph.DType) *search.BlockPlan {
	t.Helper()
	r := testkit.Rand(t)
	b := search.Block{Context: length, Each: 1 + r.IntN(2), Batches: 2, Reads: []int{4}, DType: dtype}
	graphs, err := b.Graphs(f.Model)
	check(t, err)
	g := graphs[len(graphs)-1]
	pl := samples.RandomPlan(g, 1, r)
	samples.DrawBatches(pl, g, b.Batches, 1, r)
	for i := range pl.Chunks {
		pl.Chunks[i].Lookup = ""
	}
	for i := range pl.Batches {
		pl.Batches[i].Attend, pl.Batches[i].Cache = "", device.Tier(i%2)
	}
	pl.Cache = 2 * pl.CacheNeeded(g)
	programs, err := search.LowerBlock(t.Context(), graphs, pl, lower.Options{Capacity: program.NoLimits})
	check(t, err)
	return &search.BlockPlan{Block: b, Graphs: graphs, Plan: pl, Programs: programs}
}

// slots are folder.Slots or a folder.Block.
type slots interface {
	ReadPrompts(ctx context.Context, list []*folder.Reading) error
	Accepts(list []folder.Placed, slot int) bool
	Step(ctx context.Context, list []folder.Placed) error
	Logits(i int) []float64
}

// together generates texts with slots, and compares them with what the generator makes of each.
func together(t *testing.T, f *folder.Folder, g *folder.Generator, s slots, sequences, length int) {
	t.Helper()
	r := testkit.Rand(t)
	texts := onGPU(64, testkit.Count(4, 4, 8))
	var now []*text
	free := r.Perm(sequences)
	for joined := 0; joined < texts || len(now) > 0; {
		var reads []*folder.Reading
		for len(free) > 0 && joined < texts && (len(now) == 0 || r.IntN(3) > 0) {
			q := continued(t, f, g, length, r)
			q.slot = free[0]
			free, now, joined = free[1:], append(now, q), joined+1
			if r.IntN(2) == 0 { // else token by token
				reads = append(reads, &folder.Reading{Slot: q.slot, Prompt: q.ids[:q.prompt]})
			}
		}
		check(t, s.ReadPrompts(t.Context(), reads))
		for _, read := range reads {
			now[slices.IndexFunc(now, func(q *text) bool { return q.slot == read.Slot })].at = read.At
		}
		r.Shuffle(len(now), func(i, k int) { now[i], now[k] = now[k], now[i] })
		var list []folder.Placed
		var some []*text
		for _, q := range now[:1+r.IntN(len(now))] {
			if !s.Accepts(list, q.slot) {
				continue
			}
			some = append(some, q)
			list = append(list, folder.Placed{Token: q.ids[q.at], Slot: q.slot, Position: q.at})
		}
		check(t, s.Step(t.Context(), list))
		for i, q := range some {
			if q.at++; q.at < q.prompt {
				continue
			}
			if !slices.Equal(s.Logits(i), q.logits[q.at-q.prompt]) {
				t.Fatalf("a prompt of %d tokens, %d read, beside %d rows: other logits than alone", q.prompt, q.at, len(list)-1)
			}
			if q.at-q.prompt == len(q.logits)-1 {
				now, free = slices.DeleteFunc(now, func(o *text) bool { return o == q }), append(free, q.slot)
			}
		}
	}
}

// continued continues a random prompt.
func continued(t *testing.T, f *folder.Folder, g *folder.Generator, length int, r *rand.Rand) *text {
	t.Helper()
	q := &text{prompt: 1 + r.IntN(length-3)}
	for range q.prompt {
		q.ids = append(q.ids, int32(r.IntN(f.Model.Vocab)))
	}
	g.Reset()
	check(t, g.Extend(t.Context(), q.ids...))
	for range 1 + r.IntN(length-q.prompt) {
		q.logits = append(q.logits, slices.Clone(g.Logits()))
		next := int32(0)
		for i, l := range g.Logits() {
			if l > g.Logits()[next] {
				next = int32(i)
			}
		}
		q.ids = append(q.ids, next)
		check(t, g.Extend(t.Context(), next))
	}
	return q
}
