package simd

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/float16"
)

var update = flag.Bool("update", false, "write testdata/bits.txt")

// TestBits: all vector tables give the same bits, of sums too. No processor has all of them, so a hash of each
// function's results is recorded, for ordinary numbers and for any that are not NaN.
func TestBits(t *testing.T) {
	const file = "testdata/bits.txt"
	vectors(t, func(t *testing.T, v *Set) {
		var lines []string
		both(v, v, func(name string, f, _ reflect.Value) {
			name = strings.TrimPrefix(name, v.Name+".")
			if f.IsNil() {
				t.Fatalf("%s has no %s; hint: go generate ./kernel/simd", v.Name, name)
			}
			lines = append(lines, fmt.Sprintf("%s %016x %016x", name, hash(name, f, ordinary), hash(name, f, anyNumber)))
		})
		if *update {
			if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(want) != len(lines) {
			t.Fatalf("%d functions, %d in %s; hint: -update on a processor with AVX2", len(lines), len(want), file)
		}
		for i, line := range lines {
			if line != want[i] {
				t.Errorf("%s, want %s", line, want[i])
			}
		}
	})
}

// ordinary returns a number between -4 and 4 that is the same on all processors.
func ordinary(r *rand.Rand) float32 { return float32(int32(r.Uint32())) / (1 << 29) }

// anyNumber also returns infinities, numbers that overflow, and denormal ones.
func anyNumber(r *rand.Rand) float32 {
	v := math.Float32frombits(r.Uint32())
	switch {
	case r.IntN(8) == 0:
		return float32(math.Copysign(0, float64(v)))
	case r.IntN(8) == 0:
		return float32(math.Copysign(math.Inf(1), float64(v)))
	case r.IntN(2) == 0 || v != v:
		return ordinary(r)
	}
	return v
}

// hash returns a hash of what a function computes, for all lengths up to 150. Functions of matrices get three rows
// and a part.
func hash(name string, f reflect.Value, number func(r *rand.Rand) float32) uint64 {
	r, h := rand.New(rand.NewPCG(11, 12)), fnv.New64a()
	for n := range 150 {
		a, _ := argumentsOf(r, f.Type(), n, func() float32 { return number(r) })
		if strings.HasPrefix(name, "Col") {
			a[0] = a[0].Slice(0, n*2/7)
			if strings.HasPrefix(name, "ColExp") {
				a[1] = a[1].Slice(0, n*2/7)
			}
		}
		var bytes []byte
		for _, x := range append(f.Call(a), a...) {
			switch x := x.Interface().(type) {
			case float64:
				bytes = binary.LittleEndian.AppendUint64(bytes, math.Float64bits(canonical(x)))
			case float32:
				bytes = append32(bytes, x)
			case []float32:
				for _, v := range x {
					bytes = append32(bytes, v)
				}
			case []uint16:
				for _, u := range x {
					if v := float16.FromBF16(u); v != v {
						u = 0x7fc0
					}
					bytes = binary.LittleEndian.AppendUint16(bytes, u)
				}
			}
		}
		h.Write(bytes)
	}
	return h.Sum64()
}

func append32(bytes []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint32(bytes, math.Float32bits(float32(canonical(float64(v)))))
}

// canonical returns one NaN for all: processors differ in their bits.
func canonical(v float64) float64 {
	if v != v {
		return math.NaN()
	}
	return v
}
