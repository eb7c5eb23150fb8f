package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestOracle: matrix products compiled by Triton for Hopper's tensor cores give correct results. Triton
// is independent and has run on cards for years, so the locations of operands, and of each thread's sums,
// do not rest on our reading of NVIDIA's documentation alone. tools/triton_ptx.py writes the files.
func TestOracle(t *testing.T) {
	names, err := filepath.Glob("testdata/*.ptx")
	if err != nil || len(names) < 2 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, descending := range []bool{false, true} {
				triton(t, string(text), descending)
			}
		})
	}
}

// triton runs a kernel's text on random matrices.
func triton(t *testing.T, text string, descending bool) {
	var kernel string
	var turnedA, turnedB, m, n, k, tileM, tileN, threads, shared, negated int
	if _, err := fmt.Sscanf(text, "// %s a=%d b=%d m=%d n=%d k=%d tile=%dx%d threads=%d shared=%d negated=%d", &kernel, &turnedA, &turnedB, &m, &n, &k,
		&tileM, &tileN, &threads, &shared, &negated); err != nil {
		t.Fatal(err)
	}
	module, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	r := testkit.Rand(t)
	matrix := func(n int) (list []uint16) {
		for range n {
			list = append(list, uint16(bf16(float32(r.NormFloat64()))))
		}
		return list
	}
	a, b, c := matrix(m*k), matrix(k*n), make([]float32, m*n)
	atA, atB, atC := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&c[0]))
	var args []byte
	for _, p := range []uintptr{atA, atB, atC, uintptr(k), 0, 0} {
		args = binary.LittleEndian.AppendUint64(args, uint64(p))
	}
	_, err = module.Run(kernel, Launch{Grid: [3]uint32{uint32(m / tileM), uint32(n / tileN), 1}, Block: [3]uint32{uint32(threads), 1, 1}, Shared: uint32(shared),
		Args: args, Memory: []Span{{atA, uintptr(2 * m * k)}, {atB, uintptr(2 * k * n)}, {atC, uintptr(4 * m * n)}}, Descending: descending})
	if err != nil {
		t.Fatal(err)
	}
	for i := range m {
		for j := range n {
			var want, size float64
			for l := range k {
				x, y := i*k+l, l*n+j
				if turnedA == 1 {
					x = l*m + i
				}
				if turnedB == 1 {
					y = j*k + l
				}
				p := float64(1-2*negated) * half(uint64(a[x]), 0) * half(uint64(b[y]), 0)
				want += p
				size += math.Abs(p)
			}
			if got := float64(c[i*n+j]); !(math.Abs(got-want) <= size*float64(k/16+1)*0x1p-23) {
				t.Fatalf("(%d,%d) is %v, not %v", i, j, got, want)
			}
		}
	}
}
