package gemm

import (
	"bytes"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/kernel/gemm/internal/emit"
)

// TestGenerated compares the committed assembly with what the generator makes.
func TestGenerated(t *testing.T) {
	for name, want := range emit.Files() {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date\nhint: go generate ./kernel/gemm", name)
		}
	}
}
