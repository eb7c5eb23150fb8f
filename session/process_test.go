package session

import (
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model/family"
)

// TestProcessBytes: the largest parameter can be held twice in fp32, beside all else.
func TestProcessBytes(t *testing.T) {
	m, err := family.Known("llama-3-8b")
	if err != nil {
		t.Fatal(err)
	}
	g, err := graph.Build(m, 128, graph.BF16)
	if err != nil {
		t.Fatal(err)
	}
	if got, least := ProcessBytes(g), int64(processBase+2*4*128256*4096); got < least || got > least+64<<20 {
		t.Errorf("%d bytes, of which the embedding takes %d", got, least-processBase)
	}
}
