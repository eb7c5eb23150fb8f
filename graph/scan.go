package graph

import "fmt"

// The selective state-space scan in chunks (2405.21060, section 6). Within a chunk of ScanChunk tokens, counted from the beginning of a
// document, products of matrices take the place of the recurrence. With c the sums of g up to and with each token, and D = dt*X:
//
//	O = exp(c)*(C.S) + P.D + skip*X            P up to the diagonal: exp(c_i - c_j) C_i.B_j
//	S' = exp(c_last)*S + B^T.(exp(c_last - c)*D)
//
// C.B is the same for all heads of a group, which are computed in bands of at most ScanBand heads: each band is a task, and has the
// sum over its heads of the gradients of B and C.
//
// As of the gated delta rule (see delta.go), the states after every so many tokens of a document are kept for the backward pass, and
// chunks are counted from where documents begin, so that no bit depends on what else a call has.

// ScanChunk returns the number of tokens of a chunk in sequences of seq tokens.
func ScanChunk(seq int) int {
	switch {
	case seq <= 8:
		return 2
	case seq <= 64:
		return 8
	}
	return 64
}

// scanChunks is the number of chunks after which a state is kept, see stateChunks.
const scanChunks = 4

// ScanKept returns the number of tokens after which a state is kept.
func ScanKept(seq int) int {
	if seq <= 64 {
		return 2 * ScanChunk(seq)
	}
	return scanChunks * ScanChunk(seq)
}

// ScanStateCols returns the columns of states that a head has, whose state has so many numbers.
func ScanStateCols(seq, elems int) int {
	kept := ScanKept(seq)
	return (elems + kept - 1) / kept
}

// ScanBand is the most heads of a band: more share products, fewer keep more cores busy.
const ScanBand = 8

// ScanBands returns the number of bands of a group.
func ScanBands(a *Attr) int { return (a.Heads/max(a.KVHeads, 1) + ScanBand - 1) / ScanBand }

// ScanRoom returns the columns of the room that the backward pass needs; 0: none.
func ScanRoom(a *Attr) int {
	if n := ScanBands(a); n > 1 {
		return a.KVHeads * n * 2 * a.HeadDim
	}
	return 0
}

// scanHeads says what is wrong with the heads of a scan, of which each result has so many columns, or "".
func scanHeads(a *Attr, results, xbc, gates int) string {
	heads, groups, size := a.Heads, a.KVHeads, a.HeadDim
	switch {
	case heads < 1 || groups < 1 || size < 1 || heads%groups != 0 || heads > maxHeads || size > maxHeads:
		return fmt.Sprintf("impossible heads: %d in %d groups, of size %d", heads, groups, size)
	case results%heads != 0 || xbc != results+2*groups*size || gates != 2*heads:
		return fmt.Sprintf("%d columns, of results %d, and %d gates do not fit %d heads in %d groups of size %d", xbc, results, gates, heads, groups, size)
	}
	return ""
}

// stateScan: heads divide columns, and rows are whole sequences.
func stateScan(o, xbc, gates, states int) requirement {
	return func(a *Attr, d []Dim) string {
		if why := scanHeads(a, d[o].Cols, d[xbc].Cols, d[gates].Cols); why != "" {
			return why
		}
		if want := a.Heads * ScanStateCols(a.Seq, a.HeadDim*(d[o].Cols/a.Heads)); d[states].Cols != want {
			return fmt.Sprintf("states have %d columns, want %d", d[states].Cols, want)
		}
		return wholeSequences(a, d[o].Rows)
	}
}

// scanRoom: there is room for the bands of a group, if there are several.
func scanRoom(a *Attr, d []Dim) string {
	if got, want := d[StateScanBwdBands].Cols, ScanRoom(a); got != want {
		return fmt.Sprintf("room of %d columns for what bands of heads contribute, want %d", got, want)
	}
	return ""
}

// stateScanAt: heads divide columns, and there is a state of each, for each sequence.
func stateScanAt(a *Attr, d []Dim) string {
	o, state := d[StateScanAtO], d[StateScanAtState]
	if why := scanHeads(a, o.Cols, d[StateScanAtXBC].Cols, d[StateScanAtGates].Cols); why != "" {
		return why
	}
	if o.Cols != a.Heads*state.Cols || !wholeStates(state.Rows, a.Heads*a.HeadDim, d[StateScanAtPos]) {
		return fmt.Sprintf("states of %d x %d and %d columns of results do not fit %d heads of size %d", state.Rows, state.Cols, o.Cols, a.Heads, a.HeadDim)
	}
	return ""
}

// scanFLOPs counts products, for each token and head: within the chunk, and with the state; and those of b and c, for each group.
func scanFLOPs(o int, inside, state int64) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 {
		n, v, chunk := int64(a.HeadDim), int64(d[o].Cols), int64(ScanChunk(a.Seq))
		return int64(d[o].Rows) * (inside*chunk*(v+int64(a.KVHeads)*n) + state*n*v)
	}
}

// biasHas: a sum for the gradient of a bias needs one.
func biasHas(bias, sum int) requirement {
	return func(_ *Attr, d []Dim) string {
		if d[bias].Absent() && !d[sum].Absent() {
			return "a bias that is absent has no gradient"
		}
		return ""
	}
}
