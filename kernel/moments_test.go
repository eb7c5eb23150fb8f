package kernel

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
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
		b.Run("pack "+name, func(b *testing.B) {
			b.SetBytes(4 * n)
			for b.Loop() {
				momentMaps[k].pack(packed, x)
			}
		})
		b.Run("unpack "+name, func(b *testing.B) {
			b.SetBytes(4 * n)
			for b.Loop() {
				momentMaps[k].unpack(x, packed)
			}
		})
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
				momentMaps[k].pack(u8.U8, t[1+k].F32)
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
