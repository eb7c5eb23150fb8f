package session

import (
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model/family"
)

// TestProcessBytes: a piece of a parameter can be held twice in fp32, beside all else, and the embedding goes through memory in
// pieces; unless it has grown.
func TestProcessBytes(t *testing.T) {
	m, err := family.Known("llama-3-8b")
	if err != nil {
		t.Fatal(err)
	}
	g, err := graph.Build(m, 128, graph.BF16)
	if err != nil {
		t.Fatal(err)
	}
	if got, least := ProcessBytes(g), int64(processBase+2*4*pieceElems); got < least || got > least+64<<20 {
		t.Errorf("%d bytes, of which a piece takes %d", got, least-processBase)
	}
	g.Params[0].Grown = 1
	if got, least := ProcessBytes(g), int64(processBase+2*4*128256*4096); got < least || got > least+64<<20 {
		t.Errorf("%d bytes, of which the embedding takes %d", got, least-processBase)
	}
}
