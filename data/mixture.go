package data

import (
	"math"
	"math/bits"
)

// Mixtures: a corpus of several sources, some of which are read more often than others.
//
// Approach: a pass over the corpus reads each window of a source so many times, in the mean: of a source with w windows that is
// read t times, the nearest whole number of windows to t*w, at least one, is its part of every pass. The sources take turns by
// their parts alone: of the first n windows of a pass, the first source has its share of n, rounded, the second its share of
// those that are left, and so on. So after any number of steps each source has had its share up to half of a window for
// each of the other sources, batches are mixed alike, and which source is at a place takes no memory and no walk to it.
// Within its turns a source is read as if it were alone: in the shuffled order of its own first pass, then of its second,
// each window once in each of them, whatever passes over the corpus do.
//
// Example: a source with 6 windows, read once, and b with 2, read twice, are 10 windows a pass:
//
//	a b a b a a b a b a
//
// b's windows are read twice in that; read 0.5 times, one of them would be read in the first pass, the other in the second.
//
// Known weakness: proportions are those of windows, which whole documents and pairs fill up with padding. A small source that
// is read many times may come twice in a batch.

// Part is the windows of a source, and how often a pass reads them.
type Part struct {
	Windows
	Times float64 // more than 0
	turns int64   // windows of it in a pass
}

// Mix makes windows of several sources, of one length. They are numbered through, source after source. There is at least one.
func Mix(parts ...Part) Windows {
	w := Windows{sequence: parts[0].sequence}
	for _, p := range parts {
		p.turns = max(1, int64(math.Round(p.Times*float64(p.count))))
		w.parts = append(w.parts, p)
		w.count += p.count
	}
	return w
}

// Pass returns how many windows a pass over all reads.
func (w Windows) Pass() (n int64) {
	for _, p := range w.parts {
		n += p.turns
	}
	if w.parts == nil {
		n = w.count
	}
	return n
}

// Share returns what part of a pass is windows of a source that was mixed.
func (w Windows) Share(source int) float64 {
	return float64(w.parts[source].turns) / float64(w.Pass())
}

// locate returns the windows of the source that window i is of, and its number among them.
func (w Windows) locate(i int64) (Windows, int64) {
	for k := range w.parts {
		if n := w.parts[k].count; i >= n {
			i -= n
			continue
		}
		return w.parts[k].Windows, i
	}
	return w, i
}

// stream is the order in which the windows of a source are read.
type stream struct {
	first int64 // number of its first window in the mixture
	count int64
	turns int64 // in a pass over the corpus
	seed  uint64
	pass  int64 // passes over the source, before that of order
	order permutation
}

// streams returns those of windows, each at its start. The first, or only, source has the order that it has alone.
func (w Windows) streams(seed uint64) []stream {
	parts := w.parts
	if parts == nil {
		parts = []Part{{Windows: w, turns: w.count}}
	}
	list, first := make([]stream, len(parts)), int64(0)
	for k, p := range parts {
		own := seed + uint64(k)
		list[k] = stream{first: first, count: p.count, turns: p.turns, seed: own, order: newPermutation(p.count, own, 0)}
		first += p.count
	}
	return list
}

// at returns the window that a source reads after n others.
func (s *stream) at(n int64) int64 {
	if pass := n / s.count; pass != s.pass {
		s.pass, s.order = pass, newPermutation(s.count, s.seed, pass)
	}
	return s.first + s.order.at(n%s.count)
}

// turn returns which of some sources the window at a place of a pass is of, and how many windows of it the pass reads before.
// all is the windows of a pass.
func turn(list []stream, place, all int64) (source int, before int64) {
	last := len(list) - 1
	for k := range list[:last] {
		turns := list[k].turns
		before = share(place, turns, all)
		if share(place+1, turns, all) > before {
			return k, before
		}
		place, all = place-before, all-turns
	}
	return last, place
}

// share returns n*turns/all to the nearest whole number; n and turns are at most all.
func share(n, turns, all int64) int64 {
	high, low := bits.Mul64(uint64(n), uint64(turns))
	low, carry := bits.Add64(low, uint64(all)/2, 0)
	quotient, _ := bits.Div64(high+carry, low, uint64(all))
	return int64(quotient)
}
