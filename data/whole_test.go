package data

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// TestWhole: every document that fits is in one window, all tokens are in the corpus's order, each but the first of a document
// that a window begins with is predicted once unless it is given, no two neighbours fit into one window, and the rest is given.
func TestWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const end = int32(7)
		sequence := rapid.IntRange(1, 12).Draw(t, "sequence")
		var ids []int32
		var ends []int64
		for range rapid.IntRange(1, 20).Draw(t, "documents") {
			for range rapid.IntRange(0, 30).Draw(t, "length") {
				id := int32(10 + len(ids)%1000)
				if rapid.IntRange(0, 3).Draw(t, "given") == 0 {
					id = Mark(id)
				}
				ids = append(ids, id)
			}
			ids = append(ids, end)
			ends = append(ends, int64(len(ids)))
		}
		if rapid.Bool().Draw(t, "open") { // a range may end within a document
			ids = append(ids, 10, 11)
			ends = append(ends, int64(len(ids)))
		}
		file := inMemory(ids, end)
		w, p, err := file.Whole(Range{0, int64(len(ids))}, sequence)
		if err != nil {
			if len(ids) > 2*len(ends) {
				t.Fatal(err)
			}
			return
		}
		fits := func(from int) (last int) { // the documents from one on that fit into a window
			begin := int64(0)
			if from > 0 {
				begin = ends[from-1]
			}
			for last = from; last < len(ends) && ends[last]-begin <= int64(sequence)+1; last++ {
			}
			return last
		}
		predicted, tokens, padding := make([]int, len(ids)), int64(0), int64(0)
		row := make([]int32, sequence+1)
		for i := range w.Count() {
			r := w.Tokens(i)
			if r.Len() < 2 || r.Len() > int64(sequence)+1 || i > 0 && r.First < w.Tokens(i-1).End-1 {
				t.Fatalf("window %d is %v", i, r)
			}
			w.Copy(row, i)
			for k, id := range row {
				at := r.First + int64(k)
				switch {
				case at >= r.End:
					if id != Mark(end) {
						t.Fatalf("window %d has %d behind its documents", i, id)
					}
					padding++
				case id != ids[at]:
					t.Fatalf("window %d, token %d: %d, in the corpus %d", i, k, id, ids[at])
				case k > 0:
					predicted[at]++
				}
			}
			tokens += r.Len()
			if i > 0 && r.First < w.Tokens(i-1).End {
				tokens--
			}
		}
		if padding != p.Padding || tokens != p.Tokens {
			t.Fatalf("%d tokens and %d of padding, said %+v", tokens, padding, p)
		}
		first := int64(0)
		cut := int64(0)
		for d, last := range ends {
			long := last-first > int64(sequence)+1
			if long {
				cut++
			}
			for at := first; at < last; at++ {
				most := 1
				if n := predicted[at]; n > most || n == 0 && at > first && last-first > 1 {
					t.Fatalf("token %d of document %d (%d to %d) is predicted %d times", at, d, first, last, n)
				}
			}
			if begins := starts(w, first); begins >= 0 && !long { // a window that begins with this document takes all that fit
				if got, want := w.Tokens(begins).End, ends[fits(d)-1]; got != want {
					t.Fatalf("window %d ends at %d, documents up to %d fit", begins, got, want)
				}
			}
			first = last
		}
		if cut != p.TooLong {
			t.Fatalf("%d documents are longer than a window, said %d", cut, p.TooLong)
		}
	})
}

// starts returns the window that begins at a token, or -1.
func starts(w Windows, at int64) int64 {
	for i := range w.Count() {
		if w.Tokens(i).First == at {
			return i
		}
	}
	return -1
}

// inMemory returns tokens that are in no file.
func inMemory(ids []int32, end int32) *Tokens {
	t := &Tokens{header: header{width: 4, count: int64(len(ids)), vocabulary: 1 << 20, endOfText: end}}
	for _, id := range ids {
		t.body = binary.LittleEndian.AppendUint32(t.body, uint32(id))
	}
	return t
}
