package graph

import (
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// Matrices that several ranks share (tensor parallelism, 1909.08053, section 3).
//
// Each rank has a slab of the matrices of attention and feed-forward: some heads, some of the units between up and down.
// It computes with them what it can by itself. What comes back into the residual stream is a sum over inputs, so each rank has a
// term of it, and all_reduce adds these up, in the order of the ranks. In the backward pass the same happens to the gradient of
// what all ranks read.
//
//	              rank 0                    rank 1
//	norm1         all columns               all columns
//	q k v         heads 0, 1                heads 2, 3            rows of [out, in]
//	o             of their columns          of their columns      columns of [out, in]
//	all_reduce    x + o0 + o1               x + o0 + o1
//
// Norms are whole on every rank, and so are their gradients: all ranks compute the same. Only of the gains that all
// heads share, if queries and keys are normalised by heads, and of the factors of adapters that are not divided, each rank has a term
// of the gradient (see Terms). Adapters need no sums of their own:
//
//	q + B.(A.x)     A whole, B its outputs     the gradient of A.x is a term, and so is that of A
//	o + B.(A.x)     A its inputs, B whole      A.x is a term, which o's sum adds up, and so is B's gradient
//
// Where there are fewer key/value heads than ranks, neighbouring ranks have the same one, each for other queries. So each of them has a
// term of its gradient, and those of queries and of keys are products apart:
//
//	             rank 0       rank 1       rank 2       rank 3
//	q            head 0       head 1       head 2       head 3
//	k v          head 0       head 0       head 1       head 1
//
// Of a mixture's experts each rank has some units, as of any feed-forward, so it has a term of their results, and of the gradient of the
// weights by which a router multiplies them. The gradient of the router is linear in that, so it is a term, too, and needs no sum of its own
// before it reaches what all ranks read.
//
// Embedding and head are divided by tokens of the vocabulary, and so are logits. Of a token that is another's the embedding is zero, so
// each rank has a term of it. Of each row of these a
// rank knows the logarithm of its sum of exponentials, and the target's logit if it has that. Ranks tell each other, as a sum of rows that
// are zero where other ranks' numbers go:
//
//	               rank 0             rank 1
//	logits         tokens 0 to v-1    tokens v to 2v-1
//	loss_part      l0 t0  0  0         0  0 l1 t1
//	all_reduce     l0 t0 l1 t1        l0 t0 l1 t1
//	loss           log(exp l0 + exp l1) - t0 - t1
//
// Slabs follow from sizes: the graph is built for a model with an n-th of the heads and units, and where its parameters are smaller
// than the whole model's, they are divided.

// mostSlabs bounds the ranks that share a matrix: more are added up in several rounds, which would round several times.
const mostSlabs = 8

// BuildSlab is BuildDocuments for one of n ranks that share matrices. The graph is the same for all of them. Params are whole; Stored says
// what a rank has of each, and Slab where that is in the whole.
func BuildSlab(m *model.Model, seq, n int, dtype DType, docs *Documents) (*Graph, error) {
	return BuildDivided(m, seq, 1, n, dtype, docs)
}

// BuildDivided is BuildDocuments for one of parts times n ranks: n share each matrix, as many of them as parts each sequence. Adjacent ranks
// share matrices.
func BuildDivided(m *model.Model, seq, parts, n int, dtype DType, docs *Documents) (*Graph, error) {
	if n <= 1 {
		return BuildPart(m, seq, parts, dtype, docs)
	}
	if err := check(m, seq, dtype); err != nil {
		return nil, err
	}
	if err := CheckParts(m, seq, parts, docs); err != nil {
		return nil, err
	}
	if err := CheckSlabs(m, n); err != nil {
		return nil, err
	}
	if docs != nil && docs.Preference > 0 {
		if err := checkPairs(m, seq); err != nil {
			return nil, err
		}
	}
	part := *m
	part.Heads, part.KVHeads, part.FeedForward = m.Heads/n, max(1, m.KVHeads/n), m.FeedForward/n
	part.Shared, part.DenseWidth = m.Shared/n, m.DenseWidth/n
	g := &Graph{Seq: seq, Slabs: n, Documents: docs, partial: map[int]bool{}}
	if parts > 1 {
		g.Seq, g.Among, g.Whole = seq/parts, parts, seq
	}
	b := newBuilder(&part, g)
	b.g.Model, b.g.Params = m, stored(m.Params())
	if dividesVocabulary(m, n, docs) {
		b.divideVocabulary(n)
	}
	b.forward(dtype)
	b.loss()
	b.differentiate()
	b.g.findPartial()
	return b.g, nil
}

// dividesVocabulary reports whether n ranks share embedding and head: adapters, pairs and labels need all logits.
func dividesVocabulary(m *model.Model, n int, docs *Documents) bool {
	return m.LoRA == nil && !model.Classifies(m) && m.Vocab%n == 0 && (docs == nil || docs.Preference == 0)
}

// divideVocabulary gives the builder n-ths of what has a row for each token.
func (b *builder) divideVocabulary(n int) {
	part := *b.m
	part.Vocab, b.vocabParts = part.Vocab/n, n
	b.m, b.g.held = &part, stored(part.Params())
}

// findPartial adds to partial what follows from other parameters, or from operators.
func (g *Graph) findPartial() {
	for s := range g.Segments {
		for _, n := range g.Segments[s].Backward {
			if n.Op == RMSNormDW && n.Attr.Heads > 0 {
				g.partial[g.ParamOf(n.Args[RMSNormDWDGain].Value)] = true
			}
		}
		g.findRouters(g.Segments[s].Backward)
	}
	index := map[string]int{}
	for i := range g.Params {
		index[g.Params[i].Name] = i
	}
	for i := range g.Params {
		down, up, has := g.Model.Factors(g.Params[i].Name)
		if !has || !g.Divided(i) && !g.partial[i] {
			continue
		}
		for _, name := range []string{down, up} {
			if k := index[name]; !g.Divided(k) {
				g.partial[k] = true
			}
		}
	}
}

// findRouters adds the weights and biases of routers: those whose gradients operators compute from that of the logits.
func (g *Graph) findRouters(nodes []Node) {
	logits := map[int]bool{}
	for _, n := range nodes {
		switch {
		case n.Op == RouteBwd:
			logits[n.Args[RouteBwdDLogits].Value] = true
		case n.Op == LinearDW && logits[n.Args[LinearDWDY].Value]:
			g.partial[g.ParamOf(n.Args[LinearDWDW].Value)] = true
		case n.Op == BiasGrad && logits[n.Args[BiasGradDY].Value]:
			g.partial[g.ParamOf(n.Args[BiasGradDB].Value)] = true
		}
	}
}

// Terms returns how many neighbouring ranks have the same of parameter i, but each only a term of its gradient; 1 if each has all of the
// gradient of what it has. Such terms are added up once a step, as those of ranks with other sequences are.
func (g *Graph) Terms(i int) int {
	switch slab, divided := g.Slab(i); {
	case divided:
		return slab.Alike
	case g.partial[i]:
		return g.Shared()
	}
	return 1
}

// alikeKeys reports whether ranks with other queries have the same keys and values.
func (g *Graph) alikeKeys() bool { return g.Model.KVHeads < g.Shared() }

// Shared returns the number of ranks that share each matrix: 1 if ranks have whole ones.
func (g *Graph) Shared() int { return max(g.Slabs, 1) }

// PerSequence returns the number of ranks that compute with each sequence, because they share it or the matrices.
func (g *Graph) PerSequence() int { return g.Parts() * g.Shared() }

// CheckSlabs returns an error for matrices that n ranks cannot share.
func CheckSlabs(m *model.Model, n int) error {
	const hint = "; hint: leave out plan.tensor"
	switch {
	case n <= 1:
		return nil
	case n > mostSlabs:
		return fmt.Errorf("matrices cannot be shared by %d ranks; hint: let at most %d share them", n, mostSlabs)
	case m.Global != model.Global{} || m.LayerScale || model.NormsExperts(m) || m.ValueNorm || m.Latent.Some():
		return fmt.Errorf("the matrices of layers whose heads differ, or are made from latents, (%s) cannot be shared by ranks"+hint, m.Family)
	case model.Crosses(m):
		return fmt.Errorf("the matrices of %s cannot be shared by ranks where layers read keys and values of others"+hint, m.Family)
	case model.Remembers(m) || m.OutGate:
		return fmt.Errorf("the matrices of linear attention, of convolutions, of scans, and of attention with gates (%s), cannot be shared by ranks"+hint, m.Family)
	case m.FusedQKV() && m.FusedGate() && (m.Heads+2*m.KVHeads)*m.HeadDim == 2*m.FeedForward:
		return fmt.Errorf("the matrices of a %s whose queries, keys and values have as many rows as its feed-forward cannot be told apart, and so not be shared"+hint, m.Family)
	case m.NF4 && !wholeBlocks(m, n):
		return fmt.Errorf("matrices in 4 bits cannot be shared by %d ranks if their parts are no multiples of %d numbers, which have one scale; hint: let fewer share them", n, NF4Block)
	case m.FP8:
		return errors.New("matrices that are multiplied in fp8 cannot be shared by ranks, since scales are of whole rows" + hint)
	case m.Family.XIELU:
		return fmt.Errorf("the matrices of %s cannot be shared by ranks, since all columns of a feed-forward contribute to the parameters of its activation"+hint, m.Family)
	case m.Distil.Top > 0 || m.Asked.Top > 0:
		return errors.New("matrices cannot be shared by ranks where a teacher is compared with the logits of the whole vocabulary" + hint + ", or distill")
	case m.LoRA != nil && m.LoRA.DoRA:
		return errors.New("matrices whose adapters have magnitudes (dora) cannot be shared by ranks, since lengths are of whole rows" + hint)
	case m.LoRA != nil && m.LoRA.Dropout > 0:
		return errors.New("matrices with adapters that have dropout cannot be shared by ranks" + hint + ", or lora.dropout")
	case m.Indivisible:
		return errors.New("matrices that are updated as a whole cannot be shared by ranks" + hint + ", or use another optimizer")
	case m.Shares > 0:
		return errors.New("matrices that layers share cannot be shared by ranks, too" + hint + ", or tie_layers")
	case m.QKNorm == model.QKNormWhole:
		return fmt.Errorf("the matrices of %s cannot be shared by ranks, since the queries of all heads are normalised together"+hint, m.Family)
	case !m.Norms.Before():
		return fmt.Errorf("the matrices of %s cannot be shared by ranks, since it has no norms before them"+hint, m.Family)
	case m.FusedQKV() && m.KVHeads < n && m.Heads%n == 0:
		return fmt.Errorf("%d key/value heads cannot be divided among %d ranks, since a %s has queries, keys and values in one matrix; hint: %s", m.KVHeads, n, m.Family, sharers(m))
	case !divides(m, n):
		return fmt.Errorf("%d heads with %d key/value heads, and %d units of the feed-forward%s, cannot be divided evenly among %d ranks; hint: %s", m.Heads, m.KVHeads, m.FeedForward, otherUnits(m), n, sharers(m))
	}
	return nil
}

// wholeBlocks reports whether n ranks that share matrices in 4 bits have whole blocks of their rows, so that scales are those of one rank.
func wholeBlocks(m *model.Model, n int) bool {
	sides := append(feedForwards(m), m.Heads*m.HeadDim) // inputs of down and o
	if m.InOut() {
		sides = append(sides, max(m.KVHeads, n)*m.HeadDim)
	}
	return !slices.ContainsFunc(sides, func(side int) bool { return side/n%NF4Block != 0 })
}

// divides reports whether heads and units can be divided evenly among n ranks, or fewer key/value heads than ranks be given to equally many.
func divides(m *model.Model, n int) bool {
	for _, units := range feedForwards(m) {
		if units%n != 0 {
			return false
		}
	}
	return m.Heads%n == 0 && (m.KVHeads%n == 0 || n%m.KVHeads == 0 && !m.FusedQKV())
}

// feedForwards lists the units of a model's kinds of feed-forward.
func feedForwards(m *model.Model) []int {
	list := []int{m.FeedForward}
	if m.Shared > 0 {
		list = append(list, m.Shared)
	}
	if m.Dense > 0 {
		list = append(list, m.DenseWidth)
	}
	return list
}

// otherUnits mentions kinds of feed-forward that not all models have.
func otherUnits(m *model.Model) string {
	if list := feedForwards(m); len(list) > 1 {
		return fmt.Sprintf(" (and %d where it is none of experts, or beside them)", list[1:])
	}
	return ""
}

// sharers says how many ranks can share a model's matrices.
func sharers(m *model.Model) string {
	list := ""
	for n := 2; n <= mostSlabs; n++ {
		if divides(m, n) {
			list += fmt.Sprintf(", %d", n)
		}
	}
	if list == "" {
		return "leave out plan.tensor"
	}
	return "use a plan.tensor of " + list[2:]
}

// Slab says which elements of a whole parameter one of several ranks has. They are a band of each of Bands, which are side by side: one,
// or as many as there are matrices in one.
type Slab struct {
	Rows, Cols int   // of the whole
	ByRows     bool  // bands are of rows; else of columns
	Bands      []int // their sizes in the whole
	Parts      int   // different slabs
	Alike      int   // neighbouring ranks that have the same one
}

// Slab returns what one of the ranks that share matrices has of parameter i; false if all of it.
func (g *Graph) Slab(i int) (s Slab, divided bool) {
	p := &g.Params[i]
	rows, cols := g.Held(i)
	s = Slab{Rows: p.Rows, Cols: p.Cols, Parts: p.Cols / cols}
	whole := p.Cols
	switch {
	case rows < p.Rows:
		s.ByRows, s.Parts, whole = true, p.Rows/rows, p.Rows
	case cols == p.Cols:
		return s, false
	}
	s.Alike = g.Shared() / s.Parts
	m := g.Model
	switch q, kv := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim; {
	case p.Experts > 0 && whole%(2*m.FeedForward) == 0: // gates and ups of each
		for range whole / m.FeedForward {
			s.Bands = append(s.Bands, m.FeedForward)
		}
	case p.Layer < 0 || p.Layer == m.Layers: // embedding and head
		s.Bands = []int{whole}
	case m.FusedQKV() && whole == q+2*kv:
		s.Bands = []int{q, kv, kv}
	case m.FusedGate() && whole == 2*m.FeedForward:
		s.Bands = []int{m.FeedForward, m.FeedForward}
	default:
		s.Bands = []int{whole}
	}
	return s, true
}

// Of returns which of the slabs a rank has.
func (s Slab) Of(rank int) int { return rank / s.Alike % s.Parts }

// Divided reports whether ranks share parameter i.
func (g *Graph) Divided(i int) bool {
	_, divided := g.Slab(i)
	return divided
}

// wholeSides returns how many inputs and outputs the weight has of whose gradient a node computes this rank's part.
func (g *Graph) wholeSides(n *Node) (ins, outs int) {
	x, dy := n.Args[LinearDWX], n.Args[LinearDWDY]
	ins, outs = x.Hi-x.Lo, dy.Hi-dy.Lo
	if s, divided := g.Slab(g.ParamOf(n.Args[LinearDWDW].Value)); !divided {
		return ins, outs
	} else if s.ByRows == n.Attr.WT {
		return ins, outs * s.Parts
	} else {
		return ins * s.Parts, outs
	}
}

// Take copies slab k from a whole parameter.
func (s Slab) Take(slab, whole []float32, k int) {
	s.runs(k, func(at, from, n int) { copy(slab[at:at+n], whole[from:from+n]) })
}

// Put copies slab k to its place in a whole parameter.
func (s Slab) Put(whole, slab []float32, k int) {
	s.runs(k, func(at, from, n int) { copy(whole[from:from+n], slab[at:at+n]) })
}

// Locate returns which slab has element i of the whole, at which index, and how many elements it has from there on that follow
// each other in the whole, too.
func (s Slab) Locate(i int) (k, at, n int) {
	scale, first := s.Cols, 0
	if !s.ByRows {
		scale, first = 1, i/s.Cols*s.Cols
		at = i / s.Cols * (s.Cols / s.Parts)
	}
	for _, band := range s.Bands {
		own := band / s.Parts * scale // of each slab
		if into := i - first; into < band*scale {
			k = into / own
			return k, at + into%own, own - into%own
		}
		at, first = at+own, first+band*scale
	}
	return 0, 0, 0 // there is no such element
}

// InRuns reports whether the elements of a slab that follow each other in the whole are so many that each rank can write its
// own to a file: if bands are of rows, or there is one row.
func (s Slab) InRuns() bool { return s.ByRows || s.Rows == 1 }

// runs visits the runs of consecutive elements of slab k: n of them, from index at on in the slab and from index from on in
// the whole.
func (s Slab) runs(k int, visit func(at, from, n int)) {
	at := 0
	row := func(scale, first int) {
		for _, band := range s.Bands {
			n := band / s.Parts * scale
			visit(at, first+k*n, n)
			at, first = at+n, first+band*scale
		}
	}
	if s.ByRows {
		row(s.Cols, 0)
		return
	}
	for r := range s.Rows {
		row(1, r*s.Cols)
	}
}
