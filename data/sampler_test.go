package data

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// An order is a permutation; other epochs and seeds have other ones.
func TestPermutation(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 3000).Draw(t, "n")
		seed, epoch := rapid.Uint64().Draw(t, "seed"), rapid.Int64Range(0, 1<<40).Draw(t, "epoch")
		p := newPermutation(n, seed, epoch)
		seen := make([]bool, n)
		for i := range n {
			at := p.at(i)
			if at < 0 || at >= n || seen[at] {
				t.Fatalf("place %d: %d, twice or outside 0..%d", i, at, n-1)
			}
			seen[at] = true
		}
		if n < 100 {
			return
		}
		next, other := newPermutation(n, seed, epoch+1), newPermutation(n, seed+1, epoch)
		same, sameSeed := 0, 0
		for i := range n {
			if p.at(i) == next.at(i) {
				same++
			}
			if p.at(i) == other.at(i) {
				sameSeed++
			}
		}
		if same > 20 || sameSeed > 20 { // one is expected of independent orders
			t.Fatalf("%d and %d of %d places are the same in another epoch and seed", same, sameSeed, n)
		}
	})
}

// The order must never change: a checkpoint's cursor is a position in it. The split of
// the files into training and validation depends on it too.
func TestOrderIsForever(t *testing.T) {
	for _, golden := range []struct {
		n     int64
		seed  uint64
		epoch int64
		want  []int64
	}{
		{10, 0, 0, []int64{1, 0, 5, 8, 3, 4, 2, 9, 7, 6}},
		{1000003, 42, 7, []int64{442949, 253515, 26991, 453261, 77744, 247898, 550841, 716426, 321533, 709265}},
		{1 << 40, 1, 1, []int64{834754253207, 1003727704826, 749085204397, 264423835984, 514180931917,
			256140808816, 373303489744, 833992312423, 704973696594, 652467587083}},
	} {
		p := newPermutation(golden.n, golden.seed, golden.epoch)
		var got []int64
		for i := range int64(10) {
			got = append(got, p.at(i))
		}
		if !slices.Equal(got, golden.want) {
			t.Errorf("n %d, seed %d, epoch %d: %v, want %v", golden.n, golden.seed, golden.epoch, got, golden.want)
		}
	}
}

// The order has no trend: over many epochs every window is as often early as late.
func TestPermutationIsFair(t *testing.T) {
	const n, epochs = 100, 4000
	sum := make([]float64, n)
	var cells [10][10]float64 // tenth of the place by tenth of the window
	for epoch := range int64(epochs) {
		p := newPermutation(n, 7, epoch)
		for i := range int64(n) {
			sum[p.at(i)] += float64(i)
			cells[i/10][p.at(i)/10]++
		}
	}
	for window, s := range sum {
		// A uniform place has mean 49.5 and deviation 28.9; 5 deviations of the mean.
		if mean := s / epochs; math.Abs(mean-49.5) > 5*28.9/math.Sqrt(epochs) {
			t.Errorf("window %d comes at place %.1f on average", window, mean)
		}
	}
	chi2 := 0.0
	for _, row := range cells {
		for _, c := range row {
			chi2 += (c - n*epochs/100) * (c - n*epochs/100) / (n * epochs / 100)
		}
	}
	if chi2 > 150 { // 81 degrees of freedom: mean 81, deviation 13
		t.Errorf("places and windows depend on each other: chi squared %.0f", chi2)
	}
}

// numbered makes tokens that are their own index, so that a window shows where
// it comes from. Every 97th is the end of text.
func numbered(n int) *Tokens {
	t := &Tokens{header: header{width: 4, count: int64(n), vocabulary: n, endOfText: -1}}
	for i := range n {
		t.body = append(t.body, byte(i), byte(i>>8), byte(i>>16), byte(i>>24))
	}
	return t
}

// In an epoch every training token but the first is a target exactly once, and
// no validation token is ever seen.
func TestEpochVisitsAll(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		sequence := rapid.IntRange(1, 40).Draw(t, "sequence")
		n := rapid.IntRange(2*sequence+2, 2000).Draw(t, "tokens")
		tokens := numbered(n)
		tokens.endOfText = int32(rapid.IntRange(-1, n-1).Draw(t, "end"))
		train, validation, err := tokens.Split(rapid.Float64Range(0, 0.9).Draw(t, "held out"), sequence)
		if err != nil {
			t.Fatal(err)
		}
		if train.First != 0 || train.End != validation.First || validation.End != int64(n) ||
			validation.Len() <= int64(sequence) || train.Len() <= int64(sequence) {
			t.Fatalf("%v and %v of %d tokens", train, validation, n)
		}
		w, err := tokens.Windows(train, sequence)
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewSampler(w, rapid.Uint64().Draw(t, "seed"), 1)
		if err != nil {
			t.Fatal(err)
		}
		batch := make([]int32, sequence+1)
		for epoch := range int64(2) {
			target := make([]int, n)
			for range w.Count() {
				r := w.Stretches(s.Window())[0]
				if s.Cursor().Epoch != epoch {
					t.Fatalf("%+v in epoch %d", s.Cursor(), epoch)
				}
				s.Fill(batch, 1)
				if int64(batch[0]) != r.First || int64(batch[sequence]) != r.End-1 {
					t.Fatalf("tokens %v are said to be %v", batch, r)
				}
				for i, token := range batch {
					if int64(token) >= train.End || i > 0 && token != batch[i-1]+1 {
						t.Fatalf("window %v of the training tokens up to %d", batch, train.End)
					}
					if i > 0 {
						target[token]++
					}
				}
			}
			for token, times := range target {
				want := 0
				if token > 0 && int64(token) <= w.Count()*int64(sequence) {
					want = 1
				}
				if times != want {
					t.Fatalf("token %d was a target %d times, want %d", token, times, want)
				}
			}
			if left := train.Len() - 1 - w.Count()*int64(sequence); left < 0 || left >= int64(sequence) {
				t.Fatalf("%d tokens were left out", left)
			}
		}
	})
}

// From any cursor, saved as JSON, the stream continues as if never interrupted,
// whatever the batch sizes.
func TestResume(t *testing.T) {
	tokens := numbered(2000)
	testkit.Check(t, func(t *rapid.T) {
		sequence := rapid.IntRange(1, 300).Draw(t, "sequence")
		w, err := tokens.Windows(Range{0, 2000}, sequence)
		if err != nil {
			t.Fatal(err)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		one, _ := NewSampler(w, seed, 1)
		other, _ := NewSampler(w, seed, 1)
		before := rapid.IntRange(0, 5000).Draw(t, "before")
		rows := rapid.IntRange(1, 20).Draw(t, "rows")
		batch := make([]int32, sequence+1)
		for range before {
			one.Fill(batch, 1)
		}
		other.Skip(int64(before))
		saved, _ := json.Marshal(one.Cursor())
		if again, _ := json.Marshal(other.Cursor()); string(saved) != string(again) {
			t.Fatalf("skipped to %s, filled to %s", again, saved)
		}
		want := make([]int32, 0, rows*(sequence+1))
		for range rows {
			one.Fill(batch, 1)
			want = append(want, batch...)
		}
		resumed, _ := NewSampler(w, seed, 1)
		var cursor Cursor
		if err := json.Unmarshal(saved, &cursor); err != nil {
			t.Fatal(err)
		}
		if err := resumed.Seek(cursor); err != nil {
			t.Fatal(err)
		}
		got := make([]int32, len(want))
		resumed.Fill(got, rows)
		if !slices.Equal(got, want) || resumed.Cursor() != one.Cursor() {
			t.Fatalf("resumed at %s: another stream", saved)
		}
	})
}

// A document ends with its end-of-text token, also where that is marked.
func TestDocumentOf(t *testing.T) {
	tokens := &Tokens{header: header{width: 4, count: 6, endOfText: 9}}
	for _, id := range []int32{9, 1, Mark(9), inner(9), 2, 9} {
		tokens.body = binary.LittleEndian.AppendUint32(tokens.body, uint32(id))
	}
	for i, want := range []int64{0, 1, 1, 2, 2, 2, 3} {
		if got := tokens.Document(int64(i)); got != want {
			t.Errorf("before token %d, %d documents end, want %d", i, got, want)
		}
	}
}

// The cut between training and validation is at the end of a document.
func TestSplitAtDocument(t *testing.T) {
	tokens := numbered(1000)
	for end, want := range map[int32]int64{
		-1: 900, 899: 900, 898: 899, 850: 851, 800: 801, 799: 900, 950: 900, 5: 900,
	} {
		tokens.endOfText = end
		train, validation, err := tokens.Split(0.1, 10)
		must(t, err)
		if train.End != want || validation.First != want {
			t.Errorf("end of text at %d: cut at %d, want %d", end, train.End, want)
		}
	}
}

func TestTooSmall(t *testing.T) {
	tokens := numbered(100)
	if _, _, err := tokens.Split(0.01, 50); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("half a window each: %v", err)
	}
	for _, bad := range []float64{-0.1, 1, math.NaN(), math.Inf(1)} {
		if _, _, err := tokens.Split(bad, 10); err == nil {
			t.Errorf("held out %v", bad)
		}
	}
	for _, sequence := range []int{-1, 0, 100, math.MaxInt} {
		if _, err := tokens.Windows(tokens.All(), sequence); err == nil {
			t.Errorf("windows of %d", sequence)
		}
		if _, _, err := tokens.Split(0.1, sequence); err == nil {
			t.Errorf("split for windows of %d", sequence)
		}
	}
	for _, bad := range []Range{{-1, 50}, {0, 101}, {60, 50}} {
		if _, err := tokens.Windows(bad, 10); err == nil {
			t.Errorf("windows of %v", bad)
		}
	}
	w, err := tokens.Windows(tokens.All(), 10)
	must(t, err)
	if _, err := NewSampler(w, 0, 10); err == nil || !strings.Contains(err.Error(), "global_batch") {
		t.Errorf("9 windows for a batch of 10: %v", err)
	}
	s, err := NewSampler(w, 0, 9)
	must(t, err)
	for _, bad := range []Cursor{{-1, 0}, {0, -1}, {0, 9}} {
		if err := s.Seek(bad); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("seek to %+v: %v", bad, err)
		}
	}
}

func TestFillAllocatesNothing(t *testing.T) {
	w, err := numbered(10000).Windows(Range{0, 10000}, 64)
	must(t, err)
	s, err := NewSampler(w, 1, 8)
	must(t, err)
	batch := make([]int32, 8*65)
	if n := testing.AllocsPerRun(100, func() { s.Fill(batch, 8) }); n != 0 {
		t.Errorf("%v allocations in a call", n)
	}
}

func BenchmarkFill(b *testing.B) {
	w, err := numbered(1<<20).Windows(Range{0, 1 << 20}, 256)
	must(b, err)
	s, err := NewSampler(w, 1, 8)
	must(b, err)
	batch := make([]int32, 8*257)
	b.SetBytes(int64(4 * len(batch)))
	for b.Loop() {
		s.Fill(batch, 8)
	}
}
