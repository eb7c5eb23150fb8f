package pack

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
)

// The picture is well-formed, shows every buffer once, and the conflict red.
func TestSVG(t *testing.T) {
	f, err := os.Open("../../alloc/testdata/example.12.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := alloc.ReadCSV(f)
	if err != nil {
		t.Fatal(err)
	}
	p.Buffers[0].ID = "<b\"1&>\x01\xff"
	s, err := alloc.Pack(t.Context(), p, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		s           *alloc.Solution
		conflict    []int
		titles, red int
	}{{&s, nil, 5, 0}, {&s, []int{1}, 5, 1}, {nil, []int{0, 2, 4}, 3, 3}, {nil, nil, 0, 0}} {
		var out bytes.Buffer
		if err := WriteSVG(&out, p, c.s, c.conflict); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if n := strings.Count(text, "<title>"); n != c.titles {
			t.Errorf("%d buffers drawn, want %d", n, c.titles)
		}
		if n := strings.Count(text, `fill="#e66"`); n != c.red {
			t.Errorf("%d in conflict, want %d", n, c.red)
		}
		for d := xml.NewDecoder(&out); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}
