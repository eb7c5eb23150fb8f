package kernel

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// momentsFixture is what tools/moments_fixtures.py writes.
type momentsFixture struct {
	Rate, Beta1, Beta2, Eps, Decay float64
	Count                          int
	Signed, Unsigned               []int32
	Weights                        []float64
	Steps                          []struct {
		M, V   string
		MScale []float64 `json:"m_scale"`
		VScale []float64 `json:"v_scale"`
	}
}

func readMoments(t *testing.T) (f momentsFixture) {
	text, err := os.ReadFile("testdata/moments.json")
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestMomentValues: the values are bitsandbytes', bit for bit.
func TestMomentValues(t *testing.T) {
	f := readMoments(t)
	for k, want := range [2][]int32{f.Signed, f.Unsigned} {
		for i, x := range momentMaps[k].values {
			if w := math.Float32frombits(uint32(want[i])); x != w {
				t.Errorf("moment %d: value %d is %g, bitsandbytes has %g", k, i, x, w)
			}
		}
	}
}

// middle is half way between a value and the next.
func middle(m *momentMap, i int) float32 { return (m.values[i] + m.values[i+1]) / 2 }

// TestMomentIndex: the index of a number is that of the nearest value, at all borders and between them.
func TestMomentIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for k := range momentMaps {
		m := momentMaps[k]
		check := func(x float32) {
			want := 0
			for want < 255 && middle(m, want) < x {
				want++
			}
			if got := int(m.index(x)); got != want {
				t.Fatalf("moment %d: index(%g) = %d, want %d", k, x, got, want)
			}
		}
		for i := range 255 {
			x := middle(m, i)
			check(x)
			check(math.Nextafter32(x, -2))
			check(math.Nextafter32(x, 2))
		}
		for range testkit.Count(2000, 20000, 1000000) {
			x := float32(r.NormFloat64() * math.Pow(10, -8*r.Float64()))
			check(max(-1, min(1, x)))
		}
		for i, x := range m.values {
			if int(m.index(x)) != i {
				t.Errorf("moment %d: value %d has index %d", k, i, m.index(x))
			}
		}
	}
}

// TestMomentVectors: vector instructions find the values and indices that loops find, at all middles and values, at numbers
// next to these, at all magnitudes, and whatever the scale; and the same scales of blocks that have none.
func TestMomentVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	for k, m := range momentMaps {
		for _, v := range simd.Sets() {
			if v.Encode == nil {
				continue
			}
			same := func(x []float32) {
				for ; len(x) > 0; x = x[min(len(x), graph.MomentBlock-1):] {
					block := make([]float32, graph.MomentBlock)
					copy(block[1:], x)
					if block[0] = 1; len(x) == 1 {
						copy(block, slices.Repeat(x, graph.MomentBlock))
					}
					var got, want [graph.MomentBytes]uint8
					m.pack(v, got[:], block)
					m.pack(nil, want[:], block)
					if i := firstOther(got[:], want[:]); i >= 0 {
						t.Fatalf("moment %d, %s, %x: byte %d is %d, want %d", k, v.Name, math.Float32bits(block[max(0, i-4)]), i, got[i], want[i])
					}
					own, other := make([]float32, graph.MomentBlock), make([]float32, graph.MomentBlock)
					m.unpack(v, own, got[:])
					m.unpack(nil, other, got[:])
					for i := range own {
						if math.Float32bits(own[i]) != math.Float32bits(other[i]) {
							t.Fatalf("moment %d, %s: index %d is %g, want %g", k, v.Name, got[4+i], own[i], other[i])
						}
					}
				}
			}
			var x []float32
			near := uint32(testkit.Count(2, 8, 1<<12))
			for i := range 255 {
				for _, at := range []float32{middle(m, i), m.values[i]} {
					for d := range 2*near + 1 {
						x = append(x, math.Float32frombits(max(math.Float32bits(at)&0x7fffffff+d, near)-near|math.Float32bits(at)&(1<<31)))
					}
				}
			}
			every := testkit.Count(1<<16, 1<<13, 1) // of all numbers up to 1
			for bits := 0; bits <= 0x3f800000; bits += every {
				at := min(bits+r.IntN(every), 0x3f800000)
				for _, sign := range []uint32{0, 1 << 31} {
					if x = append(x, math.Float32frombits(uint32(at)|sign)); len(x) > 1<<16 {
						same(x)
						x = x[:0]
					}
				}
			}
			same(x)
			for range testkit.Count(50, 500, 50000) {
				x, scale := make([]float32, graph.MomentBlock), math.Pow(2, 300*r.Float64()-150)
				for i := range x {
					x[i] = float32(r.NormFloat64() * scale)
				}
				same(x)
			}
			for _, x := range []float32{0, float32(math.Inf(-1)), float32(math.NaN()), math.Float32frombits(leastLargest), math.Float32frombits(leastLargest - 1), math.MaxFloat32} {
				same([]float32{x})
			}
		}
	}
}

// firstOther returns the first place where two slices differ; -1 if there is none.
func firstOther(a, b []uint8) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// fixtureNumber is number in tools/moments_fixtures.py.
func fixtureNumber(i, step int) float32 {
	h := uint32((i*16+step)*2654435761) / 65536
	return float32((float64(h) - 32768) / 32768 / float64(int(1)<<(i%13)))
}

// TestPackedAdamW: ten updates with packed moments are those of bitsandbytes, but for numbers that are as near to one value as to
// the next, in both versions of the kernel.
func TestPackedAdamW(t *testing.T) {
	f := readMoments(t)
	for name, run := range map[string]func(*Env, *graph.Attr, []Tensor){"reference": Lookup(graph.AdamW).Reference, "fast": Lookup(graph.AdamW).Fast} {
		e := NewEnv(2)
		defer e.Close()
		n := f.Count
		ts := []Tensor{NewTensor(graph.F32, 1, n), NewTensor(graph.U8, 1, graph.PackedMoments(n)), NewTensor(graph.U8, 1, graph.PackedMoments(n)),
			NewTensor(graph.F32, 1, n), {}, NewTensor(graph.F32, 1, graph.NumScalars), {}, {}}
		for i := range n {
			ts[0].F32[i] = fixtureNumber(i, 0)
		}
		a := graph.Attr{Beta1: f.Beta1, Beta2: f.Beta2, Eps: f.Eps, Decay: f.Decay}
		for s, want := range f.Steps {
			for i := range n {
				ts[graph.AdamWGrad].F32[i] = fixtureNumber(i, s+1)
			}
			scalars := ts[graph.AdamWScalars].F32
			scalars[graph.ScalarLR] = float32(f.Rate)
			scalars[graph.ScalarCorrection1] = float32(1 - math.Pow(f.Beta1, float64(s+1)))
			scalars[graph.ScalarCorrection2] = float32(1 - math.Pow(f.Beta2, float64(s+1)))
			run(e, &a, ts)
			for k, text := range []string{want.M, want.V} {
				codes, err := hex.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				scales := [2][]float64{want.MScale, want.VScale}[k]
				for i, code := range codes {
					b := ts[1+k].U8[i/graph.MomentBlock*graph.MomentBytes:]
					scale := float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
					if w := scales[i/graph.MomentBlock]; math.Abs(scale-w) > 1e-5*w {
						t.Fatalf("%s, step %d, moment %d: scale %g, want %g", name, s+1, k, scale, w)
					}
					if d := int(b[4+i%graph.MomentBlock]) - int(code); d < -1 || d > 1 || d != 0 && s == 0 {
						t.Errorf("%s, step %d, moment %d, element %d: index %d, want %d", name, s+1, k, i, b[4+i%graph.MomentBlock], code)
					}
				}
			}
		}
		for i, w := range f.Weights {
			if d := math.Abs(ts[0].At(0, i) - w); d > 1e-5 {
				t.Errorf("%s: weight %d is %g, want %g", name, i, ts[0].At(0, i), w)
			}
		}
	}
}

func BenchmarkMoments(b *testing.B) {
	const n = 1 << 14
	r := rand.New(rand.NewPCG(1, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	packed := make([]byte, graph.PackedMoments(n))
	for k, name := range []string{"signed", "squares"} {
		for _, v := range simd.Sets() {
			b.Run("pack "+name+" "+v.Name, func(b *testing.B) {
				b.SetBytes(4 * n)
				for b.Loop() {
					momentMaps[k].pack(v, packed, x)
				}
			})
			b.Run("unpack "+name+" "+v.Name, func(b *testing.B) {
				b.SetBytes(4 * n)
				for b.Loop() {
					momentMaps[k].unpack(v, x, packed)
				}
			})
		}
	}
}

func BenchmarkPackedAdamW(b *testing.B) {
	const n = 1 << 23
	e := NewEnv(2)
	defer e.Close()
	r := rand.New(rand.NewPCG(1, 1))
	for _, packed := range []bool{false, true} {
		t := updated(r, graph.F32, graph.F32, n)
		if packed {
			for k := range 2 {
				u8 := NewTensor(graph.U8, 1, graph.PackedMoments(n))
				momentMaps[k].pack(nil, u8.U8, t[1+k].F32)
				t[1+k] = u8
			}
		}
		b.Run(t[1].DType.String(), func(b *testing.B) {
			a := graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}
			for b.Loop() {
				Lookup(graph.AdamW).Fast(e, &a, t)
			}
		})
	}
}
