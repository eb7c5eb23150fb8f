//go:build linux

package cuda_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// What a GPU reaches. These tests assert nothing about speed; tools/gpu-check.sh collects their lines
// that begin with RATE. On the fake they run toys.

func rate(t *testing.T, name string, value float64, unit string) {
	t.Helper()
	if cuda.OnGPU() {
		fmt.Printf("RATE %-52s %10.1f %s\n", name, value, unit)
	}
}

// onGPU returns one extent on a GPU and another on the fake.
func onGPU(real, toy int) int {
	if cuda.OnGPU() {
		return real
	}
	return toy
}

// kinds returns all cases on a GPU, and on the fake one of those that are the same toy.
func kinds[T any, K comparable](cases []T, kind func(T) K) []T {
	if cuda.OnGPU() {
		return cases
	}
	seen := map[K]bool{}
	return slices.DeleteFunc(slices.Clone(cases), func(c T) bool {
		was := seen[kind(c)]
		seen[kind(c)] = true
		return was
	})
}

func open(t *testing.T, o cuda.Options) *cuda.Device {
	t.Helper()
	if !cuda.OnGPU() {
		testkit.Needs(t, testkit.Usual)
	}
	d, _ := cuda.Machine(t, o)
	return d
}

func noise() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }

// seconds runs the calls together several times, and returns the least time from the start of the first
// to the end of the last. On the fake, whose times mean nothing, they run once.
func seconds(t *testing.T, d *cuda.Device, times int, calls ...device.Call) float64 {
	t.Helper()
	spans := make([]device.Span, len(calls))
	first, err := d.Prepare(calls, spans)
	check(t, err)
	best := 0.0
	for n := range onGPU(times, 1) {
		for i := range calls {
			d.Launch(first + i)
		}
		check(t, d.Sync())
		start := slices.MinFunc(spans, func(a, b device.Span) int { return cmp.Compare(a.Start, b.Start) }).Start
		end := slices.MaxFunc(spans, func(a, b device.Span) int { return cmp.Compare(a.End, b.End) }).End
		if n == 0 || end-start < best {
			best = end - start
		}
	}
	return best
}

// put fills operands with a few numbers, repeated: drawing all of them would take longer than what is
// measured.
func put(t *testing.T, d *cuda.Device, some []byte, operands ...device.Operand) {
	t.Helper()
	for _, o := range operands {
		for at := o.Addr; at < o.End(); at += int64(len(some)) {
			check(t, d.Write(o.Tier, at, some[:min(int64(len(some)), o.End()-at)]))
		}
	}
}

func matrix(t device.Tier, d graph.DType, addr int64, rows, cols int) device.Operand {
	return device.Operand{Tier: t, DType: d, Addr: addr, Rows: rows, Cols: cols, Stride: cols}
}

// TestRateLinks: copies of 256 MiB one way, the other way, both ways at once.
func TestRateLinks(t *testing.T) {
	d := open(t, cuda.Options{})
	n := int64(onGPU(256<<20, 1<<16))
	check(t, d.Reserve(device.DeviceTier, 3*n))
	check(t, d.Reserve(device.HostTier, 2*n))
	dev := func(i int64) device.Operand { return matrix(device.DeviceTier, graph.F32, i*n, 1, int(n/4)) }
	host := func(i int64) device.Operand { return matrix(device.HostTier, graph.F32, i*n, 1, int(n/4)) }
	up := device.Call{Op: graph.Copy, Stream: device.HostToDev, Args: []device.Operand{dev(0), host(0)}}
	down := device.Call{Op: graph.Copy, Stream: device.DevToHost, Args: []device.Operand{host(1), dev(1)}}
	within := device.Call{Op: graph.Copy, Stream: device.Compute, Args: []device.Operand{dev(2), dev(1)}}
	for name, calls := range map[string][]device.Call{"host to device": {up}, "device to host": {down}, "both ways, each": {up, down}} {
		rate(t, name, float64(n)/seconds(t, d, 10, calls...)/1e9, "GB/s")
	}
	rate(t, "within the device, read + write", 2*float64(n)/seconds(t, d, 10, within)/1e9, "GB/s")
}

// TestRateProduct: 8192^3 in bf16, on random numbers.
func TestRateProduct(t *testing.T) {
	d := open(t, cuda.Options{})
	n := onGPU(8192, 64)
	size := 2 * int64(n) * int64(n)
	check(t, d.Reserve(device.DeviceTier, 3*size))
	check(t, d.Write(device.DeviceTier, 0, cuda.RandomBF16(noise(), int(size))))
	check(t, d.Write(device.DeviceTier, size, cuda.RandomBF16(noise(), int(size))))
	m := func(i int64) device.Operand { return matrix(device.DeviceTier, graph.BF16, i*size, n, n) }
	for _, wt := range []bool{false, true} {
		call := device.Call{Op: graph.Linear, Attr: graph.Attr{WT: wt}, Args: []device.Operand{m(2), m(0), m(1)}}
		rate(t, fmt.Sprintf("8192^3 bf16 product, WT %v", wt), 2*math.Pow(float64(n), 3)/seconds(t, d, 20, call)/1e12, "TFLOP/s")
	}
	if refused := d.Refused(); refused != nil {
		t.Errorf("the library refused %v", refused)
	}
}

// TestRateLogits: the head of GPT-2, whose 50257 logits are not whole packs, on 32768 tokens.
func TestRateLogits(t *testing.T) {
	d := open(t, cuda.Options{})
	n, width, vocab := onGPU(32768, 40), onGPU(768, 24), onGPU(50257, 51)
	some := cuda.RandomBF16(noise(), 64*width*2)
	at := int64(0)
	place := func(rows, cols int) device.Operand {
		o := matrix(device.DeviceTier, graph.BF16, at, rows, cols)
		o.Stride = (cols + 31) / 32 * 32
		at = (o.End() + 255) &^ 255
		return o
	}
	logits, x, w := place(n, vocab), place(n, width), place(vocab, width)
	check(t, d.Reserve(device.DeviceTier, at))
	put(t, d, some, logits, x, w)
	for what, c := range map[string]device.Call{
		"forwards":  {Op: graph.Linear, Attr: graph.Attr{WT: true}, Args: []device.Operand{logits, x, w}},
		"backwards": {Op: graph.LinearDX, Attr: graph.Attr{WT: true}, Args: []device.Operand{x, logits, w}},
	} {
		rate(t, fmt.Sprintf("logits %s, %d x %d x %d", what, n, width, vocab), 2*float64(n)*float64(width)*float64(vocab)/seconds(t, d, 5, c)/1e12, "TFLOP/s")
	}
}

// TestRateBytes: memory-bound operators on 16384 tokens with the widths of GPT-2 XL and Llama-3.2-1B,
// and the squares of a layer's gradients: gigabytes per second, counting the fewest that must be moved.
// They read more than caches hold.
func TestRateBytes(t *testing.T) {
	tokens := onGPU(16384, 40)
	some := cuda.RandomBF16(noise(), onGPU(32<<20, 1<<10))
	for _, width := range []int{onGPU(1600, 40), onGPU(2048, 64)} {
		at := int64(0)
		place := func(d graph.DType, rows, cols int) device.Operand {
			o := matrix(device.DeviceTier, d, at, rows, cols)
			at = (o.End() + 255) &^ 255
			return o
		}
		x, y, z, wide := place(graph.BF16, tokens, width), place(graph.BF16, tokens, width), place(graph.BF16, tokens, width), place(graph.BF16, tokens, 4*width)
		gain, g, b, stats, one := place(graph.BF16, 1, width), place(graph.F32, 1, 4*width), place(graph.F32, 1, width), place(graph.F32, tokens, 2), place(graph.F32, tokens, 1)
		weights, parts := place(graph.F32, 8*width, width), place(graph.F64, 1, int(graph.NormPieces(8*int64(width)*int64(width))))
		short := g
		short.Cols, short.Stride = width, width
		head := onGPU(128, 32)
		heads, ofHead, ofHeads := width/head, gain, place(graph.F32, tokens, max(1, width/head)) // queries' norms, where heads fill the width
		ofHead.Cols = head
		d := open(t, cuda.Options{SumRows: onGPU(1024, 8)})
		check(t, d.Reserve(device.DeviceTier, at))
		put(t, d, some, x, y, z, wide, gain, stats, one, ofHeads, weights)
		type timed struct {
			name string
			call device.Call
		}
		list := []timed{
			{"layernorm", device.Call{Op: graph.LayerNorm, Attr: graph.Attr{Eps: 1e-5}, Args: []device.Operand{y, stats, x, gain, gain}}},
			{"layernorm_dx, added to", device.Call{Op: graph.LayerNormDX, Attr: graph.Attr{Acc: true}, Args: []device.Operand{z, y, x, gain, stats}}},
			{"layernorm_dw", device.Call{Op: graph.LayerNormDW, Args: []device.Operand{short, b, y, x, stats}}},
			{"rmsnorm", device.Call{Op: graph.RMSNorm, Attr: graph.Attr{Eps: 1e-5}, Args: []device.Operand{y, one, x, gain}}},
			{"rmsnorm_dx, added to", device.Call{Op: graph.RMSNormDX, Attr: graph.Attr{Acc: true}, Args: []device.Operand{z, y, x, gain, one}}},
			{"rmsnorm_dw", device.Call{Op: graph.RMSNormDW, Args: []device.Operand{short, y, x, one}}},
			{"bias_grad", device.Call{Op: graph.BiasGrad, Args: []device.Operand{short, y}}},
			{"bias_grad, 4 times as wide", device.Call{Op: graph.BiasGrad, Args: []device.Operand{g, wide}}},
			{"norm_part", device.Call{Op: graph.NormPart, Args: []device.Operand{parts, weights}}},
		}
		if heads*head == width {
			list = append(list, timed{"rmsnorm of heads", device.Call{Op: graph.RMSNorm, Attr: graph.Attr{Eps: 1e-5, Heads: heads}, Args: []device.Operand{y, ofHeads, x, ofHead}}},
				timed{"rmsnorm_dx of heads", device.Call{Op: graph.RMSNormDX, Attr: graph.Attr{Heads: heads}, Args: []device.Operand{z, y, x, ofHead, ofHeads}}})
		}
		for _, c := range list {
			dims := make([]graph.Dim, len(c.call.Args))
			for i, o := range c.call.Args {
				dims[i] = graph.Dim{DType: o.DType, Rows: o.Rows, Cols: o.Cols}
			}
			rate(t, fmt.Sprintf("%s, %d columns", c.name, width), float64(c.call.Op.Bytes(&c.call.Attr, dims))/seconds(t, d, 10, c.call)/1e9, "GB/s")
		}
	}
}

// TestRateAlgorithms: products of layers of GPT-2 124M and XL, Llama-3.2-1B and Llama-3-8B on 16384
// tokens, with the library's first choice and with the fastest algorithm of the same bits; and with the
// derivative of GELU in the product and after it.
func TestRateAlgorithms(t *testing.T) {
	some := cuda.RandomBF16(noise(), onGPU(32<<20, 1<<10))
	tokens := onGPU(16384, 64)
	type layer struct {
		in, out  int
		wt, gelu bool // gelu: its derivative behind the gradient of the input
	}
	for _, c := range kinds([]layer{
		{768, 2304, false, false}, {768, 768, false, false}, {768, 3072, false, false}, {3072, 768, false, true},
		{1600, 4800, false, false}, {1600, 1600, false, false}, {1600, 6400, false, false}, {6400, 1600, false, true},
		{2048, 3072, true, false}, {2048, 2048, true, false}, {2048, 16384, true, false}, {8192, 2048, true, false},
		{4096, 6144, true, false}, {4096, 4096, true, false}, {4096, 28672, true, false}, {14336, 4096, true, false},
	}, func(c layer) [2]bool { return [2]bool{c.wt, c.gelu} }) {
		in, out, at := onGPU(c.in, 24), onGPU(c.out, 40), int64(0)
		place := func(rows, cols int) device.Operand {
			o := matrix(device.DeviceTier, graph.BF16, at, rows, cols)
			at = (o.End() + 255) &^ 255
			return o
		}
		w := place(in, out)
		if c.wt {
			w.Rows, w.Cols, w.Stride = out, in, in
		}
		y, x, res, dx := place(tokens, out), place(tokens, in), place(tokens, out), place(tokens, in)
		d := open(t, cuda.Options{CacheDir: t.TempDir()})
		check(t, d.Reserve(device.DeviceTier, at))
		put(t, d, some, w, y, x, res)
		forward := device.Call{Op: graph.Linear, Attr: graph.Attr{WT: c.wt}, Args: []device.Operand{y, x, w}}
		if !c.wt && in >= out {
			forward.Args = append(forward.Args, device.Operand{}, res)
		}
		backward := device.Call{Op: graph.LinearDX, Attr: graph.Attr{WT: c.wt}, Args: []device.Operand{dx, res, w}}
		tell := func(way string, call *device.Call) {
			eight := slices.Repeat([]device.Call{*call}, 8)
			var spans [2][]device.Span
			var first [2]int
			for i := range first {
				if i == 1 {
					check(t, d.Tune(eight, 1<<40))
				}
				spans[i] = make([]device.Span, 8)
				var err error
				first[i], err = d.Prepare(eight, spans[i])
				check(t, err)
			}
			var rates [2][]float64
			for range onGPU(7, 1) { // in turn, since the clock follows the power
				for i := range first {
					for c := range eight {
						d.Launch(first[i] + c)
					}
					check(t, d.Sync())
					rates[i] = append(rates[i], 8*2*float64(tokens)*float64(in)*float64(out)/(spans[i][7].End-spans[i][0].Start)/1e12)
				}
			}
			slices.Sort(rates[0])
			slices.Sort(rates[1])
			rate(t, fmt.Sprintf("%s, %d to %d", way, in, out), rates[0][len(rates[0])/2], fmt.Sprintf("TFLOP/s; %.1f tuned", rates[1][len(rates[1])/2]))
		}
		tell("forwards", &forward)
		tell("backwards", &backward)
		if sms, major := cuda.CardOf(d); c.gelu && major >= 9 {
			backward.Args = append(backward.Args, x)
			tell("backwards with GELU", &backward)
			cuda.Pretend(d, sms, 8)
			rate(t, fmt.Sprintf("backwards, then GELU, %d to %d", in, out), 2*float64(tokens)*float64(in)*float64(out)/seconds(t, d, 5, backward)/1e12, "TFLOP/s")
			cuda.Pretend(d, sms, major)
		}
	}
}

// TestRateSums: gradients of weights of GPT-2 124M and XL in sequences of 1024 and of Llama-3.2-1B in
// sequences of 4096, for 16384 tokens: by our kernel in the chosen tile, and with whole tiles where
// blocks continue each other's; by the library sequence by sequence; and by the library at once, whose
// bits depend on the number of tokens.
func TestRateSums(t *testing.T) {
	tokens := onGPU(16384, 64)
	some := cuda.RandomBF16(noise(), onGPU(32<<20, 1<<10))
	type weight struct{ seq, m, n int }
	for _, c := range kinds([]weight{{1024, 768, 768}, {1024, 768, 2304}, {1024, 768, 3072}, {1024, 3072, 768}, {1024, 50257, 768}, {4096, 768, 2304},
		{1024, 1600, 4800}, {1024, 1600, 1600}, {1024, 1600, 6400}, {1024, 6400, 1600}, {1024, 50257, 1600},
		{4096, 512, 2048}, {4096, 2048, 2048}, {4096, 8192, 2048}, {4096, 2048, 8192}}, func(weight) int { return 0 }) {
		seq, m, n := onGPU(c.seq, 16), onGPU(c.m, 24), onGPU(c.n, 40)
		x, dy, y := matrix(device.DeviceTier, graph.BF16, 0, tokens, m), matrix(device.DeviceTier, graph.BF16, 0, tokens, n), matrix(device.DeviceTier, graph.F32, 0, m, n)
		x.Stride = (m + 31) / 32 * 32
		dy.Addr = (x.End() + 255) &^ 255
		y.Addr = (dy.End() + 255) &^ 255
		call := device.Call{Op: graph.LinearDW, Args: []device.Operand{y, x, dy}}
		d := open(t, cuda.Options{SumRows: seq})
		sms, major := cuda.CardOf(d)
		check(t, d.Reserve(device.DeviceTier, y.End()))
		put(t, d, some, x, dy)
		tell := func(d *cuda.Device, way string) {
			rate(t, fmt.Sprintf("gradient of %d x %d, %s", m, n, way), 2*float64(tokens)*float64(m)*float64(n)/seconds(t, d, 10, call)/1e12, "TFLOP/s")
		}
		tell(d, fmt.Sprintf("as chosen, %d", seq))
		if cuda.Relayed(d, m, n, tokens) {
			cuda.Apart(d, true)
			tell(d, fmt.Sprintf("in whole tiles, %d", seq))
			cuda.Apart(d, false)
		}
		cuda.Pretend(d, 0, major)
		tell(d, fmt.Sprintf("library, %d", seq))
		cuda.Pretend(d, sms, major)
		whole := open(t, cuda.Options{})
		check(t, whole.Reserve(device.DeviceTier, y.End()))
		put(t, whole, some, x, dy)
		tell(whole, "library, whole")
	}
}

// TestRateSumsPaired: gradients of two weights of a layer of GPT-2 124M and XL, over 32768 and 16384
// tokens in sequences of 1024, and of Llama-3.2-1B in sequences of 4096, by one call and by one for
// each.
func TestRateSumsPaired(t *testing.T) {
	some := cuda.RandomBF16(noise(), onGPU(32<<20, 1<<10))
	type pair struct {
		tokens, seq int
		list        [2][2]int
	}
	for _, c := range kinds([]pair{
		{32768, 1024, [2][2]int{{768, 2304}, {768, 768}}}, {32768, 1024, [2][2]int{{768, 3072}, {3072, 768}}},
		{16384, 1024, [2][2]int{{1600, 4800}, {1600, 1600}}}, {16384, 1024, [2][2]int{{1600, 6400}, {6400, 1600}}}, {16384, 4096, [2][2]int{{3072, 2048}, {2048, 2048}}},
	}, func(pair) int { return 0 }) {
		tokens, at := onGPU(c.tokens, 64), int64(0)
		place := func(dt graph.DType, rows, cols int) device.Operand {
			o := matrix(device.DeviceTier, dt, at, rows, cols)
			at += (o.Bytes() + 255) &^ 255
			return o
		}
		both, flops := device.Call{Op: graph.LinearDW}, 0.0
		var each []device.Call
		for i, y := range c.list {
			m, n := onGPU(y[0], 24+8*i), onGPU(y[1], 40)
			call := device.Call{Op: graph.LinearDW, Args: []device.Operand{place(graph.F32, m, n), place(graph.BF16, tokens, m), place(graph.BF16, tokens, n)}}
			each, both.Args = append(each, call), append(both.Args, call.Args...)
			flops += 2 * float64(tokens) * float64(m) * float64(n)
		}
		d := open(t, cuda.Options{SumRows: onGPU(c.seq, 16)})
		check(t, d.Reserve(device.DeviceTier, at))
		put(t, d, some, both.Args[1], both.Args[2], both.Args[4], both.Args[5])
		rate(t, fmt.Sprintf("gradients %v, one call", c.list), flops/seconds(t, d, 10, both)/1e12, "TFLOP/s")
		rate(t, fmt.Sprintf("gradients %v, two calls", c.list), flops/seconds(t, d, 10, each...)/1e12, "TFLOP/s")
	}
}

// TestRateExperts: products of the experts of Mixtral 8x7B, Qwen3-30B-A3B and OLMoE-1B-7B, for 16384
// tokens (Mixtral: 8192) in sequences of 4096, spread evenly: forward, gradients of inputs and
// gradients of weights.
func TestRateExperts(t *testing.T) {
	shapes := []struct{ tokens, in, out, experts, active int }{{8192, 4096, 2 * 14336, 8, 2}, {16384, 2048, 2 * 768, 128, 8}, {16384, 768, 2048, 128, 8}, {16384, 2048, 2 * 1024, 64, 8}}
	if !cuda.OnGPU() {
		shapes = shapes[:1]
		shapes[0].tokens, shapes[0].in, shapes[0].out = 64, 24, 40
	}
	some := cuda.RandomBF16(noise(), onGPU(64<<20, 1<<10))
	for _, x := range shapes {
		d := open(t, cuda.Options{})
		at := int64(0)
		place := func(dt graph.DType, rows, cols int) device.Operand {
			o := matrix(device.DeviceTier, dt, at, rows, cols)
			at += (o.Bytes() + 255) &^ 255
			return o
		}
		n, k := x.tokens, x.active
		in, out, w := place(graph.BF16, n, x.in), place(graph.BF16, n, k*x.out), place(graph.BF16, x.experts*x.out, x.in)
		dx, dw, ids := place(graph.BF16, n, k*x.in), place(graph.F32, x.experts*x.out, x.in), place(graph.I32, n, k)
		check(t, d.Reserve(device.DeviceTier, at))
		numbers, experts := noise(), []byte(nil)
		for range n {
			for _, id := range slices.Sorted(slices.Values(numbers.Perm(x.experts)[:k])) {
				experts = binary.LittleEndian.AppendUint32(experts, uint32(id))
			}
		}
		check(t, d.Write(device.DeviceTier, ids.Addr, experts))
		put(t, d, some, in, w) // the others are results first
		a := graph.Attr{WT: true, Experts: x.experts, Seq: min(n, 4096)}
		turned := a
		turned.WT, turned.Slots = false, true
		for _, c := range []struct {
			what string
			call device.Call
		}{
			{"forwards", device.Call{Op: graph.ExpertLinear, Attr: a, Args: []device.Operand{out, in, w, ids}}},
			{"inputs", device.Call{Op: graph.ExpertLinear, Attr: turned, Args: []device.Operand{dx, out, w, ids}}},
			{"weights", device.Call{Op: graph.ExpertDW, Attr: a, Args: []device.Operand{dw, in, out, ids}}},
		} {
			rate(t, fmt.Sprintf("experts %s, %d of %d, %d x %d", c.what, k, x.experts, x.in, x.out),
				2*float64(n)*float64(k)*float64(x.in)*float64(x.out)/seconds(t, d, 10, c.call)/1e12, "TFLOP/s")
		}
	}
}

// TestRateAttention: forward and backward, causal, of the models of the speed list and of Gemma 3; on
// Hopper also with the instructions of other cards.
func TestRateAttention(t *testing.T) {
	type shape struct{ b, seq, heads, kv, s, documents int } // 0: attention does not end with them
	shapes := []shape{{32, 1024, 12, 12, 64, 0}, {8, 4096, 12, 12, 64, 0}, {16, 1024, 25, 25, 64, 0}, {4, 4096, 32, 8, 64, 0},
		{16, 1024, 32, 8, 128, 0}, {4, 4096, 32, 8, 128, 0}, {8, 4096, 12, 12, 64, 4096}, {8, 4096, 12, 12, 64, 500}, {4, 4096, 32, 8, 128, 500},
		{8, 4096, 4, 1, 256, 0}, {4, 4096, 16, 8, 256, 0}, {4, 4096, 16, 8, 256, 500}}
	if !cuda.OnGPU() {
		shapes = []shape{{2, 40, 2, 1, 64, 0}, {2, 40, 2, 1, 64, 15}, {2, 40, 2, 1, 256, 0}}
	}
	some := cuda.RandomBF16(noise(), onGPU(32<<20, 1<<10))
	for _, x := range shapes {
		b, seq, heads, s := x.b, x.seq, x.heads, x.s
		d := open(t, cuda.Options{})
		n, w, wkv := b*seq, int64(heads*s), int64(2*x.kv*s)
		check(t, d.Reserve(device.DeviceTier, int64(n)*(2*(w+wkv)+2*w)*2+int64(n*heads)*8+int64(n)*4))
		at := int64(0)
		place := func(dt graph.DType, cols int) device.Operand {
			o := matrix(device.DeviceTier, dt, at, n, cols)
			at += o.Bytes()
			return o
		}
		bands := func(all device.Operand) (q, kv device.Operand) {
			q, kv = all, all
			q.Cols, kv.Cols, kv.Addr = int(w), int(wkv), all.Addr+2*w
			return q, kv
		}
		qkv, o, lse := place(graph.BF16, int(w+wkv)), place(graph.BF16, int(w)), place(graph.F32, heads)
		dqkv, do, delta := place(graph.BF16, int(w+wkv)), place(graph.BF16, int(w)), place(graph.F32, heads)
		q, kv := bands(qkv)
		dq, dkv := bands(dqkv)
		put(t, d, some, qkv, do)
		a := graph.Attr{Seq: seq, Heads: heads, KVHeads: x.kv, HeadDim: s, Scale: 0.1}
		fwd := device.Call{Op: graph.Attention, Attr: a, Args: []device.Operand{o, lse, q, kv}}
		bwd := device.Call{Op: graph.AttentionBwd, Attr: a, Args: []device.Operand{dq, dkv, delta, do, q, kv, o, lse}}
		if x.documents > 0 {
			starts := place(graph.I32, 1)
			var positions []byte
			for i := range n {
				positions = binary.LittleEndian.AppendUint32(positions, uint32(i%seq/x.documents*x.documents))
			}
			check(t, d.Write(device.DeviceTier, starts.Addr, positions))
			for _, c := range []*device.Call{&fwd, &bwd} {
				c.Args, c.Attr.Document = append(c.Args, starts), x.documents
			}
		}
		for what, c := range map[string]device.Call{"forward": fwd, "backward": bwd} {
			var dims []graph.Dim
			for _, o := range c.Args {
				dims = append(dims, o.Dim())
			}
			if x.documents > 0 {
				what += fmt.Sprintf(", documents of %d", x.documents)
			}
			tell := func(with string) {
				rate(t, fmt.Sprintf("attention %s, %d x %d, %d heads on %d of %d%s", what, b, seq, heads, x.kv, s, with),
					float64(c.Op.FLOPs(&c.Attr, dims))/seconds(t, d, 5, c)/1e12, "TFLOP/s")
			}
			if sms, major := cuda.CardOf(d); major == 9 {
				cuda.Pretend(d, sms, 8)
				tell(", mma.sync")
				cuda.Pretend(d, sms, 9)
			}
			tell("")
		}
	}
}

// TestRateGPT2: a training step of GPT-2 124M in bf16, and where its time goes; the cost of allowing
// sums over tokens to be cut at sequences without changing a bit, and of timing every call.
func TestRateGPT2(t *testing.T) {
	type way struct {
		what string
		o    cuda.Options
	}
	for _, w := range cuda.CasesOf([]way{{", cut at sequences", cuda.Options{SumRows: onGPU(1024, 16)}}, {"", cuda.Options{}}, {", not timed", cuda.Options{Untimed: true}}}, 1) {
		t.Run(w.what, func(t *testing.T) { rateGPT2(t, w.what, w.o) })
	}
}

func rateGPT2(t *testing.T, what string, o cuda.Options) {
	m, err := family.Known("gpt2")
	check(t, err)
	seq, batch := onGPU(1024, 16), onGPU(16, 2)
	m.Vocab, m.Layers = onGPU(m.Vocab, 40), onGPU(m.Layers, 1)
	m.Width, m.FeedForward, m.HeadDim = onGPU(m.Width, 192), onGPU(m.FeedForward, 64), onGPU(m.HeadDim, 16)
	g, err := graph.Build(m, seq, graph.BF16)
	check(t, err)
	p, err := lower.Lower(context.Background(), g, plan.Plain(g, batch), lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits})
	check(t, err)
	d := open(t, o)
	s, err := session.Open(g, []device.Device{d}, []*program.Program{p})
	check(t, err)
	defer s.Close()
	for i, q := range g.Params {
		buf := make([]float32, q.Elems())
		session.Initial(q, uint64(i), 0, buf)
		check(t, s.Engine(0).WriteHome(i, optimizer.Weights, 0, buf))
		clear(buf)
		check(t, s.Engine(0).WriteHome(i, optimizer.FirstMoment, 0, buf))
		check(t, s.Engine(0).WriteHome(i, optimizer.SecondMoment, 0, buf))
	}
	r := rand.New(rand.NewPCG(2, 2))
	tokens, targets := make([]int32, seq*batch), make([]int32, seq*batch)
	for i := range tokens {
		tokens[i], targets[i] = int32(r.IntN(m.Vocab)), int32(r.IntN(m.Vocab))
	}
	best, first, last := 0.0, 0.0, 0.0
	for n := 1; n <= onGPU(10, 2); n++ {
		out, err := s.Step(context.Background(), 0, session.Batch{Tokens: tokens, Targets: targets}, session.Scalars{Rate: 1e-4, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: len(targets)})
		check(t, err)
		if n == 1 {
			first = out.Loss
		}
		if last = out.Loss; best == 0 || out.Seconds < best {
			best = out.Seconds
		}
	}
	if !(last < first) {
		t.Errorf("the loss went from %v to %v", first, last)
	}
	rate(t, "GPT-2 124M, bf16, 16 x 1024"+what, float64(seq*batch)/best, "tokens/s")
	if refused := d.Refused(); refused != nil {
		t.Errorf("the library refused %v", refused)
	}
	if !o.Untimed {
		profile(t, s, best)
	}
}

// profile prints the operators' shares of one more step.
func profile(t *testing.T, s *session.Session, step float64) {
	t.Helper()
	res, err := s.Engine(0).Step(context.Background())
	check(t, err)
	line, err := res.Timeline()
	check(t, err)
	var sum [graph.NumOps]float64
	var ops []graph.Op
	for i := range s.Program(0).Instrs {
		op := s.Program(0).Instrs[i].Op
		if sum[op] == 0 {
			ops = append(ops, op)
		}
		sum[op] += line.Spans[i].End - line.Spans[i].Start
	}
	slices.SortFunc(ops, func(a, b graph.Op) int { return cmp.Compare(sum[b], sum[a]) })
	for _, op := range ops[:min(len(ops), 12)] {
		rate(t, "  of it "+op.String(), sum[op]*1e3, "ms")
	}
	rate(t, "  step", step*1e3, "ms")
}
