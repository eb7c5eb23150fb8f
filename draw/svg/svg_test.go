package svg

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// everything draws one of each kind, with names that would break XML if they were not escaped.
func everything(w io.Writer) error {
	p := New(w, Page{Width: 200, Height: 100.5, Size: 11, Paper: `"/><script>`})
	p.Box(Box{X: 1, Y: 2, W: 3, H: 4, Round: 1, Fill: "red", Stroke: "#333", Line: 0.1, Title: "<a>&\"b\x01\xff"})
	p.Box(Box{W: -1, H: -2})
	p.Label(Label{X: 5, Y: 6, Size: 12, Bold: true, Anchor: "end", Fill: "blue", Text: "</text>"})
	way := &Path{Stroke: "#000", Width: 2, Dash: "5 3", Fill: "none", Opacity: 0.5}
	p.Path(way.MoveTo(1, 1).LineTo(1.0/3, 2.0/3).HLineTo(-0.0001).VLineTo(1e6).ClosePath())
	return p.Close()
}

// TestPicture: a picture is well-formed whatever is in its names, says what was drawn, and its sizes are not negative.
func TestPicture(t *testing.T) {
	var b bytes.Buffer
	if err := everything(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	names := map[string]int{}
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		names[e.Name.Local]++
		for _, a := range e.Attr {
			if a.Name.Local == "width" && strings.HasPrefix(a.Value, "-") {
				t.Errorf("%s has a width of %s", e.Name.Local, a.Value)
			}
		}
	}
	if names["svg"] != 1 || names["rect"] != 3 || names["title"] != 1 || names["text"] != 1 || names["path"] != 1 || len(names) != 5 {
		t.Errorf("elements are %v", names)
	}
	for _, want := range []string{`viewBox="0 0 200 100.5"`, `d="M1 1L0.333 0.667H0V1000000Z"`, `>&lt;/text&gt;</text>`, `stroke-dasharray="5 3"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// TestFullDisk: an error of the writer is the picture's, wherever it occurs.
func TestFullDisk(t *testing.T) {
	var b bytes.Buffer
	if err := everything(&b); err != nil {
		t.Fatal(err)
	}
	for left := range b.Len() {
		if everything(&full{left}) == nil {
			t.Fatalf("no error on a disk with %d of %d bytes", left, b.Len())
		}
	}
}

// TestNumbers: pixels are rounded to thousandths and have no zeros that say nothing.
func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{0: "0", math.Copysign(0, -1): "0", -0.0004: "0", 1.5: "1.5", 2.0 / 3: "0.667", -12.3456: "-12.346", 1200: "1200"} {
		if got := number(x); got != want {
			t.Errorf("%g is written as %s, not %s", x, got, want)
		}
	}
}
