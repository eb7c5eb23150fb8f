package model_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
)

// TestFromFileAt: head by head, in groups or paired, run by run, elements of files are where FromFile puts them, and the runs cover all of them.
func TestFromFileAt(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6)
		heads, half := n.Draw(t, "heads"), n.Draw(t, "half")
		p := model.Param{Cols: n.Draw(t, "columns")}
		switch rapid.IntRange(0, 2).Draw(t, "order") {
		case 0:
			p.Heads, p.Rows = heads, 3*heads*half
		case 1:
			p.Paired, p.Head, p.PairedLast = 2*half, 2*half+n.Draw(t, "others"), rapid.Bool().Draw(t, "last")
			p.Rows = heads * p.Head
		case 2:
			more := n.Draw(t, "more")
			p.Groups, p.Bands, p.Rows = heads, [4]model.Band{{At: 0, Rows: half}, {At: half, Rows: more}}, heads*(half+more)
		}
		file, ours := make([]float32, p.Elems()), make([]float32, p.Elems())
		for i := range file {
			file[i] = float32(i)
		}
		p.FromFile(ours, file)
		for i := 0; i < len(file); {
			at, n := p.FromFileAt(i)
			if n < 1 || !slices.Equal(file[i:i+n], ours[at:at+n]) {
				t.Fatalf("%+v: %d elements from %d on are not at %d", p, n, i, at)
			}
			i += n
		}
	})
}
