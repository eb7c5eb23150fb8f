//go:build linux

package fake

import (
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

//go:embed shim.h
var shim string

// Compiler stands in for NVRTC: its "code" is C++ source for the CPU.
type Compiler struct{}

// VersionString returns a constant.
func (Compiler) VersionString() (string, error) { return "fake", nil }

var kernelName = regexp.MustCompile(`__global__ void (?:__launch_bounds__\(.*\) )?(\w+)\(`)

// Target returns the architecture of a card.
func (Compiler) Target(cc int) string { return "sm_" + nv.Architecture(cc) }

// Compile returns the shim, the kernel's text and a launcher, concatenated.
func (Compiler) Compile(name, source string, options []string) ([]byte, string, error) {
	var b strings.Builder
	for _, o := range options {
		if d, ok := strings.CutPrefix(o, "-D"); ok {
			n, v, _ := strings.Cut(d, "=")
			fmt.Fprintf(&b, "#define %s %s\n", n, v)
		}
	}
	fmt.Fprintf(&b, "#line 1 \"shim.h\"\n%s%s\n", shim, source)
	b.WriteString("static void (*kernelBody)(const Args);\nstatic void callKernel(const void* a) { kernelBody(*(const Args*)a); }\n" +
		"extern \"C\" int shimLaunch(const char* name, const unsigned* grid, const unsigned* block, unsigned shared, const void* args, int descending) {\n")
	for _, m := range kernelName.FindAllStringSubmatch(source, -1) {
		fmt.Fprintf(&b, "  if (!strcmp(name, %q)) kernelBody = %s; else\n", m[1], m[1])
	}
	b.WriteString("  return 3;\n  return shimRun(callKernel, grid, block, shared, args, descending);\n}\n")
	return []byte(b.String() + "\x00"), "", nil
}

// Runner runs kernels on the CPU.
type Runner struct {
	// Descending runs the threads of a block in descending order.
	Descending bool
	dir        string
	mu         sync.Mutex
	libraries  map[[32]byte]nv.Proc
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
	return &Runner{dir: dir, libraries: map[[32]byte]nv.Proc{}}, nil
}

// Load implements GPU.Load. It compiles in advance, since compiling takes longer
// than any kernel.
func (r *Runner) Load(image []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.library(image)
	return err
}

// Kernel implements GPU.Kernel.
func (r *Runner) Kernel(image []byte, name string, grid, block [3]uint32, shared uint32, args []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock() // the shim's state is global
	launch, err := r.library(image)
	if err != nil {
		return err
	}
	var descending uintptr
	if r.Descending {
		descending = 1
	}
	text := append([]byte(name), 0)
	if code := launch(nv.Addr(&text[0]), nv.Addr(&grid), nv.Addr(&block), uintptr(shared), nv.Addr(&args[0]), descending); code != 0 {
		return fmt.Errorf("kernel %s failed with %d (1: threads wait at different barriers, 2: block size, 3: unknown, 4: a thread does not wait for its copies, 5: a block waits for a later one)", name, code)
	}
	runtime.KeepAlive(text)
	runtime.KeepAlive(args)
	return nil
}

func (r *Runner) library(image []byte) (nv.Proc, error) {
	key := sha256.Sum256(image)
	if p := r.libraries[key]; p != nil {
		return p, nil
	}
	base := filepath.Join(r.dir, fmt.Sprintf("%x", key[:12]))
	if _, err := os.Stat(base + ".so"); err != nil {
		if err := os.WriteFile(base+".cc", image, 0o600); err != nil {
			return nil, err
		}
		// No contraction: devices may contract differently, and the reference is
		// float64. C++'s own headers and library, which kernels do not use, would take
		// longer to compile than the kernels. Most of these run a few times: to optimise them
		// further takes longer than it saves.
		c := exec.Command("g++", "-pipe", "-std=c++17", "-nostdinc++", "-nodefaultlibs", "-Og", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-mfma", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-shared", "-fPIC", "-o", base+".so", base+".cc", "-lm", "-lc")
		if out, err := c.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", base, err, out)
		}
	}
	lib, err := nv.Open(base + ".so")
	if err != nil {
		return nil, err
	}
	p := lib.Symbol("shimLaunch")
	if p == nil {
		return nil, fmt.Errorf("%s has no launcher", base)
	}
	r.libraries[key] = p
	return p, nil
}
