package data

import (
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestWhole: every document that fits is whole in one window, longer ones are cut into parts that overlap by a
// token; each token but the first of a document is predicted once, unless it is given; attention within
// documents sees nothing else; the rest is given.
func TestWhole(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		const end = int32(7)
		sequence := rapid.IntRange(1, 12).Draw(t, "sequence")
		most := int64(sequence) + 1
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
			last := end
			if rapid.IntRange(0, 3).Draw(t, "end given") == 0 {
				last = Mark(end)
			}
			ids = append(ids, last)
			ends = append(ends, int64(len(ids)))
		}
		if rapid.Bool().Draw(t, "open") { // a range may end within a document
			ids = append(ids, 10, 11)
			ends = append(ends, int64(len(ids)))
		}
		file := inMemory(ids, end)
		from := rapid.Int64Range(0, ends[0]-1).Draw(t, "from") // or begin within one
		w, p, err := file.WholeDocuments(Range{from, int64(len(ids))}, sequence)
		if err != nil {
			if len(ids)-int(from) > 2*len(ends) {
				t.Fatal(err)
			}
			return
		}
		var wanted []Range
		first, cut, overlap := from, int64(0), int64(0)
		for _, last := range ends {
			if last-first > most {
				cut++
			}
			for ; last-first > most; first += most - 1 {
				wanted = append(wanted, Range{first, first + most})
				overlap++
			}
			if last-first > 1 {
				wanted = append(wanted, Range{first, last})
			}
			first = last
		}
		predicted, tokens, padding := make([]int, len(ids)), int64(0), int64(0)
		row, inputs, targets, begin := make([]int32, most), make([]int32, sequence), make([]int32, sequence), make([]int32, sequence)
		var all []Range
		for i := range w.Count() {
			w.Copy(row, i)
			Pairs(inputs, targets, row)
			Starts(begin, inputs, sequence, end)
			at := 0
			for n, r := range w.Stretches(i) {
				all = append(all, r.Range)
				tokens += r.Len()
				for k := range int(r.Len()) {
					here, is := r.First+int64(k), row[at+k]
					switch inside := r.First > 0 && unmarked(ids[r.First-1]) != end; {
					case k == 0 && n > 0 && inside && is != Mark(unmarked(ids[here])):
						t.Fatalf("window %d: %d behind other text is not given", i, is)
					case !(k == 0 && inside) && is != ids[here]:
						t.Fatalf("window %d, token %d: %d, in the corpus %d", i, at+k, is, ids[here])
					case at+k > 0 && !(k == 0 && inside):
						predicted[here]++
					}
					if at+k < sequence && begin[at+k] != int32(at) {
						t.Fatalf("window %d, token %d sees those from %d on, want %d", i, at+k, begin[at+k], at)
					}
				}
				at += int(r.Len())
			}
			for ; at < len(row); at++ {
				if row[at] != Mark(end) {
					t.Fatalf("window %d has %d behind its documents", i, row[at])
				}
				padding++
			}
		}
		slices.SortFunc(all, func(a, b Range) int { return int(a.First - b.First) })
		if !slices.Equal(all, wanted) {
			t.Fatalf("pieces %v, want %v", all, wanted)
		}
		if padding != p.Padding || tokens-overlap != p.Tokens || cut != p.TooLong {
			t.Fatalf("%d tokens, %d of padding, %d cut; said %+v", tokens-overlap, padding, cut, p)
		}
		if got, want := file.WholeLength(sequence), lengthOf(visible(w, end)/w.Count(), sequence); from == 0 && unmarked(ids[len(ids)-1]) == end && got != want {
			t.Fatalf("documents cost as those of %d tokens, counted %d", got, want)
		}
		first = from
		for d, last := range ends {
			for at := first; at < last; at++ {
				if n := predicted[at]; n > 1 || n == 0 && at > first && last-first > 1 {
					t.Fatalf("token %d of document %d (%d to %d) is predicted %d times", at, d, first, last, n)
				}
			}
			first = last
		}
	})
}

// inMemory returns tokens that are in no file.
func inMemory(ids []int32, end int32) *Tokens {
	t := &Tokens{header: header{width: 4, count: int64(len(ids)), vocabulary: 1 << 20, endOfText: end}}
	for _, id := range ids {
		t.body = binary.LittleEndian.AppendUint32(t.body, uint32(id))
	}
	return t
}

// visible counts the (query, visible key) pairs of all windows, the last token of each included.
func visible(w Windows, end int32) (n int64) {
	row := make([]int32, w.Sequence()+1)
	starts := make([]int32, len(row))
	for i := range w.Count() {
		w.Copy(row, i)
		for k := range row {
			row[k] = unmarked(row[k])
		}
		Starts(starts, row, len(row), end)
		for at, start := range starts {
			n += int64(at) - int64(start) + 1
		}
	}
	return n
}
