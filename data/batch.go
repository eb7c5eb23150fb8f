package data

// Batch is what a step reads of windows, row after row, a number per token.
type Batch struct {
	Tokens  []int32 // ids
	Targets []int32 // the id of the token after each; -1: it is not learnt
	Starts  []int32 // the position in its row at which each one's document begins, see Starts
}

// NewBatch returns a batch of n tokens.
func NewBatch(n int) Batch { return Batch{make([]int32, n), make([]int32, n), make([]int32, n)} }

// Fill writes row r: the inputs and targets of a window, which has one token more than a row. It returns the number of
// targets that are learnt. end is the last token of each document.
func (b *Batch) Fill(r int, window []int32, end int32) (learnt int) {
	n := len(window) - 1
	row := b.row(r, n)
	learnt = Pairs(row.Tokens, row.Targets, window)
	Starts(row.Starts, row.Tokens, n, end)
	for i, token := range row.Tokens {
		if row.Tokens[i] = Plain(token); token&tagBit != 0 { // in the place of an end
			row.Tokens[i] = end
		}
	}
	return learnt
}

// Leave leaves nothing to be learnt in row r of n tokens.
func (b *Batch) Leave(r, n int) {
	for i := range n {
		b.Targets[r*n+i] = -1
	}
}

func (b *Batch) row(r, n int) Batch {
	return Batch{b.Tokens[r*n : (r+1)*n], b.Targets[r*n : (r+1)*n], b.Starts[r*n : (r+1)*n]}
}
