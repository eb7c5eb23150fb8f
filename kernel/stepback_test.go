package kernel

import (
	"sync/atomic"
	"testing"

	"github.com/athanor-llm/athanor/graph"
)

// mostFLOPs is the greatest mean number of FLOPs that a worker computes between yields
// to other streams: about a millisecond.
const mostFLOPs = 1 << 26

// TestStepBack: workers yield regularly in large calls, however few tasks they consist
// of.
func TestStepBack(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	var times atomic.Int64
	e.Pool.Yield = func() { times.Add(1) }
	mat := func(rows, cols int) Tensor { return NewTensor(graph.F32, rows, cols) }
	half := func(rows, cols int) Tensor { return NewTensor(graph.BF16, rows, cols) }
	const long = 2048
	attn := graph.Attr{Seq: long, Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 0.125}
	shared := attn // fewer key heads than workers: divided differently
	shared.KVHeads = 1
	wide := graph.Attr{Seq: 4 * long, Heads: 1, KVHeads: 1, HeadDim: 128, Scale: 0.1} // a block of queries takes milliseconds
	back := func(a graph.Attr) []Tensor {
		q, kv := a.Heads*a.HeadDim, 2*a.KVHeads*a.HeadDim
		return []Tensor{mat(long, q), mat(long, kv), mat(long, 2), mat(long, q), mat(long, q), mat(long, kv), mat(long, q), mat(long, 2)}
	}
	for _, c := range []struct {
		name string
		op   graph.Op
		attr graph.Attr
		t    []Tensor
	}{
		{"attention", graph.Attention, attn, []Tensor{mat(long, 128), mat(long, 2), mat(long, 128), mat(long, 256)}},
		{"attention, long", graph.Attention, wide, []Tensor{mat(4*long, 128), mat(4*long, 1), mat(4*long, 128), mat(4*long, 256)}},
		{"attention backward", graph.AttentionBwd, attn, back(attn)},
		{"attention backward, divided", graph.AttentionBwd, shared, back(shared)},
		{"many rows", graph.Linear, graph.Attr{}, []Tensor{mat(8*long, 256), mat(8*long, 256), mat(256, 256), {}, {}}},
		{"many rows, bf16", graph.Linear, graph.Attr{}, []Tensor{half(8*long, 256), half(8*long, 256), half(256, 256), {}, {}}},
		{"few rows", graph.LinearDX, graph.Attr{}, []Tensor{mat(64, 4*long), mat(64, 2*long), mat(4*long, 2*long), {}}},
		{"long sums", graph.LinearDW, graph.Attr{}, []Tensor{mat(64, 64), mat(128*long, 64), mat(128*long, 64)}},
	} {
		times.Store(0)
		Lookup(c.op).Fast(e, &c.attr, c.t)
		dims := make([]graph.Dim, len(c.t))
		for i, t := range c.t {
			dims[i] = graph.Dim{DType: t.DType, Rows: t.Rows, Cols: t.Cols}
		}
		if n := c.op.FLOPs(&c.attr, dims) / max(times.Load(), 1); n > mostFLOPs {
			t.Errorf("%s: %d MFLOP each of %d times", c.name, n>>20, times.Load())
		}
	}
}
