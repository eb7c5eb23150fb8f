//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
)

// TestRateBackwardVariants: an experiment, not to stay.
func TestRateBackwardVariants(t *testing.T) {
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Printf("RATE %5.1fs "+format+"\n", append([]any{time.Since(began).Seconds()}, args...)...)
	}
	cores := kernel.NewEnv(1)
	defer cores.Close()
	d, _ := machine(t, Options{}, int64(onlyGPU(imageBytes+3<<30, 2*imageBytes)))
	defer func() { backwardNow, backwardOf = 0, "" }()

	// Samples: long ones and some of TestOperators'.
	var samples []*sample
	for _, head := range []int{64, 128} {
		samples = append(samples, longSample(graph.AttentionBwd, false, head))
	}
	samples = append(samples, longSample(graph.AttentionBwd, true, 64))
	for seed := fresh(t); len(samples) < onlyGPU(8, 1); seed++ {
		if seed%2 == 1 || seed%8 < 4 {
			continue
		}
		if s := newSample(graph.AttentionBwd, seed); (s.call.Attr.HeadDim == 64 || s.call.Attr.HeadDim == 128 && len(s.call.Args) == 8) && s.call.Attr.Seq > 60 {
			samples = append(samples, s)
		}
	}
	if !onGPU() {
		samples = samples[:1]
		all := backwardVariants
		backwardVariants = []backwardVariant{all[0], all[6]}
		defer func() { backwardVariants = all }()
	}
	wants, presents := make([][]byte, len(samples)), make([][]byte, len(samples))
	var units sync.WaitGroup
	for i, s := range samples {
		s.poison()
		units.Go(func() { wants[i] = s.reference() })
	}

	// Compile everything at once.
	seen := map[string]bool{}
	for backwardNow = range backwardVariants {
		for _, s := range samples {
			b := &builder{target: target{hopper: true, major: 9}, call: &s.call}
			u := attentionUnit(b.attentionBackwardOf(b.present(8)...).file, &s.call, b.present(8))
			if seen[u.String()] {
				continue
			}
			seen[u.String()] = true
			units.Go(func() {
				if _, err := d.cache.Load(u, d.arch); err != nil {
					say("%v: %v", u, err)
				}
			})
		}
	}
	units.Wait()
	say("%d units are compiled", len(seen))
	if onGPU() { // a kernel may hang
		time.AfterFunc(12*time.Second, func() {
			say("HANGS: %s, %s", backwardVariants[backwardNow].name, backwardOf)
			os.Exit(3)
		})
	}

	some := randomBF16(rand.New(rand.NewPCG(1, 1)), onlyGPU(16<<20, 1<<12))
	shapes := [][5]int{{32, 1024, 12, 12, 64}, {8, 4096, 12, 12, 64}, {4, 4096, 32, 8, 64}, {16, 1024, 32, 8, 128}, {4, 4096, 32, 8, 128}}
	if !onGPU() {
		shapes = [][5]int{{2, 200, 2, 1, 64}}
	}
	at := int64(imageBytes)
	var rates []func()
	for _, x := range shapes {
		n, heads, kv, s := x[0]*x[1], x[2], x[3], x[4]
		place := func(dt graph.DType, cols int) device.Operand {
			o := device.Operand{DType: dt, Addr: at, Rows: n, Cols: cols, Stride: cols}
			at = (at + o.Bytes() + 255) &^ 255
			return o
		}
		band := func(all device.Operand, from, cols int) device.Operand {
			all.Addr, all.Cols = all.Addr+2*int64(from), cols
			return all
		}
		w := heads * s
		qkv, o, lse := place(graph.BF16, w+2*kv*s), place(graph.BF16, w), place(graph.F32, heads)
		do, delta, dqkv := place(graph.BF16, w), place(graph.F32, heads), place(graph.BF16, w+2*kv*s)
		for _, in := range []device.Operand{qkv, do} {
			for a := in.Addr; a < in.End(); a += int64(len(some)) {
				if err := d.Write(device.DeviceTier, a, some[:min(int64(len(some)), in.End()-a)]); err != nil {
					t.Fatal(err)
				}
			}
		}
		a := graph.Attr{Seq: x[1], Heads: heads, KVHeads: kv, HeadDim: s, Scale: 0.1}
		q, k := band(qkv, 0, w), band(qkv, w, 2*kv*s)
		call := device.Call{Op: graph.AttentionBwd, Attr: a, Args: []device.Operand{band(dqkv, 0, w), band(dqkv, w, 2*kv*s), delta, do, q, k, o, lse}}
		run := func(times int, c device.Call) float64 {
			spans := make([]device.Span, 1)
			first, err := d.Prepare([]device.Call{c}, spans)
			if err != nil {
				say("%s: %v", backwardVariants[backwardNow].name, err)
				return math.NaN()
			}
			best := math.Inf(1)
			for range times {
				d.Launch(first)
				if err := d.Sync(); err != nil {
					t.Fatalf("%s: %v", backwardVariants[backwardNow].name, err)
				}
				best = min(best, spans[0].End-spans[0].Start)
			}
			return best
		}
		run(1, device.Call{Op: graph.Attention, Attr: a, Args: []device.Operand{o, lse, q, k}})
		var dims []graph.Dim
		for _, o := range call.Args {
			dims = append(dims, o.Dim())
		}
		flops := float64(call.Op.FLOPs(&a, dims))
		part := min(dqkv.Bytes(), 4<<20)
		results := func() []byte {
			out := make([]byte, 2*part)
			if err := errors.Join(d.Read(device.DeviceTier, dqkv.Addr, out[:part]), d.Read(device.DeviceTier, dqkv.End()-part, out[part:])); err != nil {
				t.Fatal(err)
			}
			return out
		}
		var present []byte
		rates = append(rates, func() {
			var seconds [3]float64
			var bits []byte
			differ := ""
			for i, only := range []string{"queries", "keys", ""} {
				backwardOf = only
				seconds[i] = run(4, call)
				if i == 1 {
					bits = results()
				}
			}
			again := results()
			if !bytes.Equal(bits, again) {
				differ = ", TWO RUNS DIFFER"
			}
			if present == nil {
				present = again
			}
			var most, size float64
			for i := 0; i < len(again); i += 2 {
				g := float64(math.Float32frombits(uint32(again[i])<<16 | uint32(again[i+1])<<24))
				p := float64(math.Float32frombits(uint32(present[i])<<16 | uint32(present[i+1])<<24))
				if d := math.Abs(g - p); d > most || d != d {
					most = d
				}
				size = max(size, math.Abs(p))
			}
			say("backward %dx%d %d on %d of %d: %6.1f TFLOP/s, queries %7.1f us, keys %7.1f us, off %.1e of %.1e%s; %s", x[0], x[1], heads, kv, s,
				flops/seconds[2]/1e12, seconds[0]*1e6, seconds[1]*1e6, most, size, differ, backwardVariants[backwardNow].name)
		})
	}
	for backwardNow = range backwardVariants {
		failed, same := 0, 0
		for i, s := range samples {
			got := execute(t, d, s.call, s.image)
			var twice error
			if !bytes.Equal(got, execute(t, d, s.call, s.image)) {
				twice = errors.New("two runs differ")
				say("%s: %v: %v", backwardVariants[backwardNow].name, s, twice)
			}
			if presents[i] == nil {
				presents[i] = got
			}
			if bytes.Equal(got, presents[i]) && backwardNow > 0 {
				same++
				continue
			}
			if backwardNow > 0 {
				twice = errors.Join(twice, s.twice(cores, got))
			}
			if err := errors.Join(twice, s.check(bytes.Clone(got), bytes.Clone(wants[i]))); err != nil {
				failed++
				say("%s: %v: %v", backwardVariants[backwardNow].name, s, err)
			}
		}
		say("%s: %d of %d samples are right, %d have the present kernels' bits", backwardVariants[backwardNow].name, len(samples)-failed, len(samples), same)
		for _, rate := range rates {
			rate()
		}
	}
}

func onlyGPU(real, toy int) int {
	if onGPU() {
		return real
	}
	return toy
}
