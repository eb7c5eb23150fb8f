//go:build linux

package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// onGPU tells the tests to use the machine's GPU instead of the fake one.
func onGPU() bool { return os.Getenv("ATHANOR_TEST_GPU") != "" }

// seedsOf returns the seeds of n samples, counted from where the test's begin. Where there is no GPU they take
// seconds each, mostly to compile, so that only ATHANOR_TESTS=all tries all of them, and go test the usual ones.
func seedsOf(t *testing.T, n uint64, usual ...uint64) (list []uint64) {
	t.Helper()
	if onGPU() || testkit.AtLevel() == testkit.All {
		usual = nil
		for k := range n {
			usual = append(usual, k)
		}
	}
	for _, k := range usual {
		list = append(list, fresh(t)+k)
	}
	return list
}

// casesOf returns all cases on a GPU, elsewhere as many as this process's level asks for.
func casesOf[T any](cases []T, usual int) []T {
	if onGPU() {
		return cases
	}
	return testkit.Sample(cases, 1, usual)
}

// scratchDir keeps what compilers produce, for all tests of the process.
var scratchDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "athanor-kernels-") })

func TestMain(m *testing.M) {
	if ServeProbe() { // a child of TestProbeChild
		return
	}
	if !onGPU() { // the fake has a queue for each stream
		for _, name := range queueVars {
			_ = os.Unsetenv(name)
		}
	}
	code := m.Run()
	if dir, err := scratchDir(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// way is how a fake GPU runs kernels: it sets up the GPU and returns the compiler. descending asks for
// the opposite order of threads or blocks.
type way func(t *testing.T, g *fake.GPU, descending bool) kernels.Compiler

// texts runs the kernels' text. There is one, since that text has global state.
var texts = sync.OnceValues(func() (*fake.Runner, error) {
	dir, err := scratchDir()
	if err != nil {
		return nil, err
	}
	return fake.NewRunner(dir)
})

// asText runs the kernels' text, which a C++ compiler translates for the CPU.
func asText(t *testing.T, g *fake.GPU, descending bool) kernels.Compiler {
	t.Helper()
	r, err := texts()
	if err != nil {
		t.Skipf("kernels do not run on the CPU: %v", err)
	}
	return r.Install(g, descending)
}

// asCode runs what NVIDIA's compiler makes of the kernels, instruction by instruction.
func asCode(t *testing.T, g *fake.GPU, descending bool) kernels.Compiler {
	t.Helper()
	return counted(t, &fake.Interpreter{GPU: g, Descending: descending})
}

func counted(t *testing.T, r *fake.Interpreter) kernels.Compiler {
	t.Helper()
	if onGPU() {
		t.Skip("the GPU runs it")
	}
	c, err := nv.OpenNVRTC(nv.Local())
	if err != nil {
		t.Skipf("kernels are not compiled: %v", err)
	}
	r.GPU.Kernel, r.GPU.Load = r.Kernel, r.Load
	return fake.Virtual{NVRTC: c}
}

// maker returns a device that computes.
type maker func(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU)

// machine is the GPU, or the fake with the kernels' text. The test is skipped where
// there is neither.
func machine(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	if !onGPU() {
		return faked(t, asText, o, sizes)
	}
	lib, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return opened(t, lib, o, sizes), nil
}

// compiled is the fake with the kernels' code. The test is skipped on a GPU, and
// where there is no compiler.
func compiled(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	return faked(t, asCode, o, sizes)
}

func faked(t *testing.T, w way, o Options, sizes []int64) (*Device, *fake.GPU) {
	t.Helper()
	g := fake.New()
	lib := &Libraries{Driver: g.Driver(), Compiler: w(t, g, o.Serial)} // a test that asks for serial execution gets the other order
	return opened(t, lib, o, sizes), g
}

// ranks returns joined devices, each a card of one fake machine; on a real GPU all of them are on the
// first one.
func ranks(t *testing.T, n int, o Options, peers bool, sizes ...int64) []*Device {
	t.Helper()
	return ranksOn(t, asText, n, n, o, peers, sizes...)
}

// ranksOn returns joined devices on this many cards.
func ranksOn(t *testing.T, w way, cards, n int, o Options, peers bool, sizes ...int64) []*Device {
	t.Helper()
	return ranksAcross(t, w, make([]int, n), cards, fabricsOn(t, make([]int, n), smallSlot), o, peers, sizes...)
}

// ranksAcross returns joined devices by rank, on the given hosts, each of which is a machine of this
// many cards with its own fabric.
func ranksAcross(t *testing.T, w way, hosts []int, cards int, fabrics []*Fabric, o Options, peers bool, sizes ...int64) []*Device {
	t.Helper()
	libs := make([]*Libraries, len(fabrics))
	for i := range libs {
		if onGPU() {
			var err error
			if libs[i], err = Load(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		g := fake.New()
		g.Cards, g.Peers = cards, peers
		libs[i] = &Libraries{Driver: g.Driver(), Compiler: w(t, g, false)}
		t.Cleanup(func() {
			if err := errors.Join(g.Failure(), g.Leaks()); err != nil {
				t.Error(err)
			}
		})
	}
	var list []*Device
	for r, host := range hosts {
		o.Rank, o.Fabric = r, fabrics[host]
		if !onGPU() {
			o.Index = r % cards
		}
		o.DiskPath = filepath.Join(t.TempDir(), "disk")
		list = append(list, opened(t, libs[host], o, sizes))
	}
	return list
}

// hollow returns a device whose kernels do nothing, for tests of order.
func hollow(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	g := fake.New()
	return opened(t, &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, o, sizes), g
}

// bare returns the GPU, or a fake whose kernels do nothing, for tests that need none. The fake is nil
// on a GPU.
func bare(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	if onGPU() {
		return machine(t, o, sizes...)
	}
	return hollow(t, o, sizes...)
}

func opened(t *testing.T, lib *Libraries, o Options, sizes []int64) *Device {
	t.Helper()
	if _, real := lib.Compiler.(fake.Virtual); real && o.CacheDir == "" { // each test would compile the same again
		var err error
		if o.CacheDir, err = scratchDir(); err != nil {
			t.Fatal(err)
		}
	}
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
