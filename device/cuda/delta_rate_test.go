//go:build linux

package cuda_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/graph"
)

// TestRateDelta: the gated delta rule, forward and backward, of layers of Qwen3.5's sizes: one sequence and several.
func TestRateDelta(t *testing.T) {
	type shape struct{ b, seq, heads, keys, size int }
	shapes := []shape{{1, 4096, 32, 16, 128}, {4, 4096, 32, 16, 128}, {4, 4096, 16, 16, 128}, {1, 32768, 32, 16, 128}}
	if !cuda.OnGPU() {
		shapes = []shape{{2, 20, 2, 1, 8}}
	}
	some := cuda.RandomBF16(noise(), onGPU(32<<20, 1<<10))
	for _, x := range shapes {
		n, width, at := x.b*x.seq, x.heads*x.size, int64(0)
		place := func(dt graph.DType, cols int) device.Operand {
			o := matrix(device.DeviceTier, dt, at, n, cols)
			at += (o.Bytes() + 255) &^ 255
			return o
		}
		in := 2*x.keys*x.size + width
		qkv, dqkv, o, do := place(graph.BF16, in), place(graph.BF16, in), place(graph.BF16, width), place(graph.BF16, width)
		gates, dgates := place(graph.F32, 2*x.heads), place(graph.F32, 2*x.heads)
		states := place(graph.F32, x.heads*graph.DeltaStateCols(x.seq, x.size*x.size))
		d := open(t, cuda.Options{})
		check(t, d.Reserve(device.DeviceTier, at))
		put(t, d, some, qkv, do)
		var numbers []byte
		for i := range n * 2 * x.heads {
			numbers = binary.LittleEndian.AppendUint32(numbers, math.Float32bits([]float32{-0.05, 0.5}[i/x.heads%2]))
		}
		check(t, d.Write(device.DeviceTier, gates.Addr, numbers))
		a := graph.Attr{Seq: x.seq, Heads: x.heads, KVHeads: x.keys, HeadDim: x.size}
		fwd := device.Call{Op: graph.DeltaRule, Attr: a, Args: []device.Operand{o, states, qkv, gates}}
		bwd := device.Call{Op: graph.DeltaRuleBwd, Attr: a, Args: []device.Operand{dqkv, dgates, do, qkv, gates, states}}
		name := fmt.Sprintf("%d x %d tokens, %d heads, %d of keys", x.b, x.seq, x.heads, x.keys)
		first := seconds(t, d, 10, fwd)
		rate(t, "delta rule "+name, 1e3*first, "ms")
		rate(t, "backward "+name, 1e3*(seconds(t, d, 10, fwd, bwd)-first), "ms")
	}
}
