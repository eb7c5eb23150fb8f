package alloc

// Wheels
//
// A wheel is the smallest way to cut a rectangle so that no two pieces make a
// rectangle: four pieces around a centre.
//
//	l t t t
//	l c c r     the left piece is as tall as top and centre, and dies where these
//	l c c r     are born; the right one as bottom and centre, and is born where
//	b b b r     these die; left and bottom are born together, right and top die
//
// Upside down it turns the other way, which is equally valid.
//
// So many matching edges are hardly ever accidental: wheels are glued before
// other doubtful joints.

// wheelRivals is the number of pieces considered for each place in a wheel.
const wheelRivals = 6

// The places of a wheel's pieces in joint.of.
const (
	wheelLeft = iota
	wheelTop
	wheelCentre
	wheelBottom
	wheelRight
)

// offerWheels pushes the wheels that piece i could be part of, in any place.
func (g *gluing) offerWheels(i int32) {
	p := &g.pieces[i]
	some := func(list []int32) []int32 { return atMost(list, wheelRivals) }
	around := func(c, lo int32) { // c: the centre; lo: where left and bottom are born
		for _, l := range some(g.died[g.pieces[c].lo]) {
			if g.pieces[l].lo == lo {
				g.offerWheel(l, c)
			}
		}
	}
	for _, c := range some(g.born[p.hi]) { // i is left
		g.offerWheel(i, c)
	}
	for _, l := range some(g.died[p.lo]) { // centre, top
		g.offerWheel(l, i)
		for _, c := range some(g.starts[edge{p.lo, g.pieces[l].size - p.size}]) {
			g.offerWheel(l, c)
		}
	}
	for _, r := range some(g.born[p.hi]) { // bottom
		for _, c := range some(g.ends[edge{p.hi, g.pieces[r].size - p.size}]) {
			around(c, p.lo)
		}
	}
	for _, c := range some(g.died[p.lo]) { // right
		for _, b := range some(g.ends[edge{p.lo, p.size - g.pieces[c].size}]) {
			around(c, g.pieces[b].lo)
		}
	}
}

// offerWheel pushes the wheels with this left piece and this centre.
func (g *gluing) offerWheel(left, centre int32) {
	l, c := &g.pieces[left], &g.pieces[centre]
	for _, bottom := range atMost(g.spans[[2]int32{l.lo, c.hi}], wheelRivals) {
		for _, right := range atMost(g.starts[edge{c.hi, g.pieces[bottom].size + c.size}], wheelRivals) {
			for _, top := range atMost(g.spans[[2]int32{c.lo, g.pieces[right].hi}], wheelRivals) {
				if g.pieces[top].size+c.size == l.size {
					score := max(g.rarityAt(c.lo), g.rarityAt(c.hi)) + 2*glueConfirmed
					g.push(joint{score, wheel, [5]int32{left, top, centre, bottom, right}})
				}
			}
		}
	}
}

// wheelPiece returns the piece that a wheel makes, without its alignment.
func (g *gluing) wheelPiece(of [5]int32) piece {
	bottom, right := &g.pieces[of[wheelBottom]], &g.pieces[of[wheelRight]]
	return piece{lo: bottom.lo, hi: right.hi, size: right.size + g.pieces[of[wheelTop]].size, parts: []part{
		{of[wheelBottom], 0}, {of[wheelRight], 0}, {of[wheelLeft], bottom.size}, {of[wheelCentre], bottom.size}, {of[wheelTop], right.size}}}
}
