package pack_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
	"github.com/athanor-llm/athanor/lab/pack"
)

// solve fails the test unless the solution is valid.
func solve(t *testing.T, p alloc.Problem, opt alloc.Options) alloc.Solution {
	t.Helper()
	s, err := alloc.Pack(t.Context(), p, opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := generate.Validate(p, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.1048576.csv")
	if err != nil || len(files) != 6 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			p := readCase(t, name)
			p.Capacity = 1 << 20
			s := solve(t, p, alloc.Options{Nodes: 3_000_000, Workers: 2, Improve: pack.Improver(0)})
			t.Logf("%d buffers, height %d, %d nodes", len(p.Buffers), s.Height, s.Nodes)
		})
	}
	example := readCase(t, "testdata/example.12.csv")
	if s := solve(t, example, alloc.Options{}); s.Height != 12 || !s.Optimal {
		t.Errorf("example: %+v", s)
	}
}

func readCase(t testing.TB, name string) alloc.Problem {
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := pack.ReadCSV(f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
