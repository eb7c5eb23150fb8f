package verify

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/program"
)

// TestSplits: what the law of sums allows is accepted. An instruction that treats
// tokens one by one, or adds them up in order, may be cut in two anywhere.
func TestSplits(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 12))
	programs := smallPrograms()
	for len(programs) < 12 {
		if p, err := randomProgram([]string{"gpt2", "llama", "qwen2", "gemma3", "olmo2", "neox", "phi", "granite", "sinks"}[rng.IntN(9)], rng); err == nil && !strings.Contains(p.Name, "decode") {
			programs = append(programs, p)
		}
	}
	split := map[graph.Op]int{}
	for _, p := range programs {
		for range testkit.Count(0, 8, 20) {
			q := copyOf(p)
			m := &mutator{q, rng}
			i, in := m.such(func(in *program.Instr) bool {
				kind := in.Op.Info().Kind
				j := slices.IndexFunc(in.Op.Info().Args, func(a graph.ArgSpec) bool { return a.Token })
				return j >= 0 && (kind == graph.RowWise || kind == graph.TokenSum) && in.Args[j].Rows > q.RowUnit
			})
			if in == nil {
				continue
			}
			op := in.Op
			m.cut(i)
			if err := check(q, p); err != nil {
				t.Errorf("i%d (%v) of %q cut in two: %v", i, op, p.Name, err)
			}
			split[op]++
		}
	}
	if len(split) < 10 {
		t.Errorf("only %v were cut", split)
	}
}

// cut splits an instruction in two: one for the first rows of its tokens, and one for
// the others.
func (m *mutator) cut(i int) {
	m.reorder(slices.Insert(m.order(), i, i))
	a, b := &m.Instrs[i], &m.Instrs[i+1]
	specs, rows := a.Op.Info().Args, 0
	for j := range a.Args {
		if !specs[j].Token || a.Args[j].Absent() {
			continue
		}
		r, s := &a.Args[j], &b.Args[j]
		if rows == 0 {
			rows = (1 + m.IntN(r.Rows/m.RowUnit-1)) * m.RowUnit
		}
		r.Rows, s.Rows, s.Off = rows, s.Rows-rows, s.Off+rows*s.Stride
	}
	b.Attr.Acc = b.Attr.Acc || a.Op.Info().Kind == graph.TokenSum
	if a.Op.Info().Position {
		b.Attr.Row0 += rows
	}
}
