package session

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// TestPieces: a parameter that is loaded in pieces is what it is when it is drawn whole, on one rank and among two; and nothing
// larger than a piece is asked for.
func TestPieces(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	m := *f.graph.Model
	m.Vocab, f.weights = (pieceElems+pieceElems/8)/m.Width, nil
	f.rebuild(t, &m)
	two := plan.Plain(f.graph, 4)
	f.amongRanks(rand.New(rand.NewPCG(testkit.Seed(t), 3)), two, 2)
	for _, pl := range []*plan.Plan{plan.Plain(f.graph, 1), two} {
		s, pieces := f.openRanks(t, pl, lower.Train), map[string]int{}
		check(t, s.Load(func(p model.Param, first int, dst []float32) error {
			if pieces[p.Name]++; len(dst) > pieceElems {
				t.Errorf("%d elements of %s are asked for at once", len(dst), p.Name)
			}
			Initial(p, 9, first, dst)
			return nil
		}))
		for i, p := range f.graph.Params {
			got, want := make([]float32, p.Elems()), make([]float32, p.Elems())
			check(t, s.Read(i, optimizer.Weights, got))
			Initial(p, 9, 0, want)
			if !slices.Equal(got, want) {
				t.Errorf("%d ranks: %s, loaded in pieces of %d, is another", pl.Ranks, p.Name, pieceElems)
			}
			if n := (len(want) + pieceElems - 1) / pieceElems; pieces[p.Name] != n {
				t.Errorf("%s is loaded in %d pieces, not %d", p.Name, pieces[p.Name], n)
			}
		}
	}
}
