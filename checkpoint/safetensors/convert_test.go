package safetensors

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
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
	{"F16", 5, fromF16, toF16},
	{"BF16", 8, fromBF16, toBF16},
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

// Reading and writing through a file equals the conversions, across pieces and in parts; F32 skips them.
func TestFloat32ThroughFile(t *testing.T) {
	values := make([]float32, 2*pieceElements+7)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range values {
		values[i] = float32(random.NormFloat64())
	}
	for _, d := range []DType{F32, BF16, F16, F64} {
		var file bytes.Buffer
		if err := Write(&file, nil, []Tensor{Float32s("a", d, []int{len(values)}, values)}); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, len(values)*d.Size())
		encoder(d)(want, values)
		if !bytes.Equal(file.Bytes()[file.Len()-len(want):], want) {
			t.Errorf("%s: written differently", d)
		}
		f, err := parse(file.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][2]int{{0, len(values)}, {5, 6}, {pieceElements - 1, 2*pieceElements + 3}, {7, 7}} {
			got, decoded := make([]float32, part[1]-part[0]), make([]float32, part[1]-part[0])
			if err := f.ReadFloat32("a", part[0], got); err != nil {
				t.Fatal(err)
			}
			decoder(d)(decoded, want[part[0]*d.Size():])
			if !slices.Equal(got, decoded) {
				t.Errorf("%s: elements %v differ", d, part)
			}
		}
	}
	if err := WriteFloat32(io.Discard, I64, values); err == nil {
		t.Error("floats written as I64")
	}
}

// Numbers of bf16, all of them, are written as they are; another is refused, wherever it is and however little it differs.
func TestWriteBF16(t *testing.T) {
	values, want := make([]float32, 1<<16), make([]byte, 2<<16)
	for i := range values {
		values[i] = math.Float32frombits(uint32(i) << 16)
		want[2*i], want[2*i+1] = byte(i), byte(i>>8)
	}
	var got bytes.Buffer
	if err := WriteBF16(&got, values); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("written differently (%v)", err)
	}
	for _, at := range []int{0, pieceElements - 1, pieceElements, len(values) - 1} {
		for bit := range 16 {
			was := values[at]
			values[at] = math.Float32frombits(math.Float32bits(was) | 1<<bit)
			if err := WriteBF16(io.Discard, values); err == nil {
				t.Errorf("bit %d of number %d is lost", bit, at)
			}
			values[at] = was
		}
	}
}

// broken is a file that cannot be read from some byte on.
type broken struct {
	*bytes.Reader
	good int64
}

func (b broken) ReadAt(p []byte, at int64) (int, error) {
	if at+int64(len(p)) > b.good {
		return 0, fmt.Errorf("byte %d is lost", at)
	}
	return b.Reader.ReadAt(p, at)
}

func (broken) Close() error { return nil }

// What several cores read is what one would, and of several errors the first is told.
func TestShares(t *testing.T) {
	values := make([]float32, 2*share+40)
	for i := range values {
		values[i] = float32(i%2048) * (1 + float32(i/share))
	}
	for _, d := range []DType{F32, F16} {
		var file bytes.Buffer
		if err := Write(&file, nil, []Tensor{Float32s("a", d, []int{len(values)}, values)}); err != nil {
			t.Fatal(err)
		}
		want := make([]float32, len(values))
		decoder(d)(want, file.Bytes()[file.Len()-len(values)*d.Size():])
		for _, first := range []int{0, 3, share - 1, 2 * share} {
			f, err := parse(file.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, len(values)-first)
			if err := f.ReadFloat32("a", first, got); err != nil || !slices.Equal(got, want[first:]) {
				t.Errorf("%s from %d on: differs (%v)", d, first, err)
			}
		}
		good := int64(file.Len() - (share/2+40)*d.Size())
		f, err := NewFile(broken{bytes.NewReader(file.Bytes()), good})
		if err != nil {
			t.Fatal(err)
		}
		lost := ""
		for range 3 {
			err := f.ReadFloat32("a", 0, make([]float32, len(values)))
			if err == nil || lost != "" && err.Error() != lost {
				t.Fatalf("%s: %v, before %s", d, err, lost)
			}
			lost = err.Error()
		}
	}
}

func toInfinity(exponentBits int) uint16 { return uint16(1<<exponentBits-1) << (15 - exponentBits) }
