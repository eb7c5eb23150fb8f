//go:build linux

package fake

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

//go:embed shim/shim.h
var shim string

//go:embed shim/shim.cc
var shimCode string

// Compiler stands in for NVRTC: its "code" is C++ source for the CPU.
type Compiler struct {
	// Runner, if not nil, makes that source ready to run, so that many kernels are compiled at once.
	Runner *Runner
}

// VersionString returns a constant.
func (Compiler) VersionString() (string, error) { return "fake", nil }

var kernelName = regexp.MustCompile(`__global__ void (?:__launch_bounds__\(.*\) )?(\w+)\(`)

// Target returns the architecture of a card.
func (Compiler) Target(cc int) string { return "sm_" + nv.Architecture(cc) }

// Compile returns what the text is compiled after, the text, and a launcher.
func (c Compiler) Compile(name, source string, options []string) ([]byte, string, error) {
	var b strings.Builder
	for _, o := range options {
		if d, ok := strings.CutPrefix(o, "-D"); ok {
			n, v, _ := strings.Cut(d, "=")
			fmt.Fprintf(&b, "#define %s %s\n", n, v)
		}
	}
	fmt.Fprintf(&b, "#include \"shim.h\"\n%s\n", source)
	b.WriteString("static void (*kernelBody)(const Args);\nstatic void callKernel(const void* a) { kernelBody(*(const Args*)a); }\n" +
		"extern \"C\" int shimLaunch(const char* name, const unsigned* grid, const unsigned* block, unsigned shared, const void* args, int descending) {\n")
	for _, m := range kernelName.FindAllStringSubmatch(source, -1) {
		fmt.Fprintf(&b, "  if (!strcmp(name, %q)) kernelBody = %s; else\n", m[1], m[1])
	}
	b.WriteString("  return 3;\n  return shimRun(callKernel, grid, block, shared, args, descending);\n}\n\x00")
	image := []byte(b.String())
	if c.Runner != nil {
		if err := c.Runner.Load(image); err != nil {
			return nil, "", err
		}
	}
	return image, "", nil
}

// Runner runs kernels on the CPU.
type Runner struct {
	dir     string
	running sync.Mutex             // the shim's state is global
	shim    func() (string, error) // the library made of shim.cc
	mu      sync.Mutex
	units   map[[32]byte]func() (nv.Proc, error)
}

// NewRunner returns a Runner that keeps compiled code in dir. It fails if there is
// no compiler.
func NewRunner(dir string) (*Runner, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("the shim's fibers are for amd64")
	}
	if _, err := exec.LookPath("g++"); err != nil {
		return nil, err
	}
	r := &Runner{dir: dir, units: map[[32]byte]func() (nv.Proc, error){}}
	r.shim = sync.OnceValues(func() (string, error) {
		if err := os.WriteFile(filepath.Join(dir, "shim.h"), []byte(shim), 0o600); err != nil {
			return "", err
		}
		return r.build("shim", []byte(shimCode), "-O2", "-nodefaultlibs", "-Wl,--no-as-needed", "-lm", "-lc")
	})
	return r, nil
}

// Install has a GPU run kernels here, threads in ascending or in descending order.
func (r *Runner) Install(g *GPU, descending bool) Compiler {
	g.Load = r.Load
	g.Kernel = func(image []byte, name string, grid, block [3]uint32, shared uint32, args []byte) error {
		return r.run(image, name, grid, block, shared, args, descending)
	}
	return Compiler{Runner: r}
}

// Load implements GPU.Load. It compiles in advance, since compiling takes longer
// than any kernel.
func (r *Runner) Load(image []byte) error {
	_, err := r.unit(image)
	return err
}

// run implements GPU.Kernel.
func (r *Runner) run(image []byte, name string, grid, block [3]uint32, shared uint32, args []byte, descending bool) error {
	launch, err := r.unit(image)
	if err != nil {
		return err
	}
	var order uintptr
	if descending {
		order = 1
	}
	r.running.Lock()
	defer r.running.Unlock()
	text := append([]byte(name), 0)
	if code := launch(nv.Addr(&text[0]), nv.Addr(&grid), nv.Addr(&block), uintptr(shared), nv.Addr(&args[0]), order); code != 0 {
		return fmt.Errorf("kernel %s failed with %d (1: threads wait at different barriers, 2: block size, 3: unknown, 4: a thread does not wait for its copies, 5: a block waits for a later one)", name, code)
	}
	runtime.KeepAlive(text)
	runtime.KeepAlive(args)
	return nil
}

// unit returns the launcher of compiled text; each is compiled once.
func (r *Runner) unit(image []byte) (nv.Proc, error) {
	image = bytes.TrimRight(image, "\x00")
	key := sha256.Sum256(image)
	r.mu.Lock()
	launcher := r.units[key]
	if launcher == nil {
		launcher = sync.OnceValues(func() (nv.Proc, error) { return r.load(fmt.Sprintf("%x", key[:12]), image) })
		r.units[key] = launcher
	}
	r.mu.Unlock()
	return launcher()
}

// load compiles and loads a unit. Undefined behaviour stops the process. So does an access to no memory, without
// the checks for it, which would take as long to compile as all the rest.
func (r *Runner) load(name string, image []byte) (nv.Proc, error) {
	shim, err := r.shim()
	if err != nil {
		return nil, err
	}
	path, err := r.build(name, image, "-Og", "-fsanitize=undefined", "-fno-sanitize=null,pointer-overflow,object-size", "-fsanitize-undefined-trap-on-error", "-nostdlib", shim)
	if err != nil {
		return nil, err
	}
	lib, err := nv.Open(path)
	if err != nil {
		return nil, err
	}
	p := lib.Symbol("shimLaunch")
	if p == nil {
		return nil, fmt.Errorf("%s has no launcher", path)
	}
	return p, nil
}

// build compiles text to a shared library in the Runner's folder.
func (r *Runner) build(name string, text []byte, more ...string) (path string, err error) {
	path = filepath.Join(r.dir, name+".so")
	source := filepath.Join(r.dir, name+".cc")
	if err := os.WriteFile(source, text, 0o600); err != nil {
		return "", err
	}
	// No contraction: devices may contract differently, and the reference is float64. Most kernels run a few
	// times: what makes them faster has to take less time than it saves.
	c := exec.Command("g++", append([]string{"-pipe", "-std=c++17", "-nostdinc++", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-mfma", "-shared", "-fPIC",
		"-fno-use-linker-plugin", "-o", path, source}, more...)...)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", source, err, out)
	}
	return path, nil
}
