package memo

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// Skeletal activations are derived from the graph: they are the forward values that a layer's backward operators
// read. Recomputing one means running the operators that write it.
//
// Example: a GPT layer of width h saves 16 h elements per token, exactly the paper's list, and also 4 numbers of the
// norms and one per head of attention, which the paper omits. Grouped queries save less, gated feed-forwards more:
// Llama 3 8B saves 5 + 1.5 + 3*3.5 = 17. Known weakness: only models with identical layers; one sequence is one step.

// Class is the kind of a skeletal tensor, which determines how it can be recomputed.
type Class uint8

const (
	Input     Class = iota // the layer's input: everything is computed from it, it is never recomputed
	Attention              // attention's output: by rows, given all keys and values
	Product                // results of matrix products, by rows
	Pointwise              // norms and activation functions, by rows: almost free
	Classes
)

func (c Class) String() string {
	return [...]string{"input", "attention", "products", "pointwise"}[c]
}

// Tensor is a skeletal activation of one layer and sequence, summed over all GPUs.
type Tensor struct {
	Name  string
	Class Class
	Bytes int64
	FLOPs int64 // to recompute it from the inputs of its operators
	Moved int64 // bytes that recomputing it moves
}

// Work is a training step on one sequence: what is computed and what has to be kept. Numbers are totals over all
// GPUs.
type Work struct {
	Layers, Width, Tokens int
	Tensors               []Tensor // skeletal, of one layer
	Aside                 int64    // bytes of statistics of norms and attention per layer, not in Tensors
	Forward               int64    // FLOPs of a layer
	Attention             int64    // of these, attention's
	Head                  int64    // FLOPs of head and loss, forward
	Parameters            int64    // of matrix products
	Working               int64    // peak bytes of other activations and gradients in any segment
}

// Of derives the work from a graph. It fails if the layers differ.
func Of(g *graph.Graph) (Work, error) {
	layers := g.Segments[1:g.Head()]
	if len(layers) == 0 || g.Context > 0 {
		return Work{}, fmt.Errorf("memo: the graph has %d layers and a context of %d; hint: use a graph for training, with layers", len(layers), g.Context)
	}
	w := Work{Layers: len(layers), Width: g.Model.Width, Tokens: g.Seq}
	for i := range layers {
		one := layer(g, &layers[i])
		if i == 0 {
			w.Tensors, w.Aside, w.Forward, w.Attention = one.Tensors, one.Aside, one.Forward, one.Attention
			continue
		}
		if one.Forward != w.Forward || !slices.EqualFunc(one.Tensors, w.Tensors, sameTensor) {
			return Work{}, fmt.Errorf("memo: layer %d differs from layer 0; hint: use a model whose layers are all alike", i)
		}
	}
	seen := map[int]bool{}
	for i := range g.Segments {
		s := &g.Segments[i]
		w.Working = max(w.Working, working(g, s, s.Forward), working(g, s, s.Backward))
		for k := range s.Forward {
			n := &s.Forward[k]
			if n.Op != graph.Linear {
				continue
			}
			if i == g.Head() {
				w.Head += flops(g, n)
			}
			if v := n.Args[graph.LinearW].Value; !seen[v] {
				seen[v] = true
				w.Parameters += int64(g.Values[v].Rows) * int64(g.Values[v].Cols)
			}
		}
	}
	return w, nil
}

// sameTensor reports whether a and b may be the same tensor of two layers.
func sameTensor(a, b Tensor) bool {
	return a.Class == b.Class && a.Bytes == b.Bytes && a.FLOPs == b.FLOPs && a.Moved == b.Moved
}

// layer returns what one layer saves and computes.
func layer(g *graph.Graph, s *graph.Segment) (w Work) {
	for k := range s.Forward {
		n := &s.Forward[k]
		f := flops(g, n)
		w.Forward += f
		if n.Op == graph.Attention {
			w.Attention += f
		}
	}
	for _, v := range s.Saved {
		t := Tensor{Name: g.Values[v].Name, Class: Pointwise, Bytes: bytesOf(g, v)}
		if v == s.In {
			t.Class = Input
			w.Tensors = append(w.Tensors, t)
			continue
		}
		aside := false // a by-product: statistics, not a result
		for k := range s.Forward {
			n := &s.Forward[k]
			at := writes(n, v)
			if at < 0 {
				continue
			}
			aside = aside || at > 0
			t.FLOPs += flops(g, n)
			t.Moved += n.Op.Bytes(&n.Attr, g.Dims(n, g.Seq, nil))
			switch n.Op {
			case graph.Attention:
				t.Class = Attention
			case graph.Linear:
				t.Class = Product
			}
		}
		if aside {
			w.Aside += t.Bytes
		} else {
			w.Tensors = append(w.Tensors, t)
		}
	}
	return w
}

// writes returns the position of value v among a node's results, or -1.
func writes(n *graph.Node, v int) int {
	for i, spec := range n.Op.Info().Args {
		if i < len(n.Args) && n.Args[i].Value == v && spec.Access != graph.Read {
			return i
		}
	}
	return -1
}

// working returns the peak bytes, over a list of nodes, of per-token values that are not skeletal for the segment. It
// excludes values that exist in chunks of rows: a chunk can be arbitrarily small.
func working(g *graph.Graph, s *graph.Segment, nodes []graph.Node) (most int64) {
	first, last := map[int]int{}, map[int]int{}
	for i := range nodes {
		for _, u := range nodes[i].Args {
			if u.Value < 0 {
				continue
			}
			v := &g.Values[u.Value]
			skeletal := slices.Contains(s.Saved, u.Value) && s.In > 0 && s != &g.Segments[g.Head()]
			if !v.PerToken || v.Chunked || v.Kind == graph.Input || skeletal {
				continue
			}
			if _, ok := first[u.Value]; !ok {
				first[u.Value] = i
			}
			last[u.Value] = i
		}
	}
	for i := range nodes {
		var live int64
		for v := range first {
			if first[v] <= i && i <= last[v] {
				live += bytesOf(g, v)
			}
		}
		most = max(most, live)
	}
	return most
}

func flops(g *graph.Graph, n *graph.Node) int64 {
	return n.Op.FLOPs(&n.Attr, g.Dims(n, g.Seq, nil))
}

// bytesOf returns the bytes of a per-token value of one sequence.
func bytesOf(g *graph.Graph, v int) int64 {
	return int64(g.Seq) * int64(g.Values[v].Cols) * g.Values[v].DType.Size()
}

// Bytes returns the bytes of a layer's skeletal tensors by class.
func (w *Work) Bytes() (b [Classes]int64) {
	for _, t := range w.Tensors {
		b[t.Class] += t.Bytes
	}
	return b
}

// Units returns the size of a layer's skeletal tensors in tensors of the model's width: 16 for a GPT.
func (w *Work) Units() float64 {
	var sum int64
	for _, t := range w.Tensors {
		sum += t.Bytes
	}
	for _, t := range w.Tensors {
		if t.Class == Input {
			return float64(sum) / float64(t.Bytes)
		}
	}
	return 0
}

// AttentionShare returns attention's fraction of a layer's forward FLOPs: (s/12h) / (1 + s/12h) for a GPT.
func (w *Work) AttentionShare() float64 { return float64(w.Attention) / float64(w.Forward) }
