package session

import (
	"testing"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model/family"
)

// TestRepeat: numbers repeat with their period, even where cores share the work.
func TestRepeat(t *testing.T) {
	for _, n := range []int{1, 3, 100} {
		for _, size := range []int{n, n + 1, 2*n + 1, 64 * n, 64*n + 1, 200*n + n/2} {
			dst := make([]float32, size)
			for i := range n {
				dst[i] = float32(i + 1)
			}
			repeat(dst, n)
			for i, x := range dst {
				if x != float32(i%n+1) {
					t.Fatalf("%d of %d with period %d is %v", i, size, n, x)
				}
			}
		}
	}
	repeat(nil, 0)
}

// TestTextOfDocuments: documents of the text that steps are timed on have the length
// that prices assume, even where random tokens are often the end of one.
func TestTextOfDocuments(t *testing.T) {
	const seq, length = 48, 20
	m, err := family.Known("llama-2-7b")
	check(t, err)
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab = 1, 8, 1, 1, 8, 8, 7
	g, err := graph.BuildDocuments(m, seq, graph.F32, &graph.Documents{End: 6, Length: length})
	check(t, err)
	b := StepBench{Graph: g, Sequences: 3}
	text := b.text()
	starts := make([]int32, len(text.Tokens))
	data.Starts(starts, text.Tokens, seq, 6)
	for i, start := range starts {
		if start != text.Starts[i] {
			t.Fatalf("the document of token %d begins at %d, not at %d", i, start, text.Starts[i])
		}
		if want := int32(i % seq / length * length); start != want {
			t.Fatalf("token %d is of a document from %d on, want %d", i, start, want)
		}
	}
}
