// Package graph holds a model's computation on one micro-batch as data:
// values, and operators on them, forward and backward.
//
// A graph is cut into segments, the units of scheduling, recomputation and
// pipeline stages: the embedding, one per layer, and the head with the loss.
// Segment s reads the boundary value made by s-1 and makes the next one:
//
//	embed --x0--> h.0 --x1--> h.1 --x2--> ... --> head --> loss
//
// The backward operators of a segment are derived from its forward ones, one
// rule per operator (autodiff.go). So the forward values that the backward pass
// needs ("saved", the skeletal activations) are known exactly: those that a
// backward operator reads.
//
// Nothing here knows of tiers, addresses or micro-batch counts: package lower compiles a graph
// with a plan to instructions. Only two things here know of ranks: the operators between them
// (all_gather, send and so on), which are in the table like any other but used by the lowering
// alone but for all_reduce, and part.go and slab.go, whose graphs are the work of one of several ranks that share a
// sequence or its matrices.
package graph

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// ValueKind is the role of a value.
type ValueKind uint8

const (
	Forwarded  ValueKind = iota // made by the forward pass, per micro-batch
	Gradient                    // of an activation, per micro-batch
	ParamValue                  // a parameter as operators read it
	ParamGrad                   // its gradient, summed over the micro-batches
	Input                       // tokens, targets, starts: per micro-batch, from the data
	Constant                    // see Graph.Constant: rotary tables, gains of norms that have none
	Scalars                     // one row of per-step inputs: see NumScalars, Graph.Pos
	Total                       // the loss, summed over the micro-batches
	Cache                       // keys and values of earlier tokens, kept between steps
	NumValueKinds
)

// Value is a matrix. Per-token values have one row per token of the micro-batch and Rows == 0;
// Cuts bound the column bands that operators touch separately.
type Value struct {
	Name     string
	Kind     ValueKind
	DType    DType
	PerToken bool
	Rows     int // of values that are not per token
	Cols     int
	Cuts     []int
	Param    int  // for ParamValue and ParamGrad: index in Graph.Params of the first parameter
	Params   int  // number of parameters that it holds: matrices stacked by rows, vectors end to end
	Chunked  bool // lives only inside the row-chunk loop of the loss
}

// Use is an operand: columns [Lo, Hi) of a value. Value -1 is an absent
// optional operand.
type Use struct{ Value, Lo, Hi int }

// overlaps reports whether two operands have columns in common.
func (u Use) overlaps(w Use) bool { return u.Value == w.Value && u.Lo < w.Hi && w.Lo < u.Hi }

// Node is an operator applied to values. Operands are in the order of the operator's
// row in the table; trailing optional ones may be left out.
type Node struct {
	Op   Op
	Attr Attr
	Args []Use
	// Chunked nodes run once per chunk of token rows (logits, loss and their
	// gradients), so that the logits of all tokens never exist at once.
	Chunked bool
	Turn    int // of the segment's units in this direction, ascending; 0 but for vocabularies in parts, see vocabulary.go
}

// Writes reports whether a node writes (part of) a value.
func (n *Node) Writes(value int) bool {
	for i, u := range n.Args {
		if u.Value == value && n.Op.Info().Args[i].Access != Read {
			return true
		}
	}
	return false
}

// Segment is a unit of scheduling.
type Segment struct {
	Name    string
	In, Out int // boundary values; -1 for none
	// DIn and DOut are the gradients of In and Out; -1 for none. They are the same
	// value if the gradient of a residual stream is updated in place.
	DIn, DOut int
	Forward   []Node
	Backward  []Node
	Saved     []int // forward values of this segment, In included, that Backward reads
	Params    []int // indices of parameters read, in order of first use

	Turns [][]int // the same by unit, if there are several, see ReadTogether
}

// Makes reports whether a forward operator of the segment writes (part of) a value.
func (s *Segment) Makes(value int) bool {
	return slices.ContainsFunc(s.Forward, func(n Node) bool { return n.Writes(value) })
}

// Graph is the computation of one micro-batch of a model. Absent values are -1: Pos in a
// training graph (Build), those of the loss in a generation graph (BuildDecode), Logits too in BuildPrefill's.
type Graph struct {
	Model                   *model.Model
	Params                  []model.Param // in the order in which chunks store them: see stored. They are whole, see Stored
	held                    []model.Param // the same parameters as a rank has them
	partial                 map[int]bool  // parameters of which ranks that share matrices have all, but each only a term of the gradient, see Terms
	Values                  []Value
	Segments                []Segment
	Seq                     int        // tokens per sequence
	Context                 int        // in generation: capacity of the caches in tokens of a sequence
	Slots                   int        // in generation: capacity of the caches in sequences, if rows are placed in them; 0: there is one sequence
	Documents               *Documents // nil: a token sees all tokens before it in its sequence
	Among                   int        // ranks that share each sequence, each with Seq of its tokens; 0: not shared
	Whole                   int        // tokens of a sequence of which this is the graph of a part, see BuildPart; 0: of no part
	Slabs                   int        // ranks that share each matrix, of which this graph has a slab, see BuildSlab; 0: not shared
	DType                   DType      // of activations and of the parameters that operators read
	Tokens                  int        // values: Input [N,1]
	Targets                 int        // Input [N,1]
	Starts                  int        // Input [N,1]: where each token's document begins in its sequence; -1 without Documents
	Reference               int        // Input [N,1] f32, of pairs: see Preference in the table of operators; else -1
	Verdicts                int        // likewise, if their loss is Unpaired
	Ratios                  int        // [N,1] f32, of pairs
	Regressed               int        // Input [N,1] f32: the value that a token's one logit should be, of a regression; else -1
	Noise                   int        // Input [N,1]: each token's key, see NoiseKey, or 0 where nothing is trained; -1 without noise
	TeacherIDs, TeacherLogs int        // Inputs [N,K] i32 and f32: see Distil in the table of operators; -1 without a teacher
	SaidIDs, SaidLogs       int        // [N,K] i32 and f32, chunked: what TopLogs says; -1 where it is not asked
	Logits                  int        // [N,V], chunked; its rows may be longer than V
	Last                    bool       // in generation: of a step's tokens the last alone has logits
	Losses                  int        // [N,1] f32, chunked except with pairs
	Total                   int        // [1,1] f64: sum of the losses of all tokens
	Scalars                 int        // [1, NumScalars] f32
	Pos                     int        // i32: positions of the tokens, see EmbedAt in the table of operators
	Rope                    int        // [Seq or Context, RotaryDim] f32 or -1
	LocalRope               int        // the same for layers with a rotary base of their own

	Vocabulary Vocabulary
}

// Cut returns Attr.Cut for sums over tokens: in bf16, processors with tile registers
// add 32 tokens at a time. It depends only on sequence length and type, so that no plan
// changes the bits of the sums: micro-batches are whole sequences.
func Cut(seq int, d DType) int {
	const together = 32
	if d == BF16 && seq%together == 0 {
		return together
	}
	return 0
}

// CutUnit returns the number of tokens at multiples of which sums over tokens may be divided.
func (g *Graph) CutUnit() int {
	if g.DType != BF16 {
		return 1
	}
	return max(Cut(g.Sequence(), g.DType), 2)
}

// CutsAt reports whether sums over tokens may be divided at multiples of tokens.
func (g *Graph) CutsAt(tokens int) bool { return tokens%g.CutUnit() == 0 }

// Takes reports whether operators may process part of the whole tokens at a time: always if
// that is all of them, fewer only where sums may be divided.
func (g *Graph) Takes(part, whole int) bool { return part >= whole || g.CutsAt(part) }

// CutSequences returns the least number of sequences at multiples of which sums may be divided.
func (g *Graph) CutSequences() int {
	n := 1
	for !g.CutsAt(n * g.Seq) {
		n++
	}
	return n
}

// Documents restricts attention: a token sees only tokens of its own document. A
// sequence may contain several documents.
type Documents struct {
	End int32 // the token that ends a document
	// Length represents the lengths of all documents in cost estimates: if all documents had
	// this length, sequences would have the same mean number of (query, visible key) pairs.
	Length int
	// Preference is the factor beta of preference optimisation: a sequence consists of pairs of
	// documents, the first of each pair preferred, or of single ones if Pairs is Unpaired, and padding. 0: documents are learnt as they are.
	Preference float64
	Pairs      PairLoss // with Preference
	Margin     float64  // likewise, of SimPO
}

// End returns Documents.End, -1 without documents.
func (g *Graph) End() int32 {
	if g.Documents == nil {
		return -1
	}
	return g.Documents.End
}

// Preference returns Documents.Preference, 0 without documents.
func (g *Graph) Preference() float64 {
	if g.Documents == nil {
		return 0
	}
	return g.Documents.Preference
}

// Head returns the index of the last segment, which holds the loss.
func (g *Graph) Head() int { return len(g.Segments) - 1 }

// ParamOf returns the index of the (first) parameter that value v holds or is the gradient of.
func (g *Graph) ParamOf(v int) int { return g.Values[v].Param }

// WeightGradient reports whether a node computes gradients of parameters, on which
// nothing else in the backward pass depends.
func (g *Graph) WeightGradient(n *Node) bool {
	return slices.ContainsFunc(n.Args, func(u Use) bool { return u.Value >= 0 && g.Values[u.Value].Kind == ParamGrad })
}

// Dims returns the extents of a node's operands for rows tokens, reusing the memory of d.
func (g *Graph) Dims(n *Node, rows int, d []Dim) []Dim {
	d = d[:0]
	for _, u := range n.Args {
		if u.Value < 0 {
			d = append(d, Dim{})
			continue
		}
		v := &g.Values[u.Value]
		r := v.Rows
		if v.PerToken {
			r = rows
		}
		d = append(d, Dim{DType: v.DType, Rows: r, Cols: u.Hi - u.Lo})
	}
	return d
}

// FLOPs returns a rank's part of the model FLOPs of one sequence, forward and backward, without any
// recomputation: the numerator of MFU. Attention counts causal pairs only.
func (g *Graph) FLOPs() (forward, backward int64) {
	var d []Dim
	count := func(nodes []Node, except Op) (sum int64) {
		for i := range nodes {
			if n := &nodes[i]; n.Op != except {
				d = g.Dims(n, g.Seq, d)
				sum += n.Op.FLOPs(&n.Attr, d) * int64(g.different(n)) / int64(g.Shared())
			}
		}
		return sum
	}
	for i := range g.Segments {
		forward += count(g.Segments[i].Forward, None)
		backward += count(g.Segments[i].Backward, Linear) // recomputed logits, see diffCrossEntropy
	}
	return forward, backward
}

// different returns how many of the ranks that share matrices compute something else in a node: as many as have other parts of its weight.
func (g *Graph) different(n *Node) int {
	for _, u := range n.Args {
		if u.Value >= 0 && g.Values[u.Value].Params > 0 {
			slab, _ := g.Slab(g.ParamOf(u.Value))
			return slab.Parts
		}
	}
	return g.Shared()
}

// Table reports whether a parameter is not trained and nothing but a table in which rows are looked up by tokens.
func (g *Graph) Table(param int) bool {
	if p := &g.Params[param]; !p.Frozen && g.Context == 0 || p.Layer >= 0 || p.Vector || g.Divided(param) {
		return false
	}
	for s := range g.Segments {
		if s > 0 && slices.Contains(g.Segments[s].Params, param) {
			return false
		}
	}
	for _, n := range slices.Concat(g.Segments[0].Forward, g.Segments[0].Backward) {
		for k, u := range n.Args {
			if u.Value < 0 || g.Values[u.Value].Params == 0 || g.Values[u.Value].Kind != ParamValue || g.ParamOf(u.Value) != param {
				continue
			}
			if !n.looksUp() || k != EmbedWTE || g.Values[u.Value].Params > 1 {
				return false
			}
		}
	}
	return true
}

// looksUp reports whether an operator looks up rows in a table, and does nothing else.
func (n *Node) looksUp() bool {
	return (n.Op == Embed || n.Op == EmbedAt) && n.Args[EmbedWPE].Value < 0
}

// LogitColumns returns the columns of Logits that are computed: the vocabulary, or a slab of it.
func (g *Graph) LogitColumns() int { return ColumnsOf(g, g.Logits) }

// ColumnsOf returns the columns of some logits that are computed; the others make rows begin at aligned addresses.
func ColumnsOf(g *Graph, logits int) int {
	v := &g.Values[logits]
	if len(v.Cuts) > 0 {
		return v.Cuts[0]
	}
	return v.Cols
}

// FeedBytes returns the bytes of a token's values inside a feed-forward, those wider than what flows between layers, and of their
// gradients: of the layer that has most. Experts have none, since their sums in bf16 cannot be divided within a sequence.
func (g *Graph) FeedBytes() (most int64) {
	for s := range g.Segments {
		var sum int64
		for _, n := range g.Segments[s].Forward {
			switch {
			case n.Op == ExpertLinear, s == g.Head(): // its logits are no feed-forward's
				sum = math.MinInt64 / 2
			case n.Op.Info().Kind == Sequence:
				sum = min(sum, 0) // what attention reads is all there
			default:
				if v := &g.Values[n.Args[0].Value]; v.Kind == Forwarded && v.Cols > g.Model.Width && n.Op.Info().Args[0].Access != Update {
					sum += 2 * int64(v.Cols) * v.DType.Size()
				}
			}
		}
		most = max(most, sum)
	}
	return most
}

// String prints the graph, one operator per line.
func (g *Graph) String() string {
	var b strings.Builder
	for s := range g.Segments {
		seg := &g.Segments[s]
		fmt.Fprintf(&b, "segment %s\n", seg.Name)
		for _, part := range []struct {
			name  string
			nodes []Node
		}{{"forward", seg.Forward}, {"backward", seg.Backward}} {
			fmt.Fprintf(&b, "  %s\n", part.name)
			for i := range part.nodes {
				g.printNode(&b, &part.nodes[i])
			}
		}
		b.WriteString("  saved")
		for _, v := range seg.Saved {
			b.WriteString(" " + g.Values[v].Name)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (g *Graph) printNode(b *strings.Builder, n *Node) {
	fmt.Fprintf(b, "    %-14s", n.Op)
	for i, u := range n.Args {
		if u.Value < 0 {
			continue
		}
		v := &g.Values[u.Value]
		fmt.Fprintf(b, " %s=%s", n.Op.Info().Args[i].Name, v.Name)
		if u.Lo != 0 || u.Hi != v.Cols {
			fmt.Fprintf(b, "[%d:%d]", u.Lo, u.Hi)
		}
	}
	if n.Attr.Acc {
		b.WriteString(" acc")
	}
	if n.Chunked {
		b.WriteString(" chunked")
	}
	b.WriteString("\n")
}
