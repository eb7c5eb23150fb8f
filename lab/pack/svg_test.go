package pack_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/lab/pack"
)

// The picture is well-formed, shows every buffer once, and the conflict red.
func TestSVG(t *testing.T) {
	p := readCase(t, "testdata/example.12.csv")
	p.Buffers[0].ID = "<b\"1&>\x01\xff"
	s := solve(t, p, alloc.Options{})
	for _, c := range []struct {
		s           *alloc.Solution
		conflict    []int
		titles, red int
	}{{&s, nil, 5, 0}, {&s, []int{1}, 5, 1}, {nil, []int{0, 2, 4}, 3, 3}, {nil, nil, 0, 0}} {
		var out bytes.Buffer
		if err := pack.WriteSVG(&out, p, c.s, c.conflict); err != nil {
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
