package verify

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// What all_to_all means. Of n members that share a sequence of 2n chunks, member k has the rows of chunks k and 2n-1-k. One operand has
// these rows, of as many groups of columns as there are members; the other has all rows, of a group of columns. Its chunk j is that of
// member j or 2n-1-j, the first or the second in that one's rows. A source with the rows may have fewer groups, g that divide n: then member k
// takes group k*g/n, as its neighbours do.

// checkCrossing checks that the operands of all members have the same extents and atoms, and consist of equal parts.
func (rs *ranks) checkCrossing(list []place) error {
	for _, at := range list {
		for j := range 2 {
			if err := rs.checkAlike(at, j, rs.region(at, j), list[0], j, rs.region(list[0], j)); err != nil {
				return err
			}
		}
		n := len(list)
		rows, columns := rs.region(at, graph.AllToAllSrc), rs.region(at, graph.AllToAllDst)
		from, to := graph.AllToAllSrc, graph.AllToAllDst
		if columns.Rows != n*rows.Rows {
			rows, columns, from, to = columns, rows, to, from
		}
		groups := rows.Cols / columns.Cols
		if columns.Rows != n*rows.Rows || rows.Cols != groups*columns.Cols || groups != n && (groups == 0 || n%groups != 0 || from != graph.AllToAllSrc) {
			return rs.fault(at, "members have equal parts", "the operands of ranks %v are %d x %d and %d x %d", rs.instr(at).Peers, rows.Rows, rows.Cols, columns.Rows, columns.Cols)
		}
		for g := range groups {
			part := rows
			part.Off, part.Cols = rows.Off+g*columns.Cols, columns.Cols
			if err := rs.checkChunks(at, from, part, to, columns); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkChunks checks that each half of a member's rows of a group of columns has the atoms of each chunk of all rows.
func (rs *ranks) checkChunks(at place, from int, rows program.Region, to int, columns program.Region) error {
	p, h := rs.ps[at.rank], rows.Rows/2
	half := func(r program.Region, k int) program.Region {
		r.Off, r.Rows = r.Off+k*h*r.Stride, h
		return r
	}
	for k := range 2 {
		if _, why := rs.layouts[at.rank].resolve(p, half(rows, k)); why != "" {
			return rs.of(int(at.rank), operandFault(p, int(at.instr), from, "cut it where the parts end", "has a part that %s", why))
		}
	}
	for k := range columns.Rows / h {
		if err := rs.checkAlike(at, to, half(columns, k), at, from, half(rows, k%2)); err != nil {
			return err
		}
	}
	return nil
}

// cross moves what each member has of each other's.
func (xs *executions) cross(list []place) error {
	n := int32(len(list))
	for from := range n {
		src := xs.box(list[from], graph.AllToAllSrc)
		for to := range n {
			dst := xs.box(list[to], graph.AllToAllDst)
			back := dst.blocks < src.blocks
			rows, columns, of, group := src, dst, from, to
			if back {
				rows, columns, of, group = dst, src, to, from
			}
			if !back {
				group = group * (rows.bands / columns.bands) / n
			}
			h := rows.blocks / 2
			for k, chunk := range [2]int32{of, 2*n - 1 - of} {
				r := box{rows.at(int32(k)*h, group*columns.bands), rows.step, h, columns.bands}
				c := box{columns.at(chunk*h, 0), columns.step, h, columns.bands}
				if back {
					r, c = c, r
				}
				if !xs.on[list[to].rank].take(c, xs.on[list[from].rank], r) {
					return xs.unread(list[from], graph.AllToAllSrc)
				}
			}
		}
	}
	return nil
}
