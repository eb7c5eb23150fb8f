package graph

import (
	"errors"
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// Vocabularies in parts, one after the other on one rank.
//
// Embedding and head have a row for each token of the vocabulary. With 128256 tokens and 2048 columns such a matrix is 501 MiB in bf16, and
// its gradient 1002 MiB: as one parameter both are on the device at once. Here the rows are n parts, each a parameter of its own, of
// which a unit reads one:
//
//	embed    x = rows of part 0, zeros elsewhere | rows of part 1 into x | ...
//	head     norm | logits of part n-1 -> its columns of losses.parts | ... | logits of part 0 -> its columns, losses, gradients of part 0 |
//	         logits of part 1 again -> gradients of part 1 | ... | logits of part n-1 again -> gradients of part n-1, norm
//
// A row of the embedding is copied from the one part that has it. Of each row of logits losses.parts has the logarithm of the sum of a part's
// exponentials and the target's logit, as where ranks share the vocabulary (slab.go), and loss and gradients follow from these. The
// gradient of what the head reads is one sum over the vocabulary, ascending, in fp32: that of a head in one part.
//
// A unit is a turn (Node.Turn): nodes of a segment and direction that read the same part. The lowering knows turns, not vocabularies.
//
// The price is that logits of all parts but one are computed twice: a fourth product of the head's three. Losses differ from those of a head
// in one part in the last bit or two of each sum of exponentials, since it is added up by parts.

// Vocabulary says how the parameters that have a row for each token are divided. The zero value says that they are whole.
type Vocabulary struct {
	Parts  int     // of each; 0: they are whole
	tokens int     // rows of a whole one
	each   int     // rows of each part but the last
	places []place // by parameter of the graph
	logits []int   // of each part
}

// place is where in which parameter of the model a parameter of the graph begins, and which part it is, from 1; 0: it is whole.
type place struct{ param, first, part int }

// WholeOf returns of which parameter of the model, in the order of the graph in one part, parameter i is a part, and with which element
// it begins there.
func (v *Vocabulary) WholeOf(i int) (param, first int) {
	if v.places == nil {
		return i, 0
	}
	return v.places[i].param, v.places[i].first
}

// Part numbers the parts from 1: the one that parameter i has the rows of; 0: it is no part.
func (v *Vocabulary) Part(i int) int {
	if v.places == nil {
		return 0
	}
	return v.places[i].part
}

// rows returns which rows part k has.
func (v *Vocabulary) rows(k int) (first, end int) { return k * v.each, min((k+1)*v.each, v.tokens) }

// BuildVocabulary is BuildDocuments with embedding and head in n parts, each a parameter of its own. An embedding that is not trained and not
// the head, too, stays whole: rows can be looked up in it where it is.
func BuildVocabulary(m *model.Model, seq, n int, dtype DType, docs *Documents) (*Graph, error) {
	if n <= 1 {
		return BuildDocuments(m, seq, dtype, docs)
	}
	if err := check(m, seq, dtype); err != nil {
		return nil, err
	}
	if err := CheckVocabulary(m, n, docs); err != nil {
		return nil, err
	}
	b := newBuilder(m, &Graph{Seq: seq, Documents: docs, Vocabulary: Vocabulary{Parts: n, tokens: m.Vocab, each: vocabRows(m, n)}})
	divideRows(b)
	b.forward(dtype)
	b.loss()
	b.differentiate()
	findTurns(b.g)
	return b.g, b.g.checkInt8()
}

// CheckVocabulary returns an error for a vocabulary that cannot be in n parts.
func CheckVocabulary(m *model.Model, n int, docs *Documents) error {
	const hint = "; hint: leave out plan.vocabulary_parts"
	_, _, adaptedRows := m.Factors(m.Params()[0].Name)
	_, _, adaptedHead := m.Factors(m.HeadName())
	switch {
	case n <= 1:
		return nil
	case n > MostVocabParts || vocabRows(m, n)*(n-1) >= m.Vocab:
		return fmt.Errorf("a vocabulary of %d tokens cannot be divided into %d parts; hint: use at most %d, or fewer of a small vocabulary", m.Vocab, n, MostVocabParts)
	case docs != nil && docs.Preference > 0:
		return errors.New("losses of pairs need the logits of the whole vocabulary at once" + hint)
	case m.Distil.Top > 0 || m.Asked.Top > 0:
		return errors.New("a teacher is compared with the logits of the whole vocabulary at once" + hint + ", or distill")
	case model.Classifies(m):
		return errors.New("a head with labels has few rows, and its loss needs all of them at once" + hint)
	case adaptedRows || adaptedHead || m.LoRA != nil && len(m.LoRA.Rows) > 0:
		return errors.New("an embedding or head that has an adapter cannot be in parts" + hint + ", or adapt other matrices")
	case m.PerLayer > 0:
		return fmt.Errorf("the embeddings of each layer (%s) cannot be in parts"+hint, m.Family)
	case m.HeadBias():
		return fmt.Errorf("a head with a bias (%s) cannot be in parts"+hint, m.Family)
	case m.Int8:
		return errors.New("weights that are trained in int8 cannot be in parts" + hint)
	}
	return nil
}

// MostVocabParts bounds the parts of a vocabulary: with more, operators are many and short.
const MostVocabParts = 64

// vocabRows returns the rows of each part but the last, which may have fewer. Parts end at multiples of NormPiece, so that norms have the
// bits of a whole, and of the terms that processors with tile registers add at a time, or only of these, where a vocabulary is too small.
func vocabRows(m *model.Model, n int) int {
	each, tile := (m.Vocab+n-1)/n, 32
	for _, unit := range []int{max(tile, NormPiece/gcd(m.Width, NormPiece)), tile} {
		if rows := (each + unit - 1) / unit * unit; rows*(n-1) < m.Vocab {
			return rows
		}
	}
	return each
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Undivided returns the graph whose parameters are the model's: of one with a vocabulary in parts, that of one in one.
func Undivided(g *Graph) (*Graph, error) {
	if g.Vocabulary.Parts <= 1 {
		return g, nil
	}
	return BuildDocuments(g.Model, g.Seq, g.DType, g.Documents)
}

// LogitValues returns the values of all logits: one, or one for each part of the vocabulary.
func LogitValues(g *Graph) []int {
	if len(g.Vocabulary.logits) > 0 {
		return g.Vocabulary.logits
	}
	return []int{g.Logits}
}

// divideRows puts parts in the place of parameters that have a row for each token.
func divideRows(b *builder) {
	g, v := b.g, &b.g.Vocabulary
	var list []model.Param
	for i, p := range g.Params {
		embedding := p.Name == b.list[0].Name
		if !(embedding && (b.m.Tied || !p.Frozen) || p.Name == b.m.HeadName()) {
			list, v.places = append(list, p), append(v.places, place{param: i})
			continue
		}
		for k := range v.Parts {
			first, end := v.rows(k)
			part := p
			part.Name, part.Rows = partName(p.Name, k), end-first
			list, v.places = append(list, part), append(v.places, place{i, first * part.Cols, k + 1})
		}
	}
	g.Params, g.held = list, list
}

// partName names a part of a parameter.
func partName(name string, k int) string { return fmt.Sprintf("%s/%d", name, k+1) }

// inParts reports whether a parameter is in parts.
func inParts(b *builder, name string) bool {
	_, whole := b.params[name]
	return !whole
}

// embedRows appends the embedding of a vocabulary in parts.
func embedRows(b *builder, attr Attr, x, pos Use) {
	name := b.list[0].Name
	attr.Vocab = b.m.Vocab
	for k := range b.g.Vocabulary.Parts {
		b.turn, attr.Acc = k, k > 0
		attr.First, _ = b.g.Vocabulary.rows(k)
		b.node(Embed, attr, x, b.all(b.g.Tokens), b.param(partName(name, k)), pos)
	}
	b.turn = 0
}

// headParts appends the logits of all parts, the last one first, and what losses need to know of each.
func headParts(b *builder, y int) {
	m, g, n := b.m, b.g, b.g.Vocabulary.Parts
	b.lossParts = b.tokens("losses.parts", 2*n, F32, evens(n)...)
	b.wide[y] = g.DType != F32
	name := b.list[0].Name
	if !m.Tied {
		name = m.HeadName()
	}
	for turn := range n {
		k := n - 1 - turn
		first, end := g.Vocabulary.rows(k)
		b.turn, b.chunk = turn, true
		g.Logits = logitsFor(b, partName("logits", k), end-first)
		g.Vocabulary.logits = append([]int{g.Logits}, g.Vocabulary.logits...)
		logits := Use{g.Logits, 0, end - first}
		b.node(Linear, Attr{WT: true}, logits, b.all(y), b.param(partName(name, k)), absent, absent)
		if m.LogitCap > 0 {
			b.node(SoftCap, Attr{Limit: m.LogitCap}, logits)
		}
		b.node(LossPart, Attr{First: first}, Use{b.lossParts, 2 * k, 2*k + 2}, logits, b.all(g.Targets))
	}
	b.chunk = false
}

// evens lists the even numbers between 0 and 2n.
func evens(n int) (list []int) {
	for k := 1; k < n; k++ {
		list = append(list, 2*k)
	}
	return list
}

// diffLossPart computes the logits of a part again, and their gradient. Those of the part with which the losses were computed have theirs.
func diffLossPart(b *differentiator, n *Node) {
	logits := n.Args[LossPartLogits]
	if _, known := b.grad[logits.Value]; known || b.g.Vocabulary.Parts <= 1 {
		return
	}
	b.turn++
	v := &b.g.Values[logits.Value]
	again := Use{logitsFor(b.builder, strings.Replace(v.Name, "logits", "again", 1), logits.Hi), 0, logits.Hi}
	for _, made := range b.seg.Forward {
		if made.Args[0] != logits {
			continue
		}
		args := append([]Use{again}, made.Args[1:]...)
		b.node(made.Op, made.Attr, args...)
	}
	b.node(CrossEntropy, Attr{Grad: true, Limit: b.m.LogitCap, First: n.Attr.First}, b.all(b.tokens(v.Name+".nll", 1, F32)), again,
		n.Args[LossPartTargets], b.all(b.g.Scalars), absent, b.all(b.lossParts))
	b.grad[logits.Value] = again.Value
}

// narrow rounds the gradient of a value that was added up in fp32.
func (b *differentiator) narrow(v int) {
	if !b.wide[v] {
		return
	}
	delete(b.wide, v)
	sum := b.grad[v]
	of := b.g.Values[v]
	b.grad[v] = b.value(Value{Name: "d." + of.Name, Kind: Gradient, DType: of.DType, PerToken: true, Cols: of.Cols, Cuts: of.Cuts})
	b.node(Cast, Attr{}, b.all(b.grad[v]), b.all(sum))
}

// findTurns lists the parameters that each turn of a segment reads.
func findTurns(g *Graph) {
	for s := range g.Segments {
		seg := &g.Segments[s]
		turns := max(turnsOf(seg.Forward), turnsOf(seg.Backward))
		if turns == 1 {
			continue
		}
		for _, nodes := range [][]Node{seg.Forward, seg.Backward} {
			for t := range turnsOf(nodes) {
				seg.Turns = append(seg.Turns, paramsRead(g, InTurn(nodes, t)))
			}
		}
	}
}

// paramsRead lists the parameters that nodes read.
func paramsRead(g *Graph, nodes []Node) (list []int) {
	seen := map[int]bool{}
	for i := range nodes {
		for _, u := range nodes[i].Args {
			if u.Value < 0 || g.Values[u.Value].Kind != ParamValue {
				continue
			}
			v := &g.Values[u.Value]
			for p := v.Param; p < v.Param+v.Params; p++ {
				if !seen[p] {
					seen[p], list = true, append(list, p)
				}
			}
		}
	}
	return list
}

// turnsOf returns the number of turns of a segment's nodes in one direction, at least 1.
func turnsOf(nodes []Node) int {
	if len(nodes) == 0 {
		return 1
	}
	return nodes[len(nodes)-1].Turn + 1
}

// ForwardTurns and BackwardTurns return the number of units that a segment is in each direction.
func (s *Segment) ForwardTurns() int { return turnsOf(s.Forward) }

// BackwardTurns is the same of the backward pass.
func (s *Segment) BackwardTurns() int { return turnsOf(s.Backward) }

// InTurn returns the nodes of one turn, which are consecutive.
func InTurn(nodes []Node, turn int) []Node {
	first := 0
	for first < len(nodes) && nodes[first].Turn < turn {
		first++
	}
	end := first
	for end < len(nodes) && nodes[end].Turn == turn {
		end++
	}
	return nodes[first:end]
}

// ReadTogether lists the sets of parameters that a unit of the segment reads: one set, if it has no turns.
func (s *Segment) ReadTogether() [][]int {
	if s.Turns == nil {
		return [][]int{s.Params}
	}
	return s.Turns
}
