package graph

import (
	"errors"
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/model"
)

// Sequences that several ranks share (context parallelism, 2310.01889; gathered as in 2407.21783).
//
// A sequence is cut into 2n equal chunks, and rank k of n has chunks k and 2n-1-k: a token sees those before it, so each rank then
// has the same number of pairs of tokens that see each other (of documents joined to one sequence).
//
//	rank 0   0             7     the first run sees little, the second nearly everything
//	rank 1      1       6
//	rank 2         2 5
//	rank 3         3 4           (of n = 4: 3 and 4)
//
// All operators but attention treat tokens independently, or sum over them. Attention needs the keys and values of other ranks,
// which the lowering exchanges; since each rank computes whole rows, keys in the order of the sequence, no bit of any row changes.

// Run is a range of consecutive tokens.
type Run struct{ At, Rows int }

// End returns the first token behind a run.
func (r Run) End() int { return r.At + r.Rows }

// Runs returns which tokens of each sequence a part consists of, in the order of its rows.
func (g *Graph) Runs(part int) []Run {
	if g.Whole == 0 {
		return []Run{{0, g.Seq}}
	}
	n := g.Seq / 2
	return []Run{{part * n, n}, {g.Whole - (part+1)*n, n}}
}

// Sequence returns the tokens of a sequence, of which g.Seq are this graph's if it is that of a part.
func (g *Graph) Sequence() int { return max(g.Seq, g.Whole) }

// Parts returns the number of ranks that share each sequence, exchanging keys and values.
func (g *Graph) Parts() int {
	if g.Whole == 0 {
		return 1
	}
	return g.Among
}

// BuildPart is BuildDocuments for one of n ranks that share sequences of seq tokens, each with the tokens that Runs lists. The graph is
// the same for all of them; the lowering adds the exchange of keys and values, and says where tokens are.
func BuildPart(m *model.Model, seq, n int, dtype DType, docs *Documents) (*Graph, error) {
	if n <= 1 {
		return BuildDocuments(m, seq, dtype, docs)
	}
	if err := check(m, seq, dtype); err != nil {
		return nil, err
	}
	if err := CheckParts(m, seq, n, docs); err != nil {
		return nil, err
	}
	b := newBuilder(m, &Graph{Seq: seq / n, Among: n, Whole: seq, Documents: docs})
	b.forward(dtype)
	b.loss()
	b.differentiate()
	return b.g, nil
}

// BuildWhole returns the graph of a rank that has whole sequences, of which g is the graph of a part.
func (g *Graph) BuildWhole() (*Graph, error) {
	if g.Whole == 0 {
		return g, nil
	}
	return BuildSlab(g.Model, g.Whole, g.Shared(), g.DType, g.Documents)
}

// PartUnit returns the number of tokens at multiples of which a sequence may end that n ranks share.
func PartUnit(n int) int {
	if n <= 1 {
		return 1
	}
	return 2 * n * SliceUnit(math.MaxInt)
}

// DividesHeads reports whether attention can work on n parts of its heads, one after the other; 0 is one part.
func (g *Graph) DividesHeads(n int) bool {
	return attendsBy(g, n, func(a Attr) bool { return a.KVHeads%n == 0 })
}

// SplitsHeads reports whether attention can work on n parts of the heads of its queries, of which several may have the same key head.
func SplitsHeads(g *Graph, n int) bool {
	return attendsBy(g, n, func(a Attr) bool { return KeyParts(a.KVHeads, n) > 0 && a.Heads%n == 0 })
}

// ExchangesHeads reports whether ranks that share sequences can exchange heads, each of them in so many parts.
func ExchangesHeads(g *Graph, parts int) bool {
	return g.DividesHeads(parts) && SplitsHeads(g, max(parts, 1)*g.Parts())
}

// KeyParts returns of how many parts of some key heads n parts of the queries' heads have one each: n of its own, or each head for several; 0 if
// they cannot.
func KeyParts(heads, n int) int {
	switch {
	case heads%n == 0:
		return n
	case n%heads == 0:
		return heads
	}
	return 0
}

// attendsBy reports whether all attention can be divided by n; 0 is one part.
func attendsBy(g *Graph, n int, can func(Attr) bool) bool {
	if n <= 1 {
		return n >= 0
	}
	for s := range g.Segments {
		for _, node := range g.Segments[s].Forward {
			if node.Op == Attention && !can(node.Attr) {
				return false
			}
		}
	}
	return true
}

// KeyBytes returns the bytes of a sequence's keys and values, of their gradients in fp32, and of as many that ranks send each other, in the
// layer with most of them.
func (g *Graph) KeyBytes() (most int64) {
	for s := range g.Segments {
		for _, n := range g.Segments[s].Forward {
			if n.Op == Attention {
				kv := n.Args[AttentionKV]
				most = max(most, int64(g.Sequence())*int64(kv.Hi-kv.Lo)*(g.DType.Size()+2*F32.Size()))
			}
		}
	}
	return most
}

// CrossBytes returns the bytes of what attention's backward pass reads and writes of a sequence if it has one of n parts of the heads, in the
// layer with most of it.
func (g *Graph) CrossBytes(n int) (most int64) {
	for s := range g.Segments {
		for _, node := range g.Segments[s].Forward {
			if node.Op == Attention {
				q, kv := node.Args[AttentionQ], node.Args[AttentionKV]
				keys := max(KeyParts(node.Attr.KVHeads, n), 1)
				most = max(most, int64(g.Sequence())*int64(4*(q.Hi-q.Lo)/n+2*(kv.Hi-kv.Lo)/keys)*g.DType.Size())
			}
		}
	}
	return most
}

// CheckParts returns an error for sequences that n ranks cannot share.
func CheckParts(m *model.Model, seq, n int, docs *Documents) error {
	unit := 2 * n * SliceUnit(seq) // attention's backward pass sums over blocks of queries
	switch {
	case n <= 1:
		return nil
	case seq < unit:
		return fmt.Errorf("a sequence of %d tokens is too short to be shared by %d ranks; hint: let fewer ranks share it, or use a sequence_length of at least %d", seq, n, unit)
	case seq%unit != 0:
		return fmt.Errorf("a sequence of %d tokens cannot be shared by %d ranks; hint: use a sequence_length that is a multiple of %d, such as %d", seq, n, unit, seq/unit*unit)
	case m.Balance > 0:
		return fmt.Errorf("a sequence cannot be shared by ranks with expert_balance %v, which is computed over whole sequences; hint: set expert_balance to 0, or leave out plan.sequence", m.Balance)
	case model.Crosses(m):
		return fmt.Errorf("a sequence of %s cannot be shared by ranks where layers read keys and values of others; hint: leave out plan.sequence", m.Family)
	case model.Remembers(m):
		return fmt.Errorf("a sequence of %s cannot be shared by ranks, since states of its layers go from token to token; hint: leave out plan.sequence", m.Family)
	case m.Shares > 0:
		return errors.New("a sequence cannot be shared by ranks where layers share parameters; hint: leave out plan.sequence or tie_layers")
	case docs != nil && docs.Preference > 0:
		return checkPairs(m, seq)
	}
	return nil
}
