package device

import (
	"fmt"

	"github.com/athanor-llm/athanor/graph"
)

// What members of an all_to_all give each other.
//
// A sequence of 2n chunks is shared by n members, of which k has chunks k and 2n-1-k (see graph.Runs). Its rows of all columns become
// all rows of its columns, or the other way around:
//
//	              rows of member k    columns of member k
//	member 0      0 3                 | |
//	member 1      1 2                   | |
//
// Rows may have fewer groups of columns than there are members, which then take one of them together with their neighbours. So each member gives each, itself too, two blocks: one of its first rows, and one of its second.

// Block is a part of a matrix.
type Block struct{ Row, Col, Rows, Cols int }

// Crossings returns what one member of an all_to_all gives another, as blocks of the giver's source and of the taker's destination. The
// call is that of any member: extents are the same for all.
func Crossings(c *Call, from, to int) (src, dst [2]Block) {
	x, y, n := c.Args[graph.AllToAllDst], c.Args[graph.AllToAllSrc], len(c.Peers)
	if x.Rows == n*y.Rows {
		groups := y.Cols / x.Cols
		return crossing(n, y.Rows/2, x.Cols, from, to*groups/n)
	}
	dst, src = crossing(n, x.Rows/2, y.Cols, to, from)
	return src, dst
}

// crossing returns the blocks that are both in the rows of one member, as it has them, and in the columns of another, as that one does, which
// are a group of the rows' columns.
func crossing(n, chunk, cols, ofRows, group int) (rows, columns [2]Block) {
	for i, k := range [2]int{ofRows, 2*n - 1 - ofRows} {
		rows[i] = Block{i * chunk, group * cols, chunk, cols}
		columns[i] = Block{k * chunk, 0, chunk, cols}
	}
	return rows, columns
}

// checkCrossing returns an error for an all_to_all whose operands do not fit its peers.
func checkCrossing(c *Call) error {
	x, y, n := c.Args[graph.AllToAllDst], c.Args[graph.AllToAllSrc], len(c.Peers)
	if x.Rows != n*y.Rows && y.Rows != n*x.Rows {
		return fmt.Errorf("%d rows become %d; hint: let %d peers have equal parts of them", y.Rows, x.Rows, n)
	}
	return nil
}

// agreeCrossing returns an error if the extents of operands are not those of the first member.
func agreeCrossing(calls []*Call) error {
	for i, c := range calls {
		for k := range c.Args {
			if a, b := c.Args[k], calls[0].Args[k]; a.Rows != b.Rows || a.Cols != b.Cols {
				return fmt.Errorf("operand %s of rank %d is %d x %d, that of rank %d %d x %d", c.Op.Info().Args[k].Name, c.Peers[i], a.Rows, a.Cols, c.Peers[0], b.Rows, b.Cols)
			}
		}
	}
	return nil
}

// Part returns the memory of a block of an operand of which b is the memory, row by row.
func (o Operand) Part(b []byte, at Block) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		size := int(o.DType.Size())
		for r := at.Row; r < at.Row+at.Rows; r++ {
			if !yield(b[(r*o.Stride+at.Col)*size:][:at.Cols*size]) {
				return
			}
		}
	}
}
