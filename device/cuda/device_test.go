//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
)

func word(t device.Tier, addr int64) device.Operand {
	return device.Operand{Tier: t, DType: graph.I32, Addr: addr, Rows: 1, Cols: 16, Stride: 16}
}

func copyCall(s device.Stream, dst, src device.Operand) device.Call {
	return device.Call{Op: graph.Copy, Stream: s, Args: []device.Operand{dst, src}}
}

// TestArgsLayout: Args has the layout that the C++ text gives it. The kernels tested through it agree;
// checked here are the sizes on which the text relies.
func TestArgsLayout(t *testing.T) {
	if s := unsafe.Sizeof(mat{}); s != 24 {
		t.Errorf("struct Mat has %d bytes, not 24", s)
	}
	if argsBytes != 9*24+8*4+8*4+8*4+2*8+8 {
		t.Errorf("struct Args has %d bytes", argsBytes)
	}
}

// TestOrder: a chain of copies over all tiers and all kinds of streams, ordered only by waits, carries
// a value around repeatedly. Streams of the fake run at their own pace: a wait that does not hold shows
// as a stale value.
func TestOrder(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	d, _ := bare(t, Options{}, 1<<16, 1<<16, 1<<16)
	dev, host, disk := device.DeviceTier, device.HostTier, device.DiskTier
	ways := map[[2]device.Tier][]device.Stream{
		{dev, host}: {device.HostToDev}, {host, dev}: {device.DevToHost}, {dev, dev}: {device.Compute, device.Collective},
		{host, host}: {device.HostCompute}, {host, disk}: {device.DiskRead}, {disk, host}: {device.DiskWrite},
	}
	const length = 60
	var calls []device.Call
	at := word(dev, 0)
	for i := range length {
		var next device.Tier
		for {
			next = tiers[r.IntN(3)]
			if ways[[2]device.Tier{next, at.Tier}] != nil {
				break
			}
		}
		s := ways[[2]device.Tier{next, at.Tier}]
		to := word(next, int64(i+1)*64)
		calls = append(calls, copyCall(s[r.IntN(len(s))], to, at))
		at = to
	}
	spans := make([]device.Span, length)
	first, err := d.Prepare(calls, spans)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		value := []byte(strings.Repeat(string(rune('a'+round)), 64))
		if err := d.Write(dev, 0, value); err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			if i > 0 {
				d.Wait(calls[i].Stream, first+i-1)
			}
			d.Launch(first + i)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 64)
		if err := d.Read(at.Tier, at.Addr, got); err != nil {
			t.Fatal(err)
		}
		if string(got) != string(value) {
			t.Fatalf("round %d: %q arrived", round, got)
		}
		for i := range spans {
			if spans[i].Start <= 0 || spans[i].End < spans[i].Start {
				t.Fatalf("call %d ran %v", i, spans[i])
			}
		}
	}
	st := d.Stats()
	var moved int64
	for i := range st.Moved {
		for j := range st.Moved[i] {
			moved += st.Moved[i][j]
		}
	}
	if moved != 20*length*64 {
		t.Errorf("%d bytes were moved, want %d", moved, 20*length*64)
	}
}

// TestDone: the watchdog gets an answer while a round runs.
func TestDone(t *testing.T) {
	d, _ := bare(t, Options{}, 1<<12, 1<<12)
	n, err := d.Prepare([]device.Call{
		copyCall(device.HostToDev, word(device.DeviceTier, 0), word(device.HostTier, 0)),
		copyCall(device.HostCompute, word(device.HostTier, 64), word(device.HostTier, 0)),
		copyCall(device.Compute, word(device.DeviceTier, 64), word(device.DeviceTier, 0)),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i := range 2 {
			if d.Done(n + i) {
				t.Errorf("call %d is done before it was launched", i)
			}
			d.Launch(n + i)
		}
		for i := range 2 {
			for !d.Done(n + i) { // the test's own time limit ends a hang
				runtime.Gosched()
			}
		}
		if d.Done(n + 2) {
			t.Error("a call that was not launched is done")
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSharedMemory: calls of one kernel may have as much shared memory as each asks for, in
// whatever order they were prepared, and just below the default limit, too.
func TestSharedMemory(t *testing.T) {
	g := fake.New()
	d := opened(t, &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, Options{}, []int64{1 << 20})
	op := func(d graph.DType, cols int) device.Operand {
		return device.Operand{DType: d, Rows: 1, Cols: cols, Stride: cols}
	}
	var calls []device.Call
	for _, cols := range []int{60000, 24576, 40000, 64} { // the second has 48 KiB
		calls = append(calls, device.Call{Op: graph.CrossEntropy, Attr: graph.Attr{Grad: true},
			Args: []device.Operand{op(graph.F32, 1), op(graph.BF16, cols), op(graph.I32, 1), op(graph.F32, graph.NumScalars)}})
	}
	n, err := d.Prepare(calls[1:2], nil) // alone: others would have raised the limit
	if err != nil {
		t.Fatal(err)
	}
	d.Launch(n)
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if n, err = d.Prepare(calls, nil); err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		d.Launch(n + i)
		if err := d.Sync(); err != nil {
			t.Errorf("%d columns: %v", calls[i].Args[1].Cols, err)
		}
	}
}

// TestKernelFails: a fault of the GPU is reported late, by Sync, and with Options.Serial it names the
// call.
func TestKernelFails(t *testing.T) {
	for _, serial := range []bool{false, true} {
		g := fake.New()
		g.Kernel = func([]byte, string, [3]uint32, [3]uint32, uint32, []byte) error {
			return errors.New("out of bounds")
		}
		d := opened(t, &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, Options{Serial: serial}, []int64{1 << 12})
		f := device.Operand{DType: graph.F32, Rows: 1, Cols: 8, Stride: 8}
		n, err := d.Prepare([]device.Call{{Op: graph.Add, Args: []device.Operand{f, f}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(n)
		err = d.Sync()
		if err == nil || !strings.Contains(err.Error(), "failed with 719") || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%v", err)
		}
		var c *device.CallError
		if errors.As(err, &c) != serial || serial && (c.Call != n || c.Op != graph.Add) {
			t.Errorf("serial %v: %v", serial, err)
		}
		if d.Close() == nil {
			t.Error("Close hides that the context is lost")
		}
	}
}

// TestStridedCopy goes through CUDA_MEMCPY2D.
func TestStridedCopy(t *testing.T) {
	d, _ := bare(t, Options{}, 1<<12, 1<<12)
	src := device.Operand{Tier: device.HostTier, DType: graph.I32, Rows: 5, Cols: 3, Stride: 7, Addr: 8}
	dst := device.Operand{Tier: device.DeviceTier, DType: graph.I32, Rows: 5, Cols: 3, Stride: 4, Addr: 16}
	image := make([]byte, 1<<12)
	for i := range image {
		image[i] = byte(i * 7)
	}
	if err := d.Write(device.HostTier, 0, image); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<12)
	if err := d.Write(device.DeviceTier, 0, got); err != nil {
		t.Fatal(err)
	}
	n, err := d.Prepare([]device.Call{copyCall(device.HostToDev, dst, src)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.Launch(n)
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := d.Read(device.DeviceTier, 0, got); err != nil {
		t.Fatal(err)
	}
	for r := range 5 {
		if a, b := got[16+16*r:][:12], image[8+28*r:][:12]; !slices.Equal(a, b) {
			t.Errorf("row %d: %v, want %v", r, a, b)
		}
		if r < 4 && got[16+16*r+12] != 0 {
			t.Errorf("the gap after row %d was written", r)
		}
	}
}

// TestSlices: copies across the border between two registrations of the host arena are split there; the
// fake would refuse them otherwise.
func TestSlices(t *testing.T) {
	d, _ := bare(t, Options{Pinned: cut(t, 4096)}, 1<<16, 1<<16)
	if n := len(d.arenas.pinned.blocks); n != 16 {
		t.Errorf("%d registrations", n)
	}
	r := rand.New(rand.NewPCG(3, 3))
	image := make([]byte, 1<<16)
	for i := range image {
		image[i] = byte(r.Uint32())
	}
	if err := d.Write(device.HostTier, 0, image); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		src := device.Operand{Tier: device.HostTier, DType: graph.I32, Rows: 1 + r.IntN(6), Cols: 1 + r.IntN(1500), Addr: 4 * int64(r.IntN(1000))}
		src.Stride = src.Cols + r.IntN(3)
		dst := src
		dst.Tier, dst.Stride, dst.Addr = device.DeviceTier, src.Cols, 0
		n, err := d.Prepare([]device.Call{copyCall(device.HostToDev, dst, src)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(n)
		if err := d.Sync(); err != nil {
			t.Fatalf("%+v: %v", src, err)
		}
		got := make([]byte, dst.Bytes())
		if err := d.Read(device.DeviceTier, 0, got); err != nil {
			t.Fatal(err)
		}
		for row := range src.Rows {
			if from := src.Addr + int64(4*row*src.Stride); !slices.Equal(got[4*row*src.Cols:][:4*src.Cols], image[from:][:4*src.Cols]) {
				t.Fatalf("row %d of %+v differs", row, src)
			}
		}
	}
}

// TestErrors: a status of the driver becomes an error that names the driver call, its code and, for a
// launch, the instruction. The device can be closed after it, and a later round works if the error was
// not the GPU's.
func TestErrors(t *testing.T) {
	for _, proc := range []string{"Init", "DeviceGetCount", "DevicePrimaryCtxRetain", "StreamCreate", "EventCreate"} {
		g := fake.New()
		g.Fail[proc] = 100
		_, err := New(&Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, Options{Workers: 1})
		if err == nil || !strings.Contains(err.Error(), "cu"+proc+" failed with 100") || !strings.Contains(err.Error(), "hint: no GPU is visible") {
			t.Errorf("%s: %v", proc, err)
		}
	}
	g := fake.New()
	g.Major = 7
	if _, err := New(&Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, Options{}); err == nil || !strings.Contains(err.Error(), "8.0 (Ampere)") {
		t.Errorf("an old card: %v", err)
	}
	if _, err := New(&Libraries{Driver: fake.New().Driver(), Compiler: fake.Compiler{}}, Options{Index: 3}); err == nil || !strings.Contains(err.Error(), "this machine has 1") {
		t.Errorf("no such card: %v", err)
	}
	for _, proc := range []string{"MemcpyAsync", "EventRecord", "StreamSynchronize", "StreamWaitEvent", "StreamWaitValue32"} {
		d, g := hollow(t, Options{}, 1<<12, 1<<12)
		n, err := d.Prepare([]device.Call{
			copyCall(device.HostCompute, word(device.HostTier, 0), word(device.HostTier, 64)),
			copyCall(device.HostToDev, word(device.DeviceTier, 0), word(device.HostTier, 0)),
			copyCall(device.Compute, word(device.DeviceTier, 64), word(device.DeviceTier, 0)),
			copyCall(device.DevToHost, word(device.HostTier, 128), word(device.DeviceTier, 64)),
			copyCall(device.HostCompute, word(device.HostTier, 192), word(device.HostTier, 128)),
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		round := func() error {
			for i, s := range []device.Stream{device.HostCompute, device.HostToDev, device.Compute, device.DevToHost, device.HostCompute} {
				if i > 0 {
					d.Wait(s, n+i-1)
				}
				d.Launch(n + i)
			}
			return d.Sync()
		}
		if err := round(); err != nil {
			t.Fatal(err)
		}
		for _, code := range []int32{1, 700} {
			g.Break(proc, code)
			err = round()
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("cu%s failed with %d", proc, code)) {
				t.Errorf("%s: %v", proc, err)
			}
			// 700 may be an earlier call's.
			var c *device.CallError
			if named := errors.As(err, &c); named != (proc != "StreamSynchronize" && code == 1) {
				t.Errorf("%s: %v names a call: %v", proc, err, named)
			}
		}
		g.Break(proc, 0)
		if err := round(); err != nil {
			t.Errorf("after %s: %v", proc, err)
		}
	}
}

// TestRefuses: what cannot work is an error of Reserve or Prepare.
func TestRefuses(t *testing.T) {
	d, _ := hollow(t, Options{}, 1<<12, 1<<12, 1<<12)
	for name, c := range map[string]device.Call{
		"host kernel on the GPU's memory": {Op: graph.Add, Stream: device.HostCompute, Args: []device.Operand{word(device.DeviceTier, 0), word(device.DeviceTier, 64)}},
		"disk on a copy engine":           copyCall(device.HostToDev, word(device.DeviceTier, 0), word(device.DiskTier, 0)),
		"GPU on the disk's stream":        copyCall(device.DiskRead, word(device.DeviceTier, 0), word(device.DiskTier, 0)),
		"sum over ranks":                  {Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 1}, Args: []device.Operand{word(device.DeviceTier, 0)}},
		"outside":                         copyCall(device.HostToDev, word(device.DeviceTier, 1<<12), word(device.HostTier, 0)),
		"heads that do not divide": {Op: graph.Attention, Attr: graph.Attr{Seq: 4, Heads: 3, KVHeads: 2, HeadDim: 2}, Args: []device.Operand{
			{Rows: 4, Cols: 6, Stride: 6}, {Rows: 4, Cols: 3, Stride: 3}, {Rows: 4, Cols: 6, Stride: 14}, {Rows: 4, Cols: 8, Stride: 14}}},
		"slices of several sequences": {Op: graph.Attention, Attr: graph.Attr{Seq: 4, Heads: 1, KVHeads: 1, HeadDim: 2}, Args: []device.Operand{
			{Rows: 2, Cols: 2, Stride: 2}, {Rows: 2, Cols: 1, Stride: 1}, {Rows: 2, Cols: 2, Stride: 6}, {Rows: 8, Cols: 4, Stride: 6}}},
		"the compute stream's scratch": {Op: graph.EmbedBwd, Stream: device.Collective, Args: []device.Operand{
			{Rows: 4, Cols: 6, Stride: 6}, {Addr: 128, Rows: 2, Cols: 6, Stride: 6}, {DType: graph.I32, Addr: 256, Rows: 2, Cols: 1, Stride: 1}}},
	} {
		if _, err := d.Prepare([]device.Call{c}, nil); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if d.Reserve(device.DeviceTier, 1) == nil || d.Reserve(device.NumTiers, 1) == nil {
		t.Error("a tier was reserved twice, or one that does not exist")
	}
	e, g := hollow(t, Options{})
	g.Break("MemAlloc", 2)
	if err := e.Reserve(device.DeviceTier, 1<<30); err == nil || !strings.Contains(err.Error(), "limits.device") {
		t.Errorf("out of memory: %v", err)
	}
	g.Break("MemAlloc", 0)
}

// TestGivesBack: Close destroys everything that was created.
func TestGivesBack(t *testing.T) {
	g := fake.New()
	d := opened(t, &Libraries{g.Driver(), fake.Compiler{}, g.Lt()}, Options{}, []int64{1 << 20, 1 << 20, 1 << 16})
	f := device.Operand{DType: graph.F32, Rows: 8, Cols: 8, Stride: 8}
	at := func(i int64) device.Operand { o := f; o.Addr = 256 * i; return o }
	n, err := d.Prepare([]device.Call{
		{Op: graph.Linear, Args: []device.Operand{at(0), at(1), at(2)}},
		{Op: graph.Add, Args: []device.Operand{at(3), at(0)}},
		copyCall(device.HostCompute, word(device.HostTier, 0), word(device.HostTier, 64)),
	}, make([]device.Span, 3))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		d.Launch(n + i)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Leaks(); err != nil {
		t.Error(err)
	}
	if !slices.Contains(g.Calls(), "LtMatmul") || !slices.Contains(g.Calls(), "LaunchKernel") {
		t.Error("nothing ran")
	}
}

// withLibrary returns the libraries with which products go to cublasLt: the machine's, or the fake's,
// where the kernels do nothing.
func withLibrary(t *testing.T) *Libraries {
	t.Helper()
	if !onGPU() {
		g := fake.New()
		return &Libraries{g.Driver(), asText(t, g, false), g.Lt()}
	}
	lib, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// openedWith opens a device with libraries that include cublasLt. On the fake, gradients of weights are
// the library's too.
func openedWith(t *testing.T, lib *Libraries, o Options, sizes ...int64) *Device {
	t.Helper()
	d := opened(t, lib, o, sizes)
	if !onGPU() {
		d.chip.sms = 0
	}
	return d
}

// TestLibrary: products through cublasLt, whose matrices are column-major, are
// those of the reference, for every orientation, type and stride, at most twice
// as far off as the CPU's, and the same bits again. On a GPU those of the plain
// kernel too.
func TestLibrary(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	cores := kernel.NewEnv(1)
	defer cores.Close()
	libs := []*Libraries{withLibrary(t)}
	if onGPU() {
		plain := *libs[0]
		plain.Lt = nil
		libs = append(libs, &plain)
	}
	for _, lib := range libs {
		for _, rows := range []int{0, 40} {
			d := openedWith(t, lib, Options{SumRows: rows}, imageBytes)
			for _, op := range []graph.Op{graph.Linear, graph.LinearDX, graph.LinearDW} {
				for _, seed := range seedsOf(t, 32, 1, 4, 6, 11, 18, 23, 24, 29) {
					s := newSample(op, seed)
					s.poison()
					got := execute(t, d, s.call, s.image)
					if !bytes.Equal(got, execute(t, d, s.call, s.image)) {
						t.Errorf("seed %d: %v: two runs differ", seed, s)
					}
					if err := errors.Join(s.twice(cores, got), s.check(got, s.reference())); err != nil {
						t.Fatalf("seed %d: %v: %v", seed, s, err)
					}
				}
			}
		}
	}
}

// TestSteady: a step allocates nothing on Go's heap. The fake's procedures do,
// so they are replaced by ones that do not.
func TestSteady(t *testing.T) {
	g := fake.New()
	driver := g.Driver()
	d := opened(t, &Libraries{Driver: driver, Compiler: fake.Compiler{}}, Options{Untimed: true}, []int64{1 << 16, 1 << 16})
	none := func(...uintptr) int32 { return 0 }
	for _, p := range []*nv.Proc{&driver.LaunchKernel, &driver.MemcpyAsync, &driver.EventRecord, &driver.StreamWaitEvent, &driver.StreamSynchronize} {
		saved := *p
		*p = none
		defer func() { *p = saved }()
	}
	var calls []device.Call
	for i := range int64(100) {
		s := []device.Stream{device.Compute, device.HostToDev}[i%2]
		calls = append(calls, copyCall(s, word(device.DeviceTier, 64*i), word(device.HostTier, 64*i)))
	}
	n, err := d.Prepare(calls, nil)
	if err != nil {
		t.Fatal(err)
	}
	per := testing.AllocsPerRun(20, func() {
		for i := range calls {
			if i > 0 {
				d.Wait(calls[i].Stream, n+i-1)
			}
			d.Launch(n + i)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
	})
	if per > 4 { // of the tasks that end a round
		t.Errorf("%v allocations per step of %d calls", per, len(calls))
	}
}

// TestIssued: all driver calls of a step are counted.
func TestIssued(t *testing.T) {
	d, g := hollow(t, Options{Untimed: true}, 1<<12, 1<<12)
	var calls []device.Call
	for i := range int64(9) {
		calls = append(calls, copyCall(device.HostToDev, word(device.DeviceTier, 64*i), word(device.HostTier, 64*i)),
			copyCall(device.Compute, word(device.DeviceTier, 64*i+2048), word(device.DeviceTier, 64*i)))
	}
	first, err := d.Prepare(calls, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := func() (n int64) {
		for _, name := range g.Calls() {
			if name != "CtxSetCurrent" { // with which the host's streams begin
				n++
			}
		}
		return n
	}
	for range 3 {
		made, counted := all(), d.Stats().Issued
		for i := range calls {
			if i > 0 {
				d.Wait(calls[i].Stream, first+i-1)
			}
			d.Launch(first + i)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		made, counted = all()-made, d.Stats().Issued-counted
		if made != counted || made < int64(3*len(calls)-1) {
			t.Errorf("%d calls were counted, %d made for %d copies", counted, made, len(calls))
		}
	}
}

// TestCache: a unit is compiled once per text, options and compiler; a file
// that was cut short or changed is compiled again. Without a folder, nothing is kept anywhere.
func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kernels")
	count := &counter{version: "1"}
	c := kernels.Cache{Dir: dir, Compiler: count}
	get := func(u kernels.Unit, arch string, compiled bool) {
		t.Helper()
		before := count.n
		code, err := c.Load(u, arch)
		if err != nil || len(code) == 0 {
			t.Fatal(err)
		}
		if (count.n > before) != compiled {
			t.Errorf("%v for %s: compiled %v, want %v", u, arch, count.n > before, compiled)
		}
	}
	u := kernels.Unit{File: "add", Defines: "T0=f32 T1=f32 VEC=1"}
	c.Dir = ""
	t.Chdir(t.TempDir())
	get(u, "sm_80", true)
	get(u, "sm_80", true)
	if list, err := filepath.Glob("*"); err != nil || len(list) > 0 {
		t.Errorf("%v %v", list, err)
	}
	c.Dir = dir
	get(u, "sm_80", true)
	get(u, "sm_80", false)
	get(u, "sm_90", true)
	get(kernels.Unit{File: "add", Defines: "T0=f32 T1=f32 VEC=8"}, "sm_80", true)
	count.version = "2"
	get(u, "sm_80", true)
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(list) != 4 {
		t.Fatalf("%v %v", list, err)
	}
	for _, name := range list {
		b, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, b[:len(b)-1], 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	get(u, "sm_80", true)
	get(u, "sm_80", false)
	c.Dir = filepath.Join(os.DevNull, "x") // cannot be written: no error
	get(u, "sm_80", true)
	if _, err := c.Load(kernels.Unit{File: "nothing"}, "sm_80"); err == nil {
		t.Error("a kernel that does not exist was found")
	}
}

type counter struct {
	n       int
	version string
}

func (c *counter) VersionString() (string, error) { return c.version, nil }
func (c *counter) Target(cc int) string           { return "sm_90" }
func (c *counter) Compile(name, source string, options []string) ([]byte, string, error) {
	c.n++
	return []byte(source), "", nil
}
