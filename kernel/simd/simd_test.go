package simd

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/simd/internal/emit"
)

// TestGenerated: the committed assembly equals the generator's output.
func TestGenerated(t *testing.T) {
	for name, want := range emit.Files() {
		got, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not up to date (%v); hint: go generate ./kernel/simd", name, err)
		}
	}
}

// vectors runs f for every table except the portable one.
func vectors(t *testing.T, f func(t *testing.T, v *Set)) {
	for _, v := range Sets() {
		if v.Name != "portable" {
			t.Run(v.Name, func(t *testing.T) { f(t, v) })
		}
	}
}

// TestAgainstPortable calls every function of every table on random slices of all lengths up to
// 150, at odd addresses, and compares results and all memory around them with the portable
// function. Functions are found by reflection, so none can be forgotten. Functions of matrices get
// one row here; see TestColumns.
func TestAgainstPortable(t *testing.T) {
	vectors(t, func(t *testing.T, v *Set) {
		both(v, Portable(), func(name string, f, portable reflect.Value) { compare(t, name, f, portable) })
	})
}

// apart have tests of their own, in package kernel those of simd.Codes.
var apart = []string{"Transpose", "NF4", "NF4Half", "Counts", "Expand", "Decode", "Encode", "Largest"}

// both calls f for every pair of functions of two sets that reflection finds,
// those of Half and Past too.
func both(a, b *Set, f func(name string, a, b reflect.Value)) {
	var walk func(name string, a, b reflect.Value)
	walk = func(name string, a, b reflect.Value) {
		switch a.Kind() {
		case reflect.Struct:
			for i := range a.NumField() {
				walk(name+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
			}
		case reflect.Array:
			for i := range a.Len() {
				walk(fmt.Sprintf("%s[%d]", name, i), a.Index(i), b.Index(i))
			}
		case reflect.Func:
			if field := name[strings.LastIndex(name, ".")+1:]; a.Type().NumIn() > 0 && !slices.Contains(apart, field) {
				f(name, a, b)
			}
		}
	}
	walk(a.Name, reflect.ValueOf(*a), reflect.ValueOf(*b))
	walk(a.Name+".Past", reflect.ValueOf(*a.Past), reflect.ValueOf(*b.Past))
}

func compare(t *testing.T, name string, f, portable reflect.Value) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 150 {
		a, b := arguments(r, f.Type(), n)
		x, y := f.Call(a), portable.Call(b)
		// Sums of n terms of size 1: relative to n. Elements: relative to 8, the largest possible.
		for i := range x {
			if d := math.Abs(x[i].Float() - y[i].Float()); !(d <= 1e-6*float64(n+1) || x[i].Float() == y[i].Float()) {
				t.Fatalf("%s of %d elements: result %d is %v, want %v", name, n, i, x[i], y[i])
			}
		}
		for i := range a {
			if a[i].Kind() != reflect.Slice {
				continue
			}
			p, q := a[i].Slice3(0, a[i].Cap(), a[i].Cap()), b[i].Slice3(0, b[i].Cap(), b[i].Cap())
			for k := range p.Len() {
				var g, w, bound float64
				if p.Type().Elem().Kind() == reflect.Uint16 {
					g, w, bound = float64(float16.FromBF16(uint16(p.Index(k).Uint()))), float64(float16.FromBF16(uint16(q.Index(k).Uint()))), 1.0/128
				} else {
					g, w, bound = p.Index(k).Float(), q.Index(k).Float(), 2e-6
				}
				if d := math.Abs(g - w); !(d <= bound*(1+math.Abs(w))) && p.Index(k).Interface() != q.Index(k).Interface() {
					t.Fatalf("%s of %d elements: argument %d element %d is %v, want %v", name, n, i, k, g, w)
				}
			}
		}
	}
}

// arguments makes two equal sets of arguments; slices lie at odd places in
// larger ones.
func arguments(r *rand.Rand, f reflect.Type, n int) (a, b []reflect.Value) {
	return argumentsOf(r, f, n, func() float32 { return float32(r.NormFloat64()) })
}

// argumentsOf makes arguments of given numbers.
func argumentsOf(r *rand.Rand, f reflect.Type, n int, number func() float32) (a, b []reflect.Value) {
	for i := range f.NumIn() {
		switch in := f.In(i); in.Kind() {
		case reflect.Int:
			a, b = append(a, reflect.ValueOf(n)), append(b, reflect.ValueOf(n))
		case reflect.Float32:
			v := reflect.ValueOf(0.5 + r.Float32())
			a, b = append(a, v), append(b, v)
		case reflect.Uint32:
			v := reflect.ValueOf(r.Uint32())
			a, b = append(a, v), append(b, v)
		case reflect.Pointer:
			v := reflect.ValueOf(&Update{Clip: 0.5, Beta1: 0.9, Rest1: 0.1, Beta2: 0.95, Rest2: 0.05, Keep: 0.99, Step: 0.01, Root: 1.5, Eps: 1e-3})
			a, b = append(a, v), append(b, v)
		case reflect.Slice:
			off := r.IntN(9)
			if r.IntN(2) == 0 {
				off = 0 // aligned, as non-temporal stores require
			}
			x, y := aligned(in, off+n+20), aligned(in, off+n+20)
			for k := range x.Len() {
				v := number()
				if i == 2 && f.NumIn() > 4 && f.In(f.NumIn()-1).Kind() == reflect.Pointer && f.In(3) == f.In(2) {
					v = v * v // AdamW's second moment is not negative
				}
				if in.Elem().Kind() == reflect.Uint16 {
					x.Index(k).SetUint(uint64(float16.ToBF16(v)))
				} else {
					x.Index(k).SetFloat(float64(v))
				}
				y.Index(k).Set(x.Index(k))
			}
			a, b = append(a, x.Slice(off, off+n)), append(b, y.Slice(off, off+n))
		}
	}
	return a, b
}

// aligned makes a slice that begins at a cache line.
func aligned(kind reflect.Type, n int) reflect.Value {
	const line = 64
	size := int(kind.Elem().Size())
	x := reflect.MakeSlice(kind, n+line/size, n+line/size)
	off := int(-x.Pointer()%line) / size
	return x.Slice3(off, off+n, off+n)
}

// TestSameBits: AVX2 and AVX-512 give the same bits, sums too.
func TestSameBits(t *testing.T) {
	sets := Sets()
	if len(sets) < 3 {
		t.Skip("one vector instruction set only")
	}
	r := rand.New(rand.NewPCG(3, 4))
	call := func(name string, f, g reflect.Value) {
		for n := 0; n < 300; n += testkit.Count(7, 1, 1) {
			a, b := arguments(r, f.Type(), n)
			x, y := f.Call(a), g.Call(b)
			for i := range x {
				if x[i].Float() != y[i].Float() {
					t.Fatalf("%s of %d elements: %v and %v", name, n, x[i], y[i])
				}
			}
			for i := range a {
				if a[i].Kind() == reflect.Slice && !reflect.DeepEqual(a[i].Interface(), b[i].Interface()) {
					t.Fatalf("%s of %d elements: argument %d differs", name, n, i)
				}
			}
		}
	}
	both(sets[0], sets[1], call)
}

// TestHalf: a bf16 function gives the bits of widening, the float32 function, and narrowing.
func TestHalf(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	vectors(t, func(t *testing.T, v *Set) {
		for _, v := range []*Set{v, v.Past} {
			set, half := reflect.ValueOf(*v), reflect.ValueOf(v.Half)
			call := func(name string, f, g reflect.Value) {
				for n := range 150 {
					a, b := arguments(r, f.Type(), n)
					for i := range b {
						if x, ok := b[i].Interface().([]uint16); ok && g.Type().In(i).Elem().Kind() == reflect.Float32 {
							y := make([]float32, len(x))
							widen(y, x)
							b[i] = reflect.ValueOf(y)
						}
					}
					x, y := f.Call(a), g.Call(b)
					for i := range a {
						if y, ok := b[i].Interface().([]float32); ok && a[i].Type() != b[i].Type() {
							x := make([]uint16, len(y))
							narrow(x, y)
							b[i] = reflect.ValueOf(x)
						}
						if a[i].Kind() == reflect.Slice && !reflect.DeepEqual(a[i].Interface(), b[i].Interface()) {
							t.Fatalf("Half.%s of %d elements: argument %d is %v, want %v", name, n, i, a[i], b[i])
						}
					}
					for i := range x {
						if x[i].Float() != y[i].Float() {
							t.Fatalf("Half.%s of %d elements: result %d is %v, want %v", name, n, i, x[i], y[i])
						}
					}
				}
			}
			for i := range half.NumField() {
				name := half.Type().Field(i).Name
				f, g := half.Field(i), set.FieldByName(name)
				if f.Kind() == reflect.Func {
					call(name, f, g)
					continue
				}
				for k := range f.Len() {
					call(name, f.Index(k), g.Index(k))
				}
			}
		}
	})
}

// TestAnywhere: an element's bits do not depend on its position in a slice.
func TestAnywhere(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	vectors(t, func(t *testing.T, v *Set) {
		x, y, z := make([]float32, 100), make([]float32, 100), make([]float32, 1)
		for i := range x {
			x[i] = float32(r.NormFloat64() * 5)
		}
		for k, f := range v.Act {
			f(y, x)
			for i := range x {
				if f(z, x[i:i+1]); y[i] != z[0] {
					t.Fatalf("Act[%d](%v) is %v alone and %v among others", k, x[i], z[0], y[i])
				}
			}
		}
	})
}

// TestDraw: results are neighbours of x and equal those of the portable table bit for bit,
// whatever the position in a slice. Numbers that bf16 can represent, NaNs and infinities are
// unchanged. The mean of many draws is x, within six of its standard deviations.
func TestDraw(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	inf := math.Inf(1)
	for _, v := range Sets() {
		t.Run(v.Name, func(t *testing.T) {
			x := make([]float32, 1000)
			for i := range x {
				x[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(60)-30)))
			}
			copy(x, []float32{0, float32(math.Copysign(0, -1)), 1, -1.5, float32(inf), float32(-inf), float32(math.NaN()), math.MaxFloat32, 1e-45})
			const rounds = 4000
			sum, y, want, part := make([]float64, len(x)), make([]uint16, len(x)), make([]uint16, len(x)), make([]uint16, 3)
			for range rounds {
				first, low, high := r.Uint32(), r.Uint32(), r.Uint32()
				v.Draw(y, x, first, low, high)
				draw(want, x, first, low, high)
				at := r.IntN(len(x) - len(part))
				v.Draw(part, x[at:], first+uint32(at), low, high)
				for i := range x {
					got := float16.FromBF16(y[i])
					below := math.Float32frombits(math.Float32bits(x[i]) &^ 0xffff) // in magnitude
					above := math.Float32frombits(math.Float32bits(below) + 1<<16)
					sum[i] += float64(got)
					switch {
					case y[i] != want[i], i >= at && i < at+len(part) && part[i-at] != y[i]:
						t.Fatalf("%v is %v, in portable Go %v; of three %v", x[i], got, float16.FromBF16(want[i]), part)
					case x[i] != x[i] && got != got, x[i] == below && got == x[i]:
					case x[i] != below && (got == below || got == above):
					default:
						t.Fatalf("%v is %v", x[i], got)
					}
				}
			}
			var all float64 // squares of deviations, each of mean 1
			n := 0
			for i := range x {
				below := float64(math.Float32frombits(math.Float32bits(x[i]) &^ 0xffff))
				step := float64(math.Float32frombits(math.Float32bits(x[i])&^0xffff+1<<16)) - below
				share := (float64(x[i]) - below) / step
				if !(share > 0 && share < 1) || math.IsInf(step, 0) {
					continue
				}
				deviation := (sum[i]/rounds - float64(x[i])) / step / math.Sqrt(share*(1-share)/rounds)
				if share*rounds > 20 && (1-share)*rounds > 20 && math.Abs(deviation) > 6 {
					t.Errorf("the mean of %d draws of %v is %v, %.1f standard deviations off", rounds, x[i], sum[i]/rounds, deviation)
				}
				all += deviation * deviation
				n++
			}
			if mean := all / float64(n); math.Abs(mean-1) > 0.5 {
				t.Errorf("%d means of draws have %.2f of the variance of independent ones", n, mean)
			}
		})
	}
}

// TestHalves: the upper half is the nearest bf16, and both halves together are the number, to
// the bit, in all tables and for all lengths. A NaN stays one, also in the upper half.
func TestHalves(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 6))
	x := make([]float32, 1000)
	for i := range x {
		x[i] = math.Float32frombits(r.Uint32())
		if i%2 == 0 { // half way between two bf16
			x[i] = math.Float32frombits(r.Uint32()&^0xffff | 0x8000)
		}
	}
	copy(x, []float32{0, float32(math.Copysign(0, -1)), 1, float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, 1e-45,
		math.Float32frombits(0x7fffffff), math.Float32frombits(0xffffffff), math.Float32frombits(0x7f800001)})
	for _, v := range Sets() {
		for _, n := range []int{0, 1, 7, 8, 15, 16, 17, len(x)} {
			upper, rest, back, wide := make([]uint16, n), make([]uint16, n), make([]float32, n), make([]uint16, n)
			v.Halve(upper, rest, x[:n])
			v.Widen(back, upper)
			v.Join(back, rest)
			v.AdamW16(slices.Clone(x[:n]), make([]float32, n), make([]float32, n), make([]float32, n), wide, &Update{Keep: 1, Eps: 1})
			for i, f := range x[:n] {
				top := float64(float16.FromBF16(upper[i]))
				distance, spacing := math.Abs(top-float64(f)), math.Abs(float64(float16.FromBF16(upper[i]^1))-top)
				switch {
				case f != f && (top == top || back[i] == back[i]):
					t.Fatalf("%s: NaN %#x became %v and %v", v.Name, math.Float32bits(f), top, back[i])
				case f != f:
				case math.Float32bits(back[i]) != math.Float32bits(f) || float16.Join(upper[i], rest[i]) != f:
					t.Fatalf("%s: %v came back as %v", v.Name, f, back[i])
				case !math.IsInf(top, 0) && distance > spacing/2:
					t.Fatalf("%s: %v is %v as bf16", v.Name, f, top)
				case math.Float32bits(f) != 1<<31 && wide[i] != upper[i]: // +0 is added to -0
					t.Fatalf("%s: AdamW16 makes %#x of %v, Halve %#x", v.Name, wide[i], f, upper[i])
				}
			}
		}
	}
}

// TestDrawNeighbours: the random bits of neighbouring elements, and of different keys, are
// uncorrelated. Exception: of pairs of keys that differ in the upper half only, which happens once
// in 2^32 pairs of a run, about one in a hundred shows a correlation of up to a twentieth.
func TestDrawNeighbours(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 6))
	const n, keys = 1 << 16, 15
	for name, next := range map[string]func(i, low, high, other, another uint32) uint32{
		"next":    func(i, low, high, _, _ uint32) uint32 { return Draws(i+1, low, high) },
		"64 on":   func(i, low, high, _, _ uint32) uint32 { return Draws(i+64, low, high) },
		"2^16 on": func(i, low, high, _, _ uint32) uint32 { return Draws(i+1<<16, low, high) },
		"low":     func(i, _, high, other, _ uint32) uint32 { return Draws(i, other, high) },
		"high":    func(i, low, _, other, _ uint32) uint32 { return Draws(i, low, other) },
		"key":     func(i, _, _, other, another uint32) uint32 { return Draws(i, other, another) },
	} {
		var correlations []float64 // in standard deviations
		for range keys {
			low, high, other, another := r.Uint32(), r.Uint32(), r.Uint32(), r.Uint32()
			var sum, product float64
			for i := range uint32(n) {
				x, y := float64(Draws(i, low, high))/(1<<16)-0.5, float64(next(i, low, high, other, another))/(1<<16)-0.5
				sum += x
				product += x * y
			}
			if d := sum * math.Sqrt(12.0/n); math.Abs(d) > 6 {
				t.Errorf("%s: the mean of %d draws is %.1f standard deviations off", name, n, d)
			}
			correlations = append(correlations, math.Abs(product*12/math.Sqrt(n)))
		}
		slices.Sort(correlations)
		if middle, largest := correlations[keys/2], correlations[keys-1]; middle > 2.5 || largest > 6 && name != "high" {
			t.Errorf("%s: correlations of %d draws are %.1f (middle) to %.1f (largest) standard deviations off", name, n, middle, largest)
		}
	}
}

// ulps returns the distance of a float32 from an exact value, in units in the last place of the
// exact value.
func ulps(got float32, want float64) float64 {
	if float64(got) == want || got == float32(want) {
		return 0
	}
	w := float32(want)
	unit := float64(math.Nextafter32(float32(math.Abs(float64(w))), math.MaxFloat32)) - math.Abs(float64(w))
	return math.Abs(float64(got)-want) / unit
}

// TestTanhAccuracy checks the stated bound over all magnitudes, with either sign.
func TestTanhAccuracy(t *testing.T) {
	vectors(t, func(t *testing.T, v *Set) {
		x, y := make([]float32, 1<<16), make([]float32, 1<<16)
		for i := range x {
			x[i] = float32(math.Copysign(math.Exp(-20+24*float64(i)/float64(len(x))), float64(i%2)-0.5))
		}
		v.Tanh(y, x, 1)
		var worst, at float64
		for i := range x {
			if e := ulps(y[i], math.Tanh(float64(x[i]))); e > worst {
				worst, at = e, float64(x[i])
			}
		}
		t.Logf("largest error %.3f ulp at %v", worst, at)
		if worst > 3 {
			t.Errorf("error of %.3f ulp at %v", worst, at)
		}
	})
}

// TestExpAccuracy checks the stated bound over the whole range.
func TestExpAccuracy(t *testing.T) {
	vectors(t, func(t *testing.T, v *Set) {
		var worst, at float64
		x, y := make([]float32, 1<<16), make([]float32, 1<<16)
		for part := range 16 {
			for i := range x {
				x[i] = -105 + 195*(float32(part)+float32(i)/float32(len(x)))/16
			}
			v.Exp(y, x, x, 1, 0)
			for i := range x {
				if e := ulps(y[i], math.Exp(float64(x[i]))); e > worst {
					worst, at = e, float64(x[i])
				}
			}
		}
		t.Logf("largest error %.3f ulp at %v", worst, at)
		if worst > 2 {
			t.Errorf("error of %.3f ulp at %v", worst, at)
		}
	})
}

// TestExpSpecial tests infinities and NaNs.
func TestExpSpecial(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	vectors(t, func(t *testing.T, v *Set) {
		x := []float32{-inf, inf, -1e30, 1e30, -104.5, 89.5, 0, -120, -170, -690, -700}
		y := make([]float32, len(x))
		v.Exp(y, x, x, 1, 0)
		for i, want := range []float32{0, inf, 0, inf, 0, inf, 1, 0, 0, 0, 0} {
			if y[i] != want {
				t.Errorf("exp(%v) = %v", x[i], y[i])
			}
		}
		for k := range v.Act {
			v.Act[k](y[:1], []float32{nan})
			if y[0] == y[0] {
				t.Errorf("Act[%d](NaN) = %v", k, y[0])
			}
		}
		if s := v.Exp(y[:1], []float32{nan}, x, 1, 0); s == s || y[0] == y[0] {
			t.Errorf("exp(NaN) = %v, sum %v", y[0], s)
		}
	})
}

// TestActAccuracy bounds activations and their derivatives.
func TestActAccuracy(t *testing.T) {
	p := Portable()
	vectors(t, func(t *testing.T, v *Set) {
		x, one := make([]float32, 1<<16), make([]float32, 1<<16)
		for i := range x {
			x[i], one[i] = 20*(float32(i)/float32(len(x))-0.5), 1
		}
		copy(x, []float32{-14.9, 14.9, -15.1, 15.1, -100, 100, -1e6, 1e6})
		y, want := make([]float32, len(x)), make([]float32, len(x))
		check := func(name string) {
			var worst float64
			for i := range x {
				worst = max(worst, math.Abs(float64(y[i])-float64(want[i]))/(1+math.Abs(float64(want[i]))))
			}
			t.Logf("%s: largest error %.2g of 1+|y|", name, worst)
			if !(worst <= 4e-7) {
				t.Errorf("%s: error %v", name, worst)
			}
		}
		for k := range v.Act {
			v.Act[k](y, x)
			p.Act[k](want, x)
			check(fmt.Sprintf("Act[%d]", k))
			v.ActBwd[k](y, one, x)
			p.ActBwd[k](want, one, x)
			check(fmt.Sprintf("ActBwd[%d]", k))
		}
	})
}

// TestNarrow: every bf16 comes back from float32, and rounding is to nearest, ties to even, by
// definition: no bf16 is nearer.
func TestNarrow(t *testing.T) {
	for _, v := range Sets() {
		x, y, z := make([]uint16, 1<<16), make([]float32, 1<<16), make([]uint16, 1<<16)
		for i := range x {
			x[i] = uint16(i)
		}
		v.Widen(y, x)
		v.Narrow(z, y)
		for i := range x {
			if nan := y[i] != y[i]; z[i] != x[i] && !nan || nan && !(float16.FromBF16(z[i]) != float16.FromBF16(z[i])) {
				t.Fatalf("%s: %#x becomes %v and then %#x", v.Name, x[i], y[i], z[i])
			}
		}
		r := rand.New(rand.NewPCG(5, 6))
		for i := range y {
			y[i] = float32(r.NormFloat64())
			if i%3 == 0 { // ties
				y[i] = math.Float32frombits(math.Float32bits(y[i])&^0xffff | 0x8000)
			}
		}
		v.Narrow(z, y)
		for i := range y {
			d := func(b uint16) float64 { return math.Abs(float64(float16.FromBF16(b)) - float64(y[i])) }
			for _, other := range []uint16{z[i] - 1, z[i] + 1} {
				if d(other) < d(z[i]) || d(other) == d(z[i]) && z[i]&1 == 1 {
					t.Fatalf("%s: %v becomes %v, but %v is nearer", v.Name, y[i], float16.FromBF16(z[i]), float16.FromBF16(other))
				}
			}
		}
	}
}

// TestColumns tests functions of matrices with several rows.
func TestColumns(t *testing.T) {
	p := Portable()
	vectors(t, func(t *testing.T, v *Set) {
		r := rand.New(rand.NewPCG(7, 8))
		random := func(n int) (a, b []float32) {
			for range n {
				a = append(a, float32(r.NormFloat64()))
			}
			return a, append(b, a...)
		}
		for cols := 0; cols < 140; cols++ {
			rows := r.IntN(6)
			short := r.IntN(cols + 1) // an incomplete row, which must not be touched
			x, x2 := random(rows*cols + short)
			y, y2 := random(rows*cols + short)
			top, top2 := random(cols)
			sum, sum2 := random(cols)
			plus, _ := random(cols)
			v.ColMax(top, x)
			p.ColMax(top2, x2)
			v.ColExp(sum, plus, x, 0.7)
			p.ColExp(sum2, plus, x2, 0.7)
			z, z2 := random(rows*cols + short)
			v.ColExpBwd(plus, plus, z, y, 0.6)
			p.ColExpBwd(plus, plus, z2, y2, 0.6)
			for i, pair := range [][2][]float32{{top, top2}, {sum, sum2}, {x, x2}, {y, y2}, {z, z2}} {
				if cols == 0 {
					continue
				}
				for k := range pair[0] {
					if g, w := float64(pair[0][k]), float64(pair[1][k]); !(math.Abs(g-w) <= 2e-6*(1+math.Abs(w))) {
						t.Fatalf("%d rows of %d: argument %d, element %d: %v, want %v", rows, cols, i, k, g, w)
					}
				}
			}
		}
	})
}

func TestTranspose(t *testing.T) {
	for _, v := range Sets() {
		for rows := range 35 {
			for cols := range 35 {
				stride := cols + rows%3
				src, dst := make([]float32, rows*stride+cols), make([]float32, rows*cols+1)
				for i := range src {
					src[i] = float32(i + 1)
				}
				v.Transpose(dst, src, rows, cols, stride)
				for r := range rows {
					for c := range cols {
						if dst[c*rows+r] != src[r*stride+c] {
							t.Fatalf("%s, %d x %d: (%d,%d) is %v, want %v", v.Name, rows, cols, r, c, dst[c*rows+r], src[r*stride+c])
						}
					}
				}
				if dst[rows*cols] != 0 {
					t.Fatalf("%s, %d x %d: wrote beyond the end", v.Name, rows, cols)
				}
			}
		}
	}
}

// BenchmarkSet measures the time per element of every function on slices that fit the L2 cache.
func BenchmarkSet(b *testing.B) {
	const n = 1 << 14
	r := rand.New(rand.NewPCG(9, 10))
	for _, v := range Sets() {
		both(v, v, func(name string, f, _ reflect.Value) {
			b.Run(name, func(b *testing.B) {
				a, _ := arguments(r, f.Type(), n)
				for b.Loop() {
					f.Call(a)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		})
	}
}

// TestNF4 compares with the portable function bit for bit, at all lengths, and checks that nothing is written beyond
// the end.
func TestNF4(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, v := range Sets() {
		for n := range 300 {
			indices, scales := make([]byte, (n+1)/2), make([]float32, (n+63)/64)
			for i := range indices {
				indices[i] = byte(r.Uint32())
			}
			for i := range scales {
				scales[i] = float32(r.NormFloat64())
			}
			got, want := make([]float32, n+1), make([]float32, n+1)
			v.NF4(got[:n], indices, scales)
			Portable().NF4(want[:n], indices, scales)
			if !slices.Equal(got, want) {
				t.Fatalf("%s, %d elements: got %v, want %v", v.Name, n, got, want)
			}
			if v.NF4Half == nil {
				continue
			}
			if n%7 == 0 && n > 0 {
				scales[0] = float32(math.NaN())
			}
			half, narrow := make([]uint16, n+1), make([]uint16, n+1)
			v.NF4Half(half[:n], indices, scales)
			Portable().NF4(want[:n], indices, scales)
			Portable().Narrow(narrow[:n], want[:n])
			if !slices.Equal(half, narrow) {
				t.Fatalf("%s, %d elements in bf16: got %v, want %v", v.Name, n, half, narrow)
			}
		}
	}
}

// TestCounts compares with a sum in float64, rounded once, bit for bit, at all lengths, and checks that nothing is written beyond the end.
func TestCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 7))
	bf16 := func() float32 { return math.Float32frombits(math.Float32bits(float32(r.NormFloat64())) &^ 0xffff) }
	for _, v := range Sets() {
		for n := range 65 {
			for _, bits := range []int{8, 4} {
				least, step, list := bf16(), bf16(), make([]byte, (n*bits+7)/8)
				got, want := make([]float32, n+1), make([]float32, n+1)
				for i := range list {
					list[i] = byte(r.Uint32())
				}
				for i := range n {
					count := list[i*bits/8] >> (i * bits % 8) & (1<<bits - 1)
					want[i] = float32(float64(least) + float64(count)*float64(step))
				}
				v.Counts(got[:n], list, bits, least, step)
				if !slices.Equal(got, want) {
					t.Fatalf("%s, %d counts of %d bits: got %v, want %v", v.Name, n, bits, got, want)
				}
			}
		}
	}
}
