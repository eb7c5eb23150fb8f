package float16

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// value16 is the value of a 16-bit float by its definition.
func value16(h uint16, exponentBits int) float64 {
	fractionBits := 15 - exponentBits
	bias := 1<<(exponentBits-1) - 1
	exponent := int(h>>fractionBits) & (1<<exponentBits - 1)
	fraction := float64(h&(1<<fractionBits-1)) / float64(int(1)<<fractionBits)
	v := math.Ldexp(1+fraction, exponent-bias)
	switch {
	case exponent == 0:
		v = math.Ldexp(fraction, 1-bias)
	case exponent == 1<<exponentBits-1 && fraction == 0:
		v = math.Inf(1)
	case exponent == 1<<exponentBits-1:
		v = math.NaN()
	}
	if h>>15 == 1 {
		v = -v
	}
	return v
}

var halves = []struct {
	name         string
	exponentBits int
	from         func(uint16) float32
	to           func(float32) uint16
}{
	{"F16", 5, FromF16, ToF16},
	{"BF16", 8, FromBF16, ToBF16},
}

func TestHalvesWiden(t *testing.T) {
	for _, c := range halves {
		for i := range 1 << 16 {
			h := uint16(i)
			got, want := float64(c.from(h)), value16(h, c.exponentBits)
			if math.Float64bits(got) != math.Float64bits(want) && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.Fatalf("%s %#04x: %v, want %v", c.name, h, got, want)
			}
			if back := c.to(c.from(h)); back != h && !math.IsNaN(want) {
				t.Fatalf("%s %#04x: back it is %#04x", c.name, h, back)
			}
		}
	}
}

// Rounding goes to the nearest of the two neighbours, in a tie to the even one. Overflow follows the same rule, with
// infinity standing where the next value would be.
func TestHalvesRound(t *testing.T) {
	seed := testkit.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	check := func(name string, exponentBits int, to func(float32) uint16, x float32) {
		h := to(x)
		if math.IsNaN(float64(x)) {
			if !math.IsNaN(value16(h, exponentBits)) {
				t.Fatalf("%s: NaN became %#04x", name, h)
			}
			return
		}
		if h>>15 != uint16(math.Float32bits(x)>>31) {
			t.Fatalf("%s: %v changed its sign", name, x)
		}
		finite := func(h uint16) float64 { // infinity counts as the value after the largest
			if math.IsInf(value16(h, exponentBits), 0) {
				return math.Ldexp(1, 1<<(exponentBits-1))
			}
			return math.Abs(value16(h, exponentBits))
		}
		h &= 0x7fff
		ax := math.Abs(float64(x))
		infinity := toInfinity(exponentBits)
		if h > infinity {
			t.Fatalf("%s: %v became NaN", name, x)
		}
		here := math.Abs(finite(h) - ax)
		if h > 0 {
			if below := math.Abs(finite(h-1) - ax); below < here || below == here && h&1 == 1 {
				t.Fatalf("%s: %v became %#04x, below is nearer", name, x, h)
			}
		}
		if h < infinity {
			if above := math.Abs(finite(h+1) - ax); above < here || above == here && h&1 == 1 {
				t.Fatalf("%s: %v became %#04x, above is nearer", name, x, h)
			}
		}
	}
	for _, c := range halves {
		for range 300_000 {
			check(c.name, c.exponentBits, c.to, math.Float32frombits(random.Uint32()))
			check(c.name, c.exponentBits, c.to, float32(math.Ldexp(random.NormFloat64(), random.IntN(48)-30)))
		}
		for i := range toInfinity(c.exponentBits) { // exact ties and their neighbours
			middle := float32((value16(i, c.exponentBits) + value16(i+1, c.exponentBits)) / 2)
			for _, x := range []float32{middle, -middle, math.Nextafter32(middle, 0), math.Nextafter32(middle, 1e38)} {
				check(c.name, c.exponentBits, c.to, x)
			}
		}
	}
}

func toInfinity(exponentBits int) uint16 { return uint16(1<<exponentBits-1) << (15 - exponentBits) }
