package optimizer

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
)

// TestTable: an operator's operands are those that its rule promises, by name and access, and names are unique.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for o := range NumOptimizers {
		r := o.Rule()
		if r.Name == "" || seen[r.Name] || len(r.Moments) > MostMoments {
			t.Errorf("optimizer %d: name %q, %d moments", o, r.Name, len(r.Moments))
		}
		seen[r.Name] = true
		if slices.ContainsFunc(r.Moments, func(k Kind) bool { return !k.Moment() }) {
			t.Errorf("%s keeps %v, of which not all are moments", r.Name, r.Moments)
		}
		want := []graph.ArgSpec{}
		for _, k := range r.State() {
			want = append(want, graph.ArgSpec{Name: k.String(), Access: graph.Update})
		}
		want = append(want, graph.ArgSpec{Name: "g"}, graph.ArgSpec{Name: "clip", Optional: true}, graph.ArgSpec{Name: "scalars"},
			graph.ArgSpec{Name: HalfWeights.String(), Access: graph.Write, Optional: true}, graph.ArgSpec{Name: LowerHalves.String(), Access: graph.Update, Optional: true})
		if !r.Elementwise {
			want = append(want, graph.ArgSpec{Name: "work", Access: graph.Write, Room: true})
		}
		have := slices.Clone(r.Op.Info().Args)
		if len(have) == 0 {
			t.Errorf("optimizer %d has no row in optimizer/optimizer.go, or its operator %v none in graph/op.go", o, r.Op)
			continue
		}
		if r.Elementwise && !r.Op.Info().Alike {
			t.Errorf("%s updates each element by itself, but its operator's row does not say Alike", r.Name)
		}
		if err := r.Op.CheckOperands(&graph.Attr{}, twice(r)); err == nil || !strings.Contains(fmt.Sprint(err), "p16") {
			t.Errorf("%s takes lower halves and a copy of the weights together: %v; hint: Rule: halved(...) in graph/op.go", r.Name, err)
		}
		for i := range have {
			have[i].Shape = graph.Shape{}
		}
		if !slices.Equal(have, want) {
			t.Errorf("%s has operands %+v, want %+v", r.Name, have, want)
			continue
		}
		for i, name := range map[int]string{r.GradientAt(): "g", r.ClipAt(): "clip", r.ScalarsAt(): "scalars", r.HalfWeightsAt(): "p16", r.LowerHalvesAt(): "rest"} {
			if have := r.Op.Info().Args[i].Name; have != name {
				t.Errorf("%s: operand %d is %s, not %s", r.Name, i, have, name)
			}
		}
		if Updating(r.Op) != r {
			t.Errorf("%s: another rule has the operator %v", r.Name, r.Op)
		}
		text, err := json.Marshal(o)
		var back Optimizer
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back != o || string(text) != `"`+r.Name+`"` {
			t.Errorf("%s is written as %s and read as %v: %v", r.Name, text, back, err)
		}
	}
	if Updating(graph.Linear) != nil {
		t.Error("a linear layer updates weights")
	}
	if _, err := Named("sgd?"); err == nil {
		t.Error("an unknown name is accepted")
	}
}

// TestGuide: the guide tells a user of each optimizer.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("../docs/guide.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if !strings.Contains(string(text), "\n| `"+name+"` |") {
			t.Errorf("docs/guide.md has no row for %s in the table of optimizers", name)
		}
	}
}

// twice returns the extents of an update that has both a copy of the weights and lower halves, which is one too many.
func twice(r *Rule) (list []graph.Dim) {
	of := func(t graph.DType) graph.Dim { return graph.Dim{DType: t, Rows: 2, Cols: 3} }
	for range r.State() {
		list = append(list, of(graph.F32))
	}
	scalars := graph.Dim{DType: graph.F32, Rows: 1, Cols: graph.NumScalars}
	list = append(list, of(graph.F32), graph.Dim{}, scalars, of(graph.BF16), of(graph.U16))
	if !r.Elementwise {
		list = append(list, graph.Dim{DType: graph.F32, Rows: 1, Cols: graph.MuonPlacesOf(2, 3).Len})
	}
	return list
}

// TestKinds: names are unique and read back.
func TestKinds(t *testing.T) {
	for k := range NumKinds {
		if back, err := KindNamed(k.String()); err != nil || back != k || k.Words() == "" {
			t.Errorf("kind %d is called %q, which is %v: %v", k, k, back, err)
		}
	}
	if _, err := KindNamed("q"); err == nil {
		t.Error("an unknown kind is accepted")
	}
}
