package data

import (
	"math"
	"math/bits"
)

// Mixtures: a corpus of several sources, some of which are read more often than others.
//
// Approach: a pass over the corpus reads each window of a source as often as the source asks for, on average: a
// source with w windows that is to be read t times has the whole number of windows nearest to t*w, at least
// one, in every pass. The sources take turns by these numbers alone: of the first n windows of a pass, the
// first source has its share of n, rounded, the second its share of the remaining ones, and so on. So after any
// number of steps each source has had its share to within half a window for each of the other sources, batches
// are mixed alike, and finding the source at a place takes no memory and no walk to it. Within its turns a
// source is read as if it were alone: in the shuffled order of its own first pass, then of its second, each
// window once in each of them, independently of passes over the corpus.
//
// Example: source a with 6 windows, read once, and b with 2, read twice, make 10 windows a pass:
//
//	a b a b a a b a b a
//
// b's windows are read twice here; if b were read 0.5 times, one of them would be in the first pass, the other in the second.
//
// Known weakness: proportions count windows, including the padding that follows whole documents and pairs. A
// window of a small source that is read many times may appear twice in a batch.

// Part is the windows of a source, and how often a pass reads them.
type Part struct {
	Windows
	Times float64 // more than 0
	turns int64   // windows of it in a pass
}

// Mix combines windows of several sources, at least one, all of one length. They are numbered consecutively, source by source.
func Mix(parts ...Part) Windows {
	w := Windows{sequence: parts[0].sequence}
	for _, p := range parts {
		p.turns = max(1, int64(math.Round(p.Times*float64(p.count))))
		w.parts = append(w.parts, p)
		w.count += p.count
	}
	return w
}

// Pass returns how many windows a pass over all sources reads.
func (w Windows) Pass() (n int64) {
	for _, p := range w.parts {
		n += p.turns
	}
	if w.parts == nil {
		n = w.count
	}
	return n
}

// Share returns the fraction of a pass that consists of windows of one mixed source.
func (w Windows) Share(source int) float64 {
	return float64(w.parts[source].turns) / float64(w.Pass())
}

// locate returns the windows of the source to which window i belongs, and its number among them.
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
	pass  int64 // passes over the source before the one that order is for
	order permutation
}

// streams returns the streams of all sources, each at its start. The first, or only, source has the same order as alone.
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

// turn returns the source of the window at a place in a pass, and how many windows of that source the pass
// reads before. all is the number of windows in a pass.
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
