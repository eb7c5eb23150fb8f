package pack_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
	"github.com/athanor-llm/athanor/lab/pack"
)

func TestReadCSVErrors(t *testing.T) {
	const head = "id,lower,upper,size\n"
	for text, want := range map[string]string{
		"":                                         "no header",
		"id,lower,upper\n":                         `"size" is missing`,
		"id,lower,upper,size,size\n":               "twice",
		"id,lower,upper,size,colour\n":             "unknown column",
		head + "a,0,1\n":                           "line 2: the line has 3 fields, the header 4",
		head + "a,0,1,x\n":                         "line 2: \"x\"",
		head + "a,0,1,1.5\n":                       "1.5",
		head + "a,0,1,99999999999999999999\n":      "63 bits",
		head + "a,0,1,-1\n":                        "size -1 is negative\nhint: give sizes",
		head + "a,0,1,5\n\na,1,2,5\n":              "line 4: id \"a\" is already on line 2",
		head + ",0,1,5\n":                          "empty id",
		head + "a,3,3,5\n":                         "lifetime [3, 3) is empty",
		head + "a,0,1,0\n":                         "not positive",
		head + "a,0,1,9223372036854775807\n":       "61 bits",
		head + "a,-9223372036854775808,1,1\n":      "63 bits\nhint: give times",
		head + strings.Repeat("a", 1<<17) + "\n":   "longer than",
		"id,lower,upper,size,offset\na,0,1,5,-3\n": "-3 is negative\nhint: leave an alignment or offset",
	} {
		_, err := pack.ReadCSV(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestCSVColumns(t *testing.T) {
	const text = "size,id,end,start,alignment,offset\n5,a,3,1,,\n6,b,4,2,8,16\n"
	want := []alloc.Buffer{{ID: "a", Lower: 1, Upper: 3, Size: 5, Fixed: alloc.Free}, {ID: "b", Lower: 2, Upper: 4, Size: 6, Align: 8, Fixed: 16}}
	for _, text := range []string{text, "\ufeff" + strings.ReplaceAll(text, "\n", "\r\n")} { // the latter from a spreadsheet
		p, err := pack.ReadCSV(strings.NewReader(text))
		if err != nil || !reflect.DeepEqual(p.Buffers, want) {
			t.Fatal(p, err)
		}
	}
}

// What is written with a solution reads back as the same solution, fixed.
func TestCSVRoundTrip(t *testing.T) {
	p := generate.Training{Layers: 2, Hidden: 10, Weights: 30, Transient: 3, Align: 4}.Problem(rand.New(rand.NewPCG(1, 1)))
	s := solve(t, p, alloc.Options{})
	var out bytes.Buffer
	if err := pack.WriteCSV(&out, p, &s); err != nil {
		t.Fatal(err)
	}
	q, err := pack.ReadCSV(&out)
	if err != nil {
		t.Fatal(err)
	}
	if again := solve(t, q, alloc.Options{}); !reflect.DeepEqual(again.Offsets, s.Offsets) {
		t.Error("offsets changed")
	}
}

func FuzzReadCSV(f *testing.F) {
	f.Add("id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\n")
	f.Add("id,lower,upper,size,alignment,offset\na,0,3,4,8,\nb,-5,9,4,,16\n")
	f.Add("id,start,end,size\n#c\nx,0,1,4611686018427387904\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := pack.ReadCSV(strings.NewReader(text))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := pack.WriteCSV(&out, p, nil); err != nil {
			t.Fatal(err)
		}
		again, err := pack.ReadCSV(&out)
		if err != nil {
			t.Fatalf("own output: %v", err)
		}
		for i := range again.Buffers {
			p.Buffers[i].Align, again.Buffers[i].Align = max(p.Buffers[i].Align, 1), max(again.Buffers[i].Align, 1)
		}
		if len(p.Buffers) > 0 && !reflect.DeepEqual(p, again) {
			t.Fatalf("%v became %v", p, again)
		}
		if len(p.Buffers) > 50 {
			return
		}
		s, err := alloc.Pack(context.Background(), p, alloc.Options{Nodes: 1000})
		if err == nil {
			if err := generate.Validate(p, s); err != nil {
				t.Fatal(err)
			}
		}
	})
}
