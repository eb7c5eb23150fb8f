package generate

import (
	"math/rand/v2"

	"github.com/athanor-llm/athanor/alloc"
)

// A piece is part of the rectangle being cut up.
type piece struct{ lower, upper, bottom, top int64 }

// Guillotine cuts the rectangle steps x capacity into n buffers by cuts from
// edge to edge of a piece. The buffers fill the rectangle, so the optimum is
// exactly capacity, without a byte of slack. Needs n <= steps*capacity.
func Guillotine(rng *rand.Rand, n int, steps, capacity int64) alloc.Problem {
	pieces := []piece{{0, steps, 0, capacity}}
	for len(pieces) < n {
		i := larger(rng, pieces)
		q := pieces[i]
		wide := float64(q.upper-q.lower)/float64(steps) > float64(q.top-q.bottom)/float64(capacity)
		if rng.IntN(4) == 0 {
			wide = !wide
		}
		pieces = cut(rng, pieces, i, wide)
	}
	return filled(rng, pieces, capacity)
}

// larger picks the largest of a few pieces, so that they stay of similar area.
func larger(rng *rand.Rand, pieces []piece) int {
	i := rng.IntN(len(pieces))
	for range 3 {
		j := rng.IntN(len(pieces))
		a, b := pieces[i], pieces[j]
		if float64(b.upper-b.lower)*float64(b.top-b.bottom) > float64(a.upper-a.lower)*float64(a.top-a.bottom) {
			i = j
		}
	}
	return i
}

// cut cuts piece i at a random moment if moment is set and the piece is wide enough,
// else at a random address; a piece that is too thin stays whole.
func cut(rng *rand.Rand, pieces []piece, i int, moment bool) []piece {
	q := pieces[i]
	switch {
	case moment && q.upper-q.lower > 1:
		at := q.lower + 1 + rng.Int64N(q.upper-q.lower-1)
		pieces[i].upper = at
		pieces = append(pieces, piece{at, q.upper, q.bottom, q.top})
	case q.top-q.bottom > 1:
		at := q.bottom + 1 + rng.Int64N(q.top-q.bottom-1)
		pieces[i].top = at
		pieces = append(pieces, piece{q.lower, q.upper, at, q.top})
	}
	return pieces
}

// filled turns the pieces into buffers, in random order.
func filled(rng *rand.Rand, pieces []piece, capacity int64) alloc.Problem {
	rng.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	p := alloc.Problem{Capacity: capacity}
	for i, q := range pieces {
		p.Buffers = append(p.Buffers, buffer(i, q.lower, q.upper, q.top-q.bottom))
	}
	return p
}

// Pinwheel cuts the rectangle steps x capacity into n buffers, or a few more,
// into pinwheels: five pieces, no two of which make a rectangle. Pieces too thin
// for one are cut in two. The optimum is exactly capacity, without a byte of
// slack. Needs n <= steps*capacity.
func Pinwheel(rng *rand.Rand, n int, steps, capacity int64) alloc.Problem {
	pieces := []piece{{0, steps, 0, capacity}}
	for len(pieces) < n {
		i := larger(rng, pieces)
		q := pieces[i]
		w, h := q.upper-q.lower, q.top-q.bottom
		if w < 3 || h < 3 {
			pieces = cut(rng, pieces, i, w > 1 && (h < 2 || w > h))
			continue
		}
		a, c := innerPoints(rng, q.lower, q.upper)
		b, d := innerPoints(rng, q.bottom, q.top)
		pieces[i] = piece{q.lower, c, q.bottom, b}
		pieces = append(pieces, piece{c, q.upper, q.bottom, d}, piece{a, q.upper, d, q.top}, piece{q.lower, a, b, q.top}, piece{a, c, b, d})
	}
	return filled(rng, pieces, capacity)
}

// innerPoints returns two different inner points of (lo, hi), in order.
func innerPoints(rng *rand.Rand, lo, hi int64) (a, b int64) {
	a, b = lo+1+rng.Int64N(hi-lo-1), lo+1+rng.Int64N(hi-lo-2)
	if b >= a {
		b++
	}
	return min(a, b), max(a, b)
}
