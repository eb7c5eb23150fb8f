package graph

// What the rows of the operators count: FLOPs, and the bytes that a call moves at least.

// linearFLOPs counts 2 * tokens * in * out, the extents of operand 0 and operand other.
func linearFLOPs(other int) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 {
		return 2 * d[0].Elems() * int64(d[other].Cols)
	}
}

// sumFLOPs counts the same for one or two gradients of weights.
func sumFLOPs(_ *Attr, d []Dim) (n int64) {
	for ; len(d) > LinearDWDY; d = d[LinearDWDW2:] {
		n += 2 * d[LinearDWDW].Elems() * int64(d[LinearDWX].Rows)
	}
	return n
}

// linearBytes is the sum over the operands plus, since 4-bit weights are unpacked into memory
// before they are multiplied, the traffic of unpacking.
func linearBytes(a *Attr, d []Dim) (n int64) {
	for _, x := range d {
		n += x.Bytes()
	}
	if a.Acc {
		n += d[LinearY].Bytes()
	}
	if a.NF4 {
		n += 2 * int64(d[LinearY].Cols) * int64(d[LinearX].Cols) * d[LinearW].DType.Size()
	}
	return n
}

// scaledBytes is the traffic of products in FP8 beside the product: both matrices are read twice and written in a byte a number,
// and the result is multiplied by scales, of which what it is added to is divided by them.
func scaledBytes(a *Attr, d []Dim) (n int64) {
	if !a.FP8 {
		return 0
	}
	for _, x := range d[LinearX : LinearW+1] {
		n += 2*x.Bytes() + x.Elems()
	}
	n += 2 * d[LinearY].Bytes()
	if a.Acc || len(d) > LinearRes && !d[LinearRes].Absent() {
		n += 2 * d[LinearY].Bytes()
	}
	return n
}

// derivedBytes is scaledBytes, and the traffic of multiplying a product by the derivative of an activation.
func derivedBytes(a *Attr, d []Dim) int64 {
	if len(d) <= LinearDXX || d[LinearDXX].Absent() {
		return scaledBytes(a, d)
	}
	return scaledBytes(a, d) + 2*d[LinearDXDX].Bytes() + d[LinearDXX].Bytes()
}

// attentionFLOPs counts per*S FLOPs per visible (query, key) pair and head: causal, inside the
// window and the document. The slices of a sequence add up to the whole. kv is the index of the
// operand with the keys.
func attentionFLOPs(per int64, kv int) func(*Attr, []Dim) int64 {
	return func(a *Attr, d []Dim) int64 {
		end := d[kv].Rows
		return per * (pairsUpTo(a, end) - pairsUpTo(a, end-d[0].Rows)) * int64(a.Heads*a.HeadDim)
	}
}

// pairsUpTo counts the pairs of the first rows queries of a micro-batch. If n ranks
// share each sequence, it counts an n-th of them.
func pairsUpTo(a *Attr, rows int) int64 {
	seq, n := max(a.Seq, 1), max(a.Among, 1)
	pairs := func(rows int) int64 {
		if doc := a.Document; doc > 0 {
			return int64(rows/doc)*AttentionPairs(doc, a.Window) + AttentionPairs(rows%doc, a.Window)
		}
		return AttentionPairs(rows*n, a.Window) / int64(n)
	}
	return int64(rows/seq)*pairs(seq) + pairs(rows%seq)
}

// attentionAtFLOPs and attentionAtBytes assume a full cache, since the position is
// not known in advance.
func attentionAtFLOPs(a *Attr, d []Dim) int64 {
	return 4 * int64(d[AttentionAtO].Rows) * visible(a, d) * int64(a.Heads*a.HeadDim)
}

func attentionAtBytes(a *Attr, d []Dim) int64 {
	row := int64(2*a.KVHeads*d[AttentionAtKV].Cols) * d[AttentionAtKV].DType.Size()
	sequences := int64(max(d[AttentionAtPos].Rows, 1))
	return d[AttentionAtO].Bytes() + d[AttentionAtQKV].Bytes() + row*(sequences*visible(a, d)+int64(d[AttentionAtO].Rows))
}

// visible returns the number of keys that a token sees if the cache is full.
func visible(a *Attr, d []Dim) int64 {
	context := int64(CacheContext(a, d[AttentionAtKV].Rows))
	if w := int64(a.Window); w > 0 && w < context {
		return w
	}
	return context
}

// CacheContext returns how many positions of a sequence a cache of so many rows has room for.
func CacheContext(a *Attr, rows int) int {
	if a.Seq > 0 {
		return a.Seq
	}
	return rows / max(2*a.KVHeads, 1)
}

// embedAtBytes and ropeAtBytes count the rows touched, not the whole tables.
func embedAtBytes(_ *Attr, d []Dim) int64 { return 2 * d[EmbedAtX].Bytes() }

func ropeAtBytes(_ *Attr, d []Dim) int64 {
	qkv, table := d[RoPEAtQKV], d[RoPEAtTable]
	return 2*qkv.Bytes() + int64(qkv.Rows*table.Cols)*table.DType.Size()
}

// AttentionPairs counts the (query, key) pairs of one causal sequence.
func AttentionPairs(seq, window int) int64 {
	t, w := int64(seq), int64(window)
	if w <= 0 || w >= t {
		return t * (t + 1) / 2
	}
	return w*(w+1)/2 + (t-w)*w
}

// embedBytes counts the rows touched, not the whole table.
func embedBytes(a *Attr, d []Dim) int64 {
	x := d[EmbedX]
	if x.Rows != d[EmbedTokens].Rows { // EmbedBwd, whose operands are dwte, dx, tokens
		x = d[EmbedBwdDX]
	}
	n := 2 * x.Bytes()
	if a.Acc {
		n += x.Bytes()
	}
	return n
}
