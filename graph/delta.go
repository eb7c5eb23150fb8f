package graph

import "fmt"

// The gated delta rule in chunks (2406.06484, section 3, and 2412.06464). Within a chunk of DeltaChunk tokens, counted from the
// beginning of a document, products of matrices take the place of the recurrence. With c the sums of g up to and with each token:
//
//	(1 + A) D = beta*(V - exp(c)*(K.S))             A below the diagonal: beta_i exp(c_i - c_j) k_i.k_j
//	O = exp(c)*(Q.S) + P.D                          P up to the diagonal: exp(c_i - c_j) q_i.k_j
//	S' = exp(c_last)*S + (exp(c_last - c)*K)^T.D
//
// The backward pass needs the states at the beginnings of chunks. Those after every DeltaChunk*stateChunks tokens of a document are
// kept, in as many rows of the operand states: the numbers of each head one after the other, in the head's columns. It computes the
// others again from these.
//
// Chunks are counted from where documents begin, so a document has the same bits wherever it is, and however many sequences a
// call has.

// DeltaChunk returns the number of tokens of a chunk in sequences of seq tokens.
func DeltaChunk(seq int) int {
	switch {
	case seq <= 8:
		return 2
	case seq <= 64:
		return 8
	}
	return 32
}

// stateChunks is the number of chunks after which a state is kept. More take less memory, but the backward pass then has more
// states at a time in a buffer, which should fit a cache.
const stateChunks = 8

// DeltaKept returns the number of tokens after which a state is kept.
func DeltaKept(seq int) int {
	if seq <= 64 {
		return 2 * DeltaChunk(seq)
	}
	return stateChunks * DeltaChunk(seq)
}

// DeltaStateCols returns the columns of states that a head has, whose state has so many numbers.
func DeltaStateCols(seq, elems int) int {
	kept := DeltaKept(seq)
	return (elems + kept - 1) / kept
}

// DeltaWidth returns the columns of a value head.
func DeltaWidth(a *Attr, o Dim) int { return o.Cols / max(a.Heads, 1) }

// deltaRule: heads divide columns, and rows are whole sequences.
func deltaRule(o, qkv, gates, states int) requirement {
	return func(a *Attr, d []Dim) string {
		heads, keys, size := a.Heads, a.KVHeads, a.HeadDim
		if heads < 1 || keys < 1 || size < 1 || heads%keys != 0 || heads > maxHeads || size > maxHeads {
			return fmt.Sprintf("impossible heads: %d of values, %d of keys of size %d", heads, keys, size)
		}
		values := DeltaWidth(a, d[o])
		switch {
		case values < 1 || values*heads != d[o].Cols || d[qkv].Cols != 2*keys*size+d[o].Cols || d[gates].Cols != 2*heads:
			return fmt.Sprintf("%d columns, of results %d, and %d gates do not fit %d heads of values and %d of keys of size %d", d[qkv].Cols, d[o].Cols, d[gates].Cols, heads, keys, size)
		case d[states].Cols != heads*DeltaStateCols(a.Seq, size*values):
			return fmt.Sprintf("states have %d columns, want %d for each of %d heads", d[states].Cols, DeltaStateCols(a.Seq, size*values), heads)
		}
		return wholeSequences(a, d[o].Rows)
	}
}

// deltaRuleAt: heads divide columns, and there is a state of each, for each sequence.
func deltaRuleAt(a *Attr, d []Dim) string {
	heads, keys, size := a.Heads, a.KVHeads, a.HeadDim
	o, state, qkv, gates := d[DeltaRuleAtO], d[DeltaRuleAtState], d[DeltaRuleAtQKV], d[DeltaRuleAtGates]
	if heads < 1 || keys < 1 || size < 1 || heads%keys != 0 || heads > maxHeads || size > maxHeads {
		return fmt.Sprintf("impossible heads: %d of values, %d of keys of size %d", heads, keys, size)
	}
	if o.Cols != heads*state.Cols || !wholeStates(state.Rows, heads*size, d[DeltaRuleAtPos]) || qkv.Cols != 2*keys*size+o.Cols || gates.Cols != 2*heads {
		return fmt.Sprintf("states of %d x %d, %d columns and %d gates do not fit %d heads of values and %d of keys of size %d", state.Rows, state.Cols, qkv.Cols, gates.Cols, heads, keys, size)
	}
	return ""
}

// wholeStates reports whether so many rows are those of sequences, each of which has each: of one, if rows are not placed in sequences.
func wholeStates(rows, each int, pos Dim) bool {
	return rows == each || pos.Cols == 2 && rows > 0 && rows%each == 0
}

// remembered: there is room for all rows but one that a sum has, of each sequence.
func remembered(_ *Attr, d []Dim) string {
	if past, taps := d[ShortConvAtPast].Rows, d[ShortConvAtW].Cols; taps < 2 || !wholeStates(past, taps-1, d[ShortConvAtPos]) {
		return fmt.Sprintf("%d earlier rows for a convolution of %d", past, taps)
	}
	return ""
}

// continuedFLOPs counts so many for each number of a sequence's state and token. The results, operand 0, have as many columns as states of all heads
// side by side.
func continuedFLOPs(per int64) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 { return per * int64(a.HeadDim) * d[0].Elems() }
}

// continuedBytes counts of states, those of all sequences, the ones that a call reads and writes: of one sequence, or of each row's.
func continuedBytes(state, pos int) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) (n int64) {
		for i, x := range d {
			if i != state {
				n += x.Bytes()
			}
		}
		each := int64(a.Heads * a.HeadDim) // rows
		if state == ShortConvAtPast && each == 0 {
			each = int64(d[ShortConvAtW].Cols - 1)
		}
		return n + 2*min(each*int64(d[pos].Rows), int64(d[state].Rows))*int64(d[state].Cols)*d[state].DType.Size()
	}
}

// inSequences: the rows are whole sequences.
func inSequences(x int) requirement {
	return func(a *Attr, d []Dim) string {
		if a.Seq < 1 {
			return "seq is missing"
		}
		return wholeSequences(a, d[x].Rows)
	}
}

// convFLOPs counts a multiplication and an addition for each weight and token.
func convFLOPs(w int) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 { return 2 * d[w].Elems() * int64(d[1].Rows) }
}

// deltaFLOPs counts products, for each token and head: within the chunk, and with the state.
func deltaFLOPs(o int, inside, state int64) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 {
		k, v := int64(a.HeadDim), int64(DeltaWidth(a, d[o]))
		return int64(d[o].Rows) * int64(a.Heads) * (inside*int64(DeltaChunk(a.Seq))*(k+v) + state*k*v)
	}
}
