package alloc

// Seams
//
// Where two pieces abut, a third of the same size may belong there instead. Then
// neither it nor its true partner, which is elsewhere, fits anywhere, and breaking
// neighbours does not bring the four together. So seams are recorded by moment and
// size, and seams that are alike are parted together, however deep they lie in
// larger pieces.
//
// Example: a and b of size 1 die when c and d of size 1 are born, and a was
// glued to d. Then a-d fits nowhere, nor does the piece that contains b-c.
// Parting both makes a-c and b-d as likely as the old pairs.

const (
	seamRivals = 4   // most seams parted at once
	seamDepth  = 100 // most inner pieces whose seams are examined, outermost first
)

// seamOf returns where the two parts of piece i abut; ok is false if they do not.
func (g *gluing) seamOf(i int32) (e edge, ok bool) {
	p := &g.pieces[i]
	if len(p.parts) != 2 {
		return edge{}, false
	}
	right := &g.pieces[p.parts[1].piece]
	return edge{right.lo, right.size}, right.lo > p.lo
}

// unbrokenAt lists the pieces glued at a seam there that are not broken.
func (g *gluing) unbrokenAt(e edge) (alive []int32) {
	for _, i := range g.seams[e] {
		if g.at[i] >= 0 || g.owner[i] >= 0 {
			alive = append(alive, i)
		}
	}
	return alive
}

// breakRivalSeams breaks seams that compete with an edge of whole piece i, or with a seam
// inside it. It reports false if there are none.
func (g *gluing) breakRivalSeams(i int32) bool {
	var rivals [][]int32
	p := &g.pieces[i]
	for _, t := range []int32{p.lo, p.hi} {
		if alive := g.unbrokenAt(edge{t, p.size}); len(alive) > 0 {
			rivals = append(rivals, alive)
		}
	}
	for k, inner := 0, []int32{i}; k < min(len(inner), seamDepth); k++ {
		if e, ok := g.seamOf(inner[k]); ok {
			if alive := g.unbrokenAt(e); len(alive) > 1 {
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
	for _, i := range atMost(some, seamRivals) {
		g.breakOut(i)
	}
	return true
}

// breakOut breaks piece i and every piece that contains it, unless already broken.
func (g *gluing) breakOut(i int32) {
	if g.owner[i] >= 0 {
		g.breakOut(g.owner[i])
	}
	if g.at[i] >= 0 {
		g.removePiece(i)
		for _, q := range g.pieces[i].parts {
			g.addPiece(q.piece)
		}
	}
}
