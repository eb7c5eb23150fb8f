//go:build linux

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestTuneMemory: a product is tried if what that takes fits in the arena to be and Overhead, to the byte: two
// results, and C only if it is added. None is tried whose elements the comparison could not count.
func TestTuneMemory(t *testing.T) {
	calls, _ := tuneCalls(64, 40, 48)
	d, _ := tunable(t, "", fake.Algorithm{}, fake.Algorithm{})
	var sizes []int64
	alloc := d.driver.MemAlloc
	d.driver.MemAlloc = func(a ...uintptr) int32 {
		sizes = append(sizes, int64(a[1]))
		return alloc(a...)
	}
	// The flag, twice D, A, B, C or nothing, and what the epilogue reads.
	for i, pages := range map[int]int64{0: 1 + 2*2 + 1 + 2 + 1 + 1, 1: 1 + 2*2 + 1 + 2 + 1 + 1, 2: 1 + 2*2 + 1 + 2 + 2 + 1, 5: 1 + 2*2 + 1 + 2 + 1 + 2} {
		take := workspaceBytes + pages<<12
		for less := range int64(2) {
			clear(d.library.choices)
			sizes = nil
			if err := d.Tune(calls[i:i+1], take-Overhead-less); err != nil {
				t.Fatal(err)
			}
			if tried := less == 0; tried != (len(sizes) > 0 && sizes[0] == take) {
				t.Errorf("product %d takes %d bytes instead of %d less %d: %d choices", i, sizes, take, less, len(d.library.choices))
			}
		}
	}
	sizes = nil
	huge := func(dt graph.DType, rows, cols int) device.Operand {
		return device.Operand{DType: dt, Rows: rows, Cols: cols, Stride: cols}
	}
	dw := []device.Operand{huge(graph.F32, 1<<17, 1<<16), huge(graph.BF16, 8, 1<<17), huge(graph.BF16, 8, 1<<16)}
	if err := d.Tune([]device.Call{{Op: graph.LinearDW, Args: dw}}, 1<<40); err != nil || len(sizes) > 0 {
		t.Error("a product of 32 GiB is tried:", sizes, err)
	}
}

// TestTuneFill: operands have random numbers from -2 to 2 to their ends, in bf16 and fp32, and neighbouring rows
// differ. A copy that fails is an error.
func TestTuneFill(t *testing.T) {
	d, g := tunable(t, "")
	p := nv.Product{A: nv.LtMatrix{Type: nv.LtBF16, Rows: 512, Cols: 512, Lead: 512}, B: nv.LtMatrix{Type: nv.LtBF16, Rows: 512, Cols: 1 << 11, Lead: 512},
		D: nv.LtMatrix{Type: nv.LtF32, Rows: 512, Cols: 1 << 11, Lead: 512}}
	tr := &trial{d: d, key: choiceKey{product: p}}
	var b []byte
	err := d.work.do(func() error {
		if !tr.reserve(1 << 30) {
			return errors.New("there is no memory")
		}
		if err := tr.fill(); err != nil {
			return err
		}
		b = make([]byte, tr.bytes-int64(tr.want-tr.memory))
		v := d.driver
		return errors.Join(v.Check("", v.StreamSynchronize(d.work.streams[device.Compute])), v.Check("", v.Memcpy(nv.Addr(&b[0]), tr.want, uintptr(len(b)))))
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]bool{}
	for i := 0; i < len(b); i += 4 {
		u := binary.LittleEndian.Uint32(b[i:])
		if seen[u] = true; u == 0 {
			t.Fatalf("nothing at byte %d of %d", i, len(b))
		}
		for _, bits := range []uint32{u, u << 16} {
			if x := math.Float32frombits(bits); !(x >= -2 && x <= 2) {
				t.Fatalf("%v at byte %d of %d", x, i, len(b))
			}
		}
		if i >= 1024 && u == binary.LittleEndian.Uint32(b[i-1024:]) && bytes.Equal(b[i:][:min(16, len(b)-i)], b[i-1024:][:min(16, len(b)-i)]) {
			t.Fatalf("two rows begin alike at byte %d", i)
		}
	}
	if len(seen) < 1<<16 {
		t.Errorf("there are %d numbers", len(seen))
	}
	g.Fail["MemcpyAsync"] = 700
	if err := d.work.do(tr.fill); err == nil {
		t.Error("memory that cannot be copied is filled")
	}
	clear(g.Fail)
	if err := d.work.do(tr.close); err != nil {
		t.Error(err)
	}
}

// TestTuneAligned: an algorithm that needs operands aligned better than a program's are is not chosen.
func TestTuneAligned(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	calls, size := tuneCalls(24, 40, 48)
	d, g := tunable(t, "", fake.Algorithm{Turns: 60}, fake.Algorithm{Needs: 2 * mostAligned})
	if err := d.Tune(calls, 1<<30); err != nil {
		t.Fatal(err)
	}
	g.Used()
	if err := d.Reserve(device.DeviceTier, size); err != nil {
		t.Fatal(err)
	}
	results(t, d, calls, size)
	if used := g.Used(); slices.Max(used) > 0 || len(d.library.choices) != len(calls) {
		t.Errorf("%v is used, of %d choices", used, len(d.library.choices))
	}
}

// TestTuneLaunch: a trial's operands begin at multiples of what the product's are aligned to, and of nothing
// larger; C counts only if the product is added to it, and is D otherwise, as in a program. It is
// launched as often as it is timed.
func TestTuneLaunch(t *testing.T) {
	calls, _ := tuneCalls(24, 64, 64)
	d, _ := tunable(t, "", fake.Algorithm{}, fake.Algorithm{})
	launches, beta := 0, float32(0)
	lt := d.library.lt
	matmul, describe := lt.Matmul, lt.DescSetAttribute
	lt.Matmul = func(a ...uintptr) int32 {
		launches++
		if have := **(**float32)(unsafe.Pointer(&a[7])); have != beta || (a[8] == a[10]) != (beta == 0) {
			t.Errorf("beta is %v, C at %#x, D at %#x", have, a[8], a[10])
		}
		for _, i := range []int{3, 5, 8, 10} {
			if a[i]%(2*mostAligned) != mostAligned {
				t.Errorf("argument %d is %#x", i, a[i])
			}
		}
		return matmul(a...)
	}
	lt.DescSetAttribute = func(a ...uintptr) int32 {
		if extra := **(**uintptr)(unsafe.Pointer(&a[2])); (a[1] == 8 || a[1] == 11) && extra%(2*mostAligned) != mostAligned {
			t.Errorf("the epilogue reads at %#x", extra)
		}
		return describe(a...)
	}
	for i := range calls {
		beta = 0
		if i == 2 || i == 3 || i == 7 {
			beta = 1
		}
		if err := d.Tune(calls[i:i+1], 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	tr := &trial{d: d, scalars: scalars{alpha: 1}}
	for k := range d.library.choices {
		if !k.added {
			tr.key = k
		}
	}
	beta, launches = 0, 0
	err := d.work.do(func() (err error) {
		if !tr.reserve(1 << 30) {
			return errors.New("there is no memory")
		}
		if tr.plan, err = lt.Plan(tr.key.product, tr.extra); err == nil {
			_, err = tr.seconds(3)
		}
		return errors.Join(err, tr.close())
	})
	if err != nil || launches != 3 {
		t.Errorf("%d launches instead of 3, %v", launches, err)
	}
}

// TestTuneDiffers: results that differ in one bit of any word are not alike.
func TestTuneDiffers(t *testing.T) {
	calls, _ := tuneCalls(48, 40, 48)
	d, _ := tunable(t, "", fake.Algorithm{}, fake.Algorithm{})
	if err := d.Tune(calls[:1], 1<<30); err != nil { // which loads the kernel
		t.Fatal(err)
	}
	tr := &trial{d: d, scalars: scalars{alpha: 1}, differ: launch{unit: kernels.Unit{File: "differ"}, kernel: "differ", block: threads}}
	for k := range d.library.choices {
		tr.key = k
	}
	err := d.work.do(func() (err error) {
		if !tr.reserve(1 << 30) {
			return errors.New("there is no memory")
		}
		if tr.plan, err = d.library.lt.Plan(tr.key.product, tr.extra); err != nil {
			return err
		}
		if end := int64(mostAligned/2 + 48*48*2); tr.size < end { // rows of 96 bytes
			t.Errorf("%d bytes are compared, but a result has %d", tr.size, end)
		}
		bits := make([]byte, tr.size)
		spoilt := -1
		d.library.lt.Matmul = func(a ...uintptr) int32 {
			d.driver.StreamSynchronize(a[15])
			if spoilt >= 0 {
				bits[spoilt] ^= 0x40
				defer func() { bits[spoilt] ^= 0x40 }()
			}
			return d.driver.Memcpy(tr.have, nv.Addr(&bits[0]), uintptr(len(bits)))
		}
		d.driver.MemsetD8Async(tr.want, 0, uintptr(tr.size), d.work.streams[device.Compute])
		for ; spoilt < len(bits); spoilt++ {
			if equal, err := tr.compute(algorithm{}, tr.have); err != nil || equal != (spoilt < 0) {
				t.Errorf("alike with byte %d of %d spoilt: %v, %v", spoilt, len(bits), equal, err)
			}
			if spoilt > 64 {
				spoilt += 52 // other bytes of other words
			}
		}
		return tr.close()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTuneFirst: the first algorithm for canonRows rows defines the bits, whichever the library prefers for the
// product's own; algorithms of both lists may take its place.
func TestTuneFirst(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	calls, size := tuneCalls(24, 40, 48)
	slow, rough := fake.Algorithm{Turns: 60}, fake.Algorithm{Rough: true}
	for want, list := range map[int][]fake.Algorithm{1: {rough, slow, rough, rough}, 2: {rough, slow, {}, slow}, 3: {rough, slow, slow, {}}} {
		d, g := tunable(t, "", list...)
		lt, columns := d.library.lt, map[uintptr]uintptr{}
		layout := lt.LayoutCreate
		lt.LayoutCreate = func(a ...uintptr) int32 {
			code := layout(a...)
			columns[**(**uintptr)(unsafe.Pointer(&a[0]))] = a[3]
			return code
		}
		lt.AlgoGetHeuristic = func(a ...uintptr) int32 {
			numbers := []byte{2}
			if columns[a[5]] == canonRows {
				numbers = []byte{1, 3}[:min(2, a[7])]
			}
			results := unsafe.Slice(*(**[96]byte)(unsafe.Pointer(&a[8])), a[7])
			for i, n := range numbers {
				results[i] = [96]byte{n}
			}
			**(**int32)(unsafe.Pointer(&a[9])) = int32(len(numbers))
			return 0
		}
		if err := d.Tune(calls[:1], 1<<30); err != nil {
			t.Fatal(err)
		}
		g.Used()
		if err := d.Reserve(device.DeviceTier, size); err != nil {
			t.Fatal(err)
		}
		results(t, d, calls[:1], size)
		if used := g.Used(); !slices.Equal(used, []int{want}) || len(d.library.choices) != 1 {
			t.Errorf("%v is used instead of %d", used, want)
		}
	}
}

// TestLarge: a product is as large as its terms are many, in any orientation.
func TestLarge(t *testing.T) {
	for i, a := range []nv.LtMatrix{{Rows: 3, Cols: 7}, {Rows: 7, Cols: 3}} {
		k := choiceKey{product: nv.Product{TransA: i == 1, A: a, D: nv.LtMatrix{Rows: 3, Cols: 5}}}
		if !k.large(105) || k.large(106) {
			t.Errorf("%+v does not have 105 terms", k)
		}
	}
}
