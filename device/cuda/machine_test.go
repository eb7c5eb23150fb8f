//go:build linux

package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// onGPU tells the tests to use the machine's GPU instead of the fake one.
func onGPU() bool { return os.Getenv("ATHANOR_TEST_GPU") != "" }

// scratchDir keeps what compilers make for all tests of the process.
var scratchDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "athanor-kernels-") })

func TestMain(m *testing.M) {
	if ServeProbe() { // a child of TestProbeChild
		return
	}
	code := m.Run()
	if dir, err := scratchDir(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// machine gives a device that computes: the GPU, or the fake with kernels that
// run on the CPU. The test is skipped where there is neither.
func machine(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	if onGPU() {
		lib, err := Load()
		if err != nil {
			t.Fatal(err)
		}
		return opened(t, lib, o, sizes), nil
	}
	dir, err := scratchDir()
	if err != nil {
		t.Fatal(err)
	}
	r, err := fake.NewRunner(dir)
	if err != nil {
		t.Skipf("kernels do not run on the CPU: %v", err)
	}
	r.Descending = o.Serial // a test that asks for serial execution gets the other order of threads
	g := fake.New()
	g.Kernel, g.Load = r.Kernel, r.Load
	return opened(t, &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, o, sizes), g
}

// maker is machine or compiled.
type maker func(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU)

// compiled gives a device that runs what NVIDIA's compiler makes of the kernels,
// instruction by instruction. The test is skipped where there is no compiler.
func compiled(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	d, r := interpreted(t, o, sizes...)
	return d, r.GPU
}

func interpreted(t *testing.T, o Options, sizes ...int64) (*Device, *fake.Interpreter) {
	t.Helper()
	if onGPU() {
		t.Skip("the GPU runs it")
	}
	c, err := nv.OpenNVRTC(nv.Local())
	if err != nil {
		t.Skipf("kernels are not compiled: %v", err)
	}
	if o.CacheDir, err = scratchDir(); err != nil {
		t.Fatal(err)
	}
	g := fake.New()
	r := &fake.Interpreter{GPU: g, Descending: o.Serial}
	g.Kernel, g.Load = r.Kernel, r.Load
	return opened(t, &Libraries{Driver: g.Driver(), Compiler: fake.Virtual{NVRTC: c}}, o, sizes), r
}

// ranks gives joined devices, each a card of one fake machine; on a real GPU all
// of them are on the first one.
func ranks(t *testing.T, n int, o Options, peers bool, sizes ...int64) []*Device {
	t.Helper()
	return ranksOn(t, n, n, o, peers, sizes...)
}

// ranksOn gives joined devices on so many cards.
func ranksOn(t *testing.T, cards, n int, o Options, peers bool, sizes ...int64) []*Device {
	t.Helper()
	lib := &Libraries{Compiler: fake.Compiler{}}
	if onGPU() {
		var err error
		if lib, err = Load(); err != nil {
			t.Fatal(err)
		}
	} else {
		dir, err := scratchDir()
		if err != nil {
			t.Fatal(err)
		}
		r, err := fake.NewRunner(dir)
		if err != nil {
			t.Skipf("kernels do not run on the CPU: %v", err)
		}
		g := fake.New()
		g.Cards, g.Peers, g.Kernel, g.Load = cards, peers, r.Kernel, r.Load
		lib.Driver = g.Driver()
		t.Cleanup(func() {
			if err := errors.Join(g.Failure(), g.Leaks()); err != nil {
				t.Error(err)
			}
		})
	}
	o.Fabric = NewFabric(n)
	var list []*Device
	for o.Rank = range n {
		if !onGPU() {
			o.Index = o.Rank % cards
		}
		o.DiskPath = filepath.Join(t.TempDir(), "disk")
		list = append(list, opened(t, lib, o, sizes))
	}
	return list
}

// hollow gives a device whose kernels do nothing: for the order of things.
func hollow(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	g := fake.New()
	return opened(t, &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, o, sizes), g
}

// bare gives the GPU, or a fake whose kernels do nothing: for what needs none. The
// fake is nil on a GPU.
func bare(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	if onGPU() {
		return machine(t, o, sizes...)
	}
	return hollow(t, o, sizes...)
}

func opened(t *testing.T, lib *Libraries, o Options, sizes []int64) *Device {
	t.Helper()
	if onGPU() && o.CacheDir == "" {
		o.CacheDir = filepath.Join(os.TempDir(), "athanor-test-kernels")
	}
	if o.DiskPath == "" {
		o.DiskPath = filepath.Join(t.TempDir(), "disk")
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	d, err := New(lib, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	for tier, n := range sizes {
		if err := d.Reserve(tiers[tier], n); err != nil {
			t.Fatal(err)
		}
	}
	return d
}
