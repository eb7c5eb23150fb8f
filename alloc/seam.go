package alloc

// Seams
//
// Where two pieces abut, a third may be as tall, and belong there instead. It
// finds no partner then, and nor does what it belongs to, which is somewhere
// else: breaking neighbours does not bring the four together. So seams are
// remembered by moment and size, and those that are alike are parted at once,
// however deep they lie in larger pieces.
//
// Example: a and b of size 1 die when c and d of size 1 are born, and a was
// glued to d. Then a-d fits nowhere and b-c lies in something that does not
// either. Both are parted; a-c and b-d are as likely now as what was.

const (
	seamRivals = 4   // seams that are alike and parted at once, at most
	seamDepth  = 100 // pieces in a piece whose seams are looked at, the largest first
)

// seam tells where the two parts of piece i abut, if they do.
func (g *gluing) seam(i int32) (e edge, ok bool) {
	p := &g.pieces[i]
	if len(p.parts) != 2 {
		return edge{}, false
	}
	right := &g.pieces[p.parts[1].piece]
	return edge{right.lo, right.size}, right.lo > p.lo
}

// living lists the seams at an edge whose pieces are still glued.
func (g *gluing) living(e edge) (alive []int32) {
	for _, i := range g.seams[e] {
		if g.at[i] >= 0 || g.owner[i] >= 0 {
			alive = append(alive, i)
		}
	}
	return alive
}

// part parts the seams at an edge of whole piece i, or at one of its own seams
// that is like another. It reports false if there is none.
func (g *gluing) part(i int32) bool {
	var rivals [][]int32
	p := &g.pieces[i]
	for _, t := range []int32{p.lo, p.hi} {
		if alive := g.living(edge{t, p.size}); len(alive) > 0 {
			rivals = append(rivals, alive)
		}
	}
	for k, inner := 0, []int32{i}; k < min(len(inner), seamDepth); k++ {
		if e, ok := g.seam(inner[k]); ok {
			if alive := g.living(e); len(alive) > 1 {
				rivals = append(rivals, alive)
			}
		}
		for _, q := range g.pieces[inner[k]].parts {
			inner = append(inner, q.piece)
		}
	}
	if len(rivals) == 0 {
		return false
	}
	some := rivals[g.rng.IntN(len(rivals))]
	g.rng.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	for _, i := range few(some, seamRivals) {
		g.dig(i)
	}
	return true
}

// dig breaks piece i and all that it is part of, unless it is broken already.
func (g *gluing) dig(i int32) {
	if g.owner[i] >= 0 {
		g.dig(g.owner[i])
	}
	if g.at[i] >= 0 {
		g.leave(i)
		for _, q := range g.pieces[i].parts {
			g.enter(q.piece)
		}
	}
}
