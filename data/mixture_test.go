package data

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// mixture draws a few sources. All windows have one length, and their tokens show where they come from.
func mixture(t *rapid.T) (parts []Part) {
	sequence := rapid.IntRange(1, 4).Draw(t, "sequence")
	for range rapid.IntRange(1, 5).Draw(t, "sources") {
		w, err := numbered(rapid.IntRange(sequence+1, 300).Draw(t, "tokens")).Windows(Range{0, int64(sequence) + 1}, sequence)
		if err != nil {
			t.Fatal(err)
		}
		w.count = (w.tokens.count - 1) / int64(sequence)
		times := rapid.OneOf(rapid.Just(1.0), rapid.Float64Range(1e-3, 5), rapid.SampledFrom([]float64{0.5, 2, 1e-300, 100})).Draw(t, "times")
		parts = append(parts, Part{Windows: w, Times: times})
	}
	return parts
}

// sourceOf returns the source of a window of a mixture, and its number there.
func sourceOf(parts []Part, window int64) (int, int64) {
	for k, p := range parts {
		if window < p.Count() {
			return k, window
		}
		window -= p.Count()
	}
	panic("no such window")
}

// TestMixture: after any number of windows each source has had its due, to within half a window for each other
// source; at the end of every pass it has had exactly that. A source is read as it is read alone: in each pass
// over it each window once.
func TestMixture(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		parts := mixture(t)
		w := Mix(parts...)
		seed := rapid.Uint64().Draw(t, "seed")
		s, err := NewSampler(w, seed, 1)
		if err != nil {
			t.Fatal(err)
		}
		var due []float64
		alone := make([]*Sampler, len(parts))
		all, pass := int64(0), 0.0
		for k, p := range parts {
			all += p.Count()
			due = append(due, math.Max(1, math.Round(p.Times*float64(p.Count()))))
			pass += due[k]
			if alone[k], err = NewSampler(p.Windows, seed+uint64(k), 1); err != nil {
				t.Fatal(err)
			}
		}
		if w.Count() != all || float64(w.Pass()) != pass {
			t.Fatalf("%d windows, %d in a pass, want %d and %v", w.Count(), w.Pass(), all, pass)
		}
		begin := rapid.Int64Range(0, 3).Draw(t, "epoch") // passes before
		if err := s.Seek(Cursor{Epoch: begin}); err != nil {
			t.Fatal(err)
		}
		for k := range alone {
			alone[k].Skip(begin * int64(due[k]))
		}
		had, got, want := make([]float64, len(parts)), make([]int32, w.Sequence()+1), make([]int32, w.Sequence()+1)
		for n := 1.0; n <= math.Min(2*pass, 3000); n++ {
			window := s.Window()
			k, own := sourceOf(parts, window)
			if expect := alone[k].Window(); own != expect {
				t.Fatalf("window %v is %d of source %d, alone it is %d", n, own, k, expect)
			}
			if r := w.Stretches(window); !slices.Equal(r, parts[k].Stretches(own)) {
				t.Fatalf("window %d is said to be %v", window, r)
			}
			s.Fill(got, 1)
			if alone[k].Fill(want, 1); !slices.Equal(got, want) {
				t.Fatalf("window %v of source %d is %v, alone it is %v", n, k, got, want)
			}
			had[k]++
			for k := range parts {
				off := math.Abs(had[k] - n*due[k]/pass)
				if off > float64(len(parts)-1)/2+1e-9 || math.Mod(n, pass) == 0 && off != 0 {
					t.Fatalf("after %v windows source %d had %v of %v in %v: %v off", n, k, had[k], due[k], pass, off)
				}
			}
		}
	})
}

// TestMixtureResumes: from any cursor, saved as JSON, the stream continues as if never interrupted, and
// skipping is equivalent to filling.
func TestMixtureResumes(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		w := Mix(mixture(t)...)
		seed := rapid.Uint64().Draw(t, "seed")
		open := func() *Sampler {
			s, err := NewSampler(w, seed, 1)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		one, skipped, resumed := open(), open(), open()
		row := make([]int32, w.Sequence()+1)
		before := rapid.IntRange(0, 2000).Draw(t, "before")
		for range before {
			one.Fill(row, 1)
		}
		skipped.Skip(int64(before))
		saved, _ := json.Marshal(one.Cursor())
		var cursor Cursor
		if err := json.Unmarshal(saved, &cursor); err != nil {
			t.Fatal(err)
		}
		resumed.Skip(rapid.Int64Range(0, 500).Draw(t, "elsewhere")) // what it has read does not matter
		resumed.Fill(row, 1)
		if err := resumed.Seek(cursor); err != nil || skipped.Cursor() != cursor {
			t.Fatalf("%v, skipped to %+v, filled to %s", err, skipped.Cursor(), saved)
		}
		for range rapid.IntRange(1, 200).Draw(t, "after") {
			if a, b, c := one.Window(), resumed.Window(), skipped.Window(); a != b || a != c {
				t.Fatalf("from %s on: windows %d, %d and %d", saved, a, b, c)
			}
			for _, s := range []*Sampler{one, resumed, skipped} {
				s.Skip(1)
			}
		}
	})
}

// TestMixtureOrder: the order must never change, since a cursor is a position in it. The first is the example of mixture.go.
func TestMixtureOrder(t *testing.T) {
	for _, golden := range []struct {
		counts []int
		times  []float64
		want   string
	}{
		{[]int{6, 2}, []float64{1, 2}, "ababaababa"},
		{[]int{6, 2}, []float64{1, 0.5}, "aaabaaa"},
		{[]int{10, 4, 7}, []float64{1, 2, 0.3}, "ababacababababacabab"},
		{[]int{3}, []float64{2}, "aaaaaa"},
	} {
		var parts []Part
		for k, n := range golden.counts {
			w, err := numbered(n+1).Windows(Range{0, int64(n) + 1}, 1)
			must(t, err)
			parts = append(parts, Part{Windows: w, Times: golden.times[k]})
		}
		s, err := NewSampler(Mix(parts...), 1, 1)
		must(t, err)
		got := ""
		for s.Cursor().Epoch == 0 {
			k, _ := sourceOf(parts, s.Window())
			got += string(rune('a' + k))
			s.Skip(1)
		}
		if got != golden.want {
			t.Errorf("%v times %v: %s, want %s", golden.counts, golden.times, got, golden.want)
		}
	}
}

// TestPlainOrder: a single source that is read once per pass has the order that it had before there were mixtures.
func TestPlainOrder(t *testing.T) {
	w, err := numbered(1000).Windows(Range{0, 1000}, 7)
	must(t, err)
	s, err := NewSampler(Mix(Part{Windows: w, Times: 1}), 42, 1)
	must(t, err)
	for epoch := range int64(3) {
		order := newPermutation(w.Count(), 42, epoch)
		for i := range w.Count() {
			if got := s.Window(); got != order.at(i) || s.Cursor() != (Cursor{epoch, i}) {
				t.Fatalf("at %+v window %d, want %d", s.Cursor(), got, order.at(i))
			}
			s.Skip(1)
		}
	}
}

// TestFarCursor: no number of passes makes numbers overflow.
func TestFarCursor(t *testing.T) {
	w, err := numbered(100).Windows(Range{0, 100}, 3)
	must(t, err)
	s, err := NewSampler(Mix(Part{Windows: w, Times: 1000}, Part{Windows: w, Times: 1}), 1, 1)
	must(t, err)
	if err := s.Seek(Cursor{Epoch: math.MaxInt64/s.pass - 1, Index: s.pass - 1}); err != nil || s.Window() < 0 || s.Window() >= 66 {
		t.Errorf("the last one: %v, window %d", err, s.Window())
	}
	for _, bad := range []Cursor{{math.MaxInt64, 0}, {math.MaxInt64 / s.pass, 0}, {0, s.pass}} {
		if err := s.Seek(bad); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestDivide: a file is left to the last corpus that has it, however its path is written, and none is lost.
func TestDivide(t *testing.T) {
	dir := write(t, map[string]string{"a.txt": "a", "b.txt": "bb", "c.txt": "", "d.txt": "d"})
	t.Chdir(dir)
	var list []*Corpus
	for _, patterns := range [][]string{{"[abc].txt", "d.txt"}, {dir + "/[bc].txt"}, {"d.txt", "c.txt"}} {
		c, err := OpenCorpus(patterns...)
		must(t, err)
		list = append(list, c)
	}
	rest, gone := Divide(list)
	var got []string
	for _, c := range rest {
		text := fmt.Sprint(c.Bytes())
		for _, f := range c.Files() {
			text += " " + filepath.Base(f.Path)
		}
		got = append(got, text)
	}
	if want := []string{"1 a.txt", "2 b.txt", "1 c.txt d.txt"}; !slices.Equal(got, want) || fmt.Sprint(gone) != "[[0 1 2] [0 0 1] [0 0 0]]" {
		t.Errorf("%q, want %q; gone are %v", got, want, gone)
	}
	if both := Union(rest...); len(both.Files()) != 4 || both.Bytes() != 4 || !slices.IsSortedFunc(both.Files(), func(a, b File) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("together %v", both)
	}
}

// TestStatsAdd: every number of what was found is added.
func TestStatsAdd(t *testing.T) {
	var one Stats
	var fill func(v reflect.Value)
	n := int64(0)
	fill = func(v reflect.Value) {
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Struct:
				fill(f)
			case reflect.Int64:
				n++
				f.SetInt(n)
			}
		}
	}
	fill(reflect.ValueOf(&one).Elem())
	first := Stats{FirstInvalid: "x"}
	first.Add(one)
	first.FirstInvalid = ""
	if first != one || n < 20 {
		t.Errorf("%+v and nothing are %+v", one, first)
	}
	sum := one
	sum.Add(one)
	if got, want := sum.Documents(), 2*one.Documents(); got != want || sum.InvalidFiles != 2*one.InvalidFiles {
		t.Errorf("twice %+v are %+v", one, sum)
	}
}
