package watch

import "math"

// decimate chooses the points of a curve that a picture of so many columns of pixels needs, and returns their indexes,
// ascending. x is ascending but for absent values, and y may be shorter. Of each column of pixels it keeps the first and the last point, the
// least and the greatest, and the first that is not finite: lines drawn through these points cover the pixels that lines
// through all of them cover (M4: Jugel, Jerzak, Hackenbroich and Markl, "M4: A Visualization-Oriented Time Series Data
// Aggregation", VLDB 2014), so no spike is lost, however narrow. Points outside [from, to] are left out but for the
// nearest ones, to which lines lead. Absent values (NaN) are no points.
func decimate(x, y []float64, from, to float64, columns int) []int {
	n := min(len(x), len(y))
	width := (to - from) / float64(columns)
	var list []int
	b := bucket{column: -1}
	before, after := -1, -1
	for i := range n {
		switch {
		case math.IsNaN(y[i]), math.IsNaN(x[i]):
		case x[i] < from:
			before = i
		case x[i] > to:
			if after < 0 {
				after = i
			}
		default:
			c := 0
			if width > 0 {
				c = min(int((x[i]-from)/width), columns-1)
			}
			if c != b.column {
				list = b.appendTo(list)
				b = bucket{column: c, first: i, least: -1, greatest: -1, broken: -1}
			}
			b.add(i, y)
		}
		if after >= 0 {
			break
		}
	}
	list = b.appendTo(list)
	if before >= 0 {
		list = append([]int{before}, list...)
	}
	if after >= 0 {
		list = append(list, after)
	}
	return list
}

// bucket is what is kept of one column of pixels, as indexes; -1: none.
type bucket struct {
	column, first, last     int
	least, greatest, broken int
}

func (b *bucket) add(i int, y []float64) {
	b.last = i
	switch {
	case math.IsInf(y[i], 0):
		if b.broken < 0 {
			b.broken = i
		}
		return
	case b.least < 0:
		b.least, b.greatest = i, i
	}
	if y[i] < y[b.least] {
		b.least = i
	}
	if y[i] > y[b.greatest] {
		b.greatest = i
	}
}

// appendTo appends the kept points in order, each once.
func (b *bucket) appendTo(list []int) []int {
	if b.column < 0 {
		return list
	}
	points := [...]int{b.first, b.least, b.greatest, b.broken, b.last}
	for { // the next one, at most five times
		next := -1
		for _, p := range points {
			if p >= 0 && (len(list) == 0 || p > list[len(list)-1]) && (next < 0 || p < next) {
				next = p
			}
		}
		if next < 0 {
			return list
		}
		list = append(list, next)
	}
}

// smooth returns the exponential mean of y whose weights fall to a half over so many points. Absent values stay absent
// and weigh nothing; so do values that are not finite.
func smooth(y []float64, half float64) []float64 {
	keep := math.Exp2(-1 / half)
	out := make([]float64, len(y))
	sum, weight := 0.0, 0.0
	for i, v := range y {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			out[i] = v
			continue
		}
		sum, weight = keep*sum+v, keep*weight+1
		out[i] = sum / weight
	}
	return out
}
