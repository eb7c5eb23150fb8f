package folder

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/kernel/pool"
	"github.com/athanor-llm/athanor/kernel/simd"
	"github.com/athanor-llm/athanor/model"
)

// walk takes texts through a model segment by segment, on the processor in fp32: all texts pass one layer before the next one's
// weights are read. So a layer may be changed before what follows sees its outputs, and the model need not fit into memory.
type walk struct {
	g      *graph.Graph
	env    *kernel.Env
	rows   [][]int32         // texts of g.Seq tokens or more
	stream [][]float32       // of each text, the residual stream [Seq, Width] that the next segment reads
	tables map[int][]float32 // constants
}

// newWalk begins a walk. Close its env.
func newWalk(m *model.Model, rows [][]int32) (*walk, error) {
	if model.Crosses(m) {
		return nil, misuse{fmt.Errorf("models are pruned layer by layer, but layers of this %s read more of those below than what the layer before them makes: that is not built; hint: prune another model", m.Family)}
	}
	g, err := graph.Build(m, len(rows[0])-1, graph.F32)
	if err != nil {
		return nil, err
	}
	w := &walk{g: g, env: kernel.NewEnvOn(pool.New(0), simd.Best()), rows: rows, stream: make([][]float32, len(rows)), tables: map[int][]float32{}}
	for v := range g.Values {
		if g.Values[v].Kind == graph.Constant {
			w.tables[v] = g.Constant(v)
		}
	}
	return w, nil
}

// segmentWeights are the parameters that a segment reads, as operators order them.
type segmentWeights struct {
	first int   // the first parameter
	at    []int // where each begins in data, from the first on, and the end
	data  []float32
}

// of returns the elements of n parameters from k on: some operators read several as one.
func (s *segmentWeights) of(k, n int) []float32 {
	return s.data[s.at[k-s.first]:s.at[k-s.first+n]]
}

// readWeights reads the parameters of a segment.
func (w *walk) readWeights(s int, read func(p model.Param, first int, dst []float32) error) (*segmentWeights, error) {
	first, end := slices.Min(w.g.Segments[s].Params), slices.Max(w.g.Segments[s].Params)+1
	all := &segmentWeights{first: first, at: []int{0}}
	for _, p := range w.g.Params[first:end] {
		all.at = append(all.at, all.at[len(all.at)-1]+int(p.Elems()))
	}
	all.data = make([]float32, all.at[end-first])
	for k := first; k < end; k++ {
		p, dst := w.g.Params[k], all.of(k, 1)
		stored := dst
		if p.Reordered() {
			stored = make([]float32, len(dst))
		}
		if err := read(p, 0, stored); err != nil {
			return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		if p.Reordered() {
			p.FromFile(dst, stored)
		}
	}
	return all, nil
}

// seen is told of each operator before it computes, with its operands.
type seen func(n *graph.Node, t []kernel.Tensor)

// pass takes all texts through a segment. Unless advance is set, the streams stay as they are.
func (w *walk) pass(s int, weights *segmentWeights, advance bool, look seen) {
	seg := &w.g.Segments[s]
	room := map[int]kernel.Tensor{} // values of a text, which the next one overwrites
	for i := range w.rows {
		copy(w.textValue(w.g.Tokens, room).I32, w.rows[i])
		if seg.In >= 0 {
			copy(w.textValue(seg.In, room).F32, w.stream[i])
		}
		for k := range seg.Forward {
			n := &seg.Forward[k]
			t := make([]kernel.Tensor, len(n.Op.Info().Args))
			for a, u := range n.Args {
				if u.Value >= 0 {
					t[a] = w.operand(u, weights, room)
				}
			}
			if look != nil {
				look(n, t)
			}
			kernel.Lookup(n.Op).Fast(w.env, &n.Attr, t)
		}
		if advance {
			w.stream[i] = append(w.stream[i][:0], w.textValue(seg.Out, room).F32...)
		}
	}
}

// operand returns the memory of a value's columns.
func (w *walk) operand(u graph.Use, weights *segmentWeights, room map[int]kernel.Tensor) kernel.Tensor {
	v := &w.g.Values[u.Value]
	t := kernel.Tensor{DType: v.DType, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
	switch {
	case v.Kind == graph.ParamValue:
		t.F32 = weights.of(v.Param, v.Params)
	case v.Kind == graph.Constant:
		t.F32 = w.tables[u.Value]
	default:
		t = w.textValue(u.Value, room)
	}
	t.Cols = u.Hi - u.Lo
	if u.Lo > 0 {
		t.F32 = t.F32[u.Lo:]
	}
	return t
}

// textValue returns a value of a text, with room for it on first use.
func (w *walk) textValue(value int, room map[int]kernel.Tensor) kernel.Tensor {
	t, ok := room[value]
	if !ok {
		v := &w.g.Values[value]
		t = kernel.NewTensor(v.DType, w.g.Seq, v.Cols)
		room[value] = t
	}
	return t
}
