// Package kernels has the CUDA C++ source of the operators, and compiles it to
// machine code for the card at hand.
//
// A Unit is one file specialised by definitions (types of the operands, head size).
// Its text is self-contained: NVRTC has no headers. Compiled units are cached on
// disk under a hash of all their inputs, so that only the first run on a machine
// waits for the compiler.
package kernels

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/optimizer"
)

//go:embed *.cu *.cuh
var files embed.FS

// Unit is a file of this folder, without ".cu", and definitions NAME=VALUE.
type Unit struct {
	File    string
	Defines string // separated by spaces, in a fixed order
}

func (u Unit) String() string { return strings.TrimSpace(u.File + " " + u.Defines) }

// parts lists the files that precede a unit's own, after the prelude.
var parts = map[string][]string{
	"act": {"activation.cuh"}, "act_bwd": {"activation.cuh"}, "swiglu": {"activation.cuh", "slots.cuh"}, "swiglu_bwd": {"activation.cuh", "slots.cuh"},
	"gate": {"activation.cuh"}, "gate_bwd": {"activation.cuh"}, "decay": {"decay.cuh"}, "decay_bwd": {"decay.cuh"}, "direction": {"nf4.cuh"}, "xielu": {"decay.cuh", "xielu.cuh"}, "xielu_bwd": {"decay.cuh", "xielu.cuh"},
	"short_conv": {"activation.cuh", "documents.cuh", "short_conv.cuh"}, "short_conv_dx": {"activation.cuh", "documents.cuh", "short_conv.cuh"}, "short_conv_dw": {"activation.cuh", "documents.cuh", "short_conv.cuh"}, "short_conv_at": {"activation.cuh", "documents.cuh", "places.cuh", "short_conv.cuh"},
	"delta_rule_at": {"places.cuh"}, "state_scan_at": {"places.cuh"},
	"delta_rule": {"documents.cuh", "delta.cuh"}, "delta_rule_bwd": {"documents.cuh", "delta.cuh", "delta_bwd.cuh"},
	"state_scan": {"documents.cuh", "delta.cuh", "state_scan.cuh"}, "state_scan_bwd": {"documents.cuh", "delta.cuh", "delta_bwd.cuh", "state_scan.cuh"},
	"time_steps": {"decay.cuh"}, "time_steps_bwd": {"decay.cuh"},
	"norm": {"rows.cuh"}, "embed": {"places.cuh"}, "rope": {"places.cuh"}, "norm_dx": {"rows.cuh"},
	"attention": {"cap.cuh", "attention.cuh", "sinks.cuh", "tiles.cuh"}, "attention_at": {"cache.cuh", "cap.cuh", "places.cuh", "sinks.cuh"}, "attention_bwd": {"cap.cuh", "attention.cuh", "tiles.cuh"},
	"attention_mma": {"cap.cuh", "attention.cuh", "sinks.cuh", "copies.cuh", "mma.cuh", "heads.cuh"}, "attention_bwd_mma": {"cap.cuh", "attention.cuh", "copies.cuh", "mma.cuh", "heads.cuh", "gradients.cuh"},
	"attention_wgmma": {"cap.cuh", "attention.cuh", "sinks.cuh", "copies.cuh", "mma.cuh", "heads.cuh", "wgmma.cuh"}, "attention_bwd_wgmma": {"attention.cuh", "copies.cuh", "mma.cuh", "heads.cuh", "wgmma.cuh", "gradients.cuh"},
	"attention_bwd_wide": {"cap.cuh", "attention.cuh", "copies.cuh", "mma.cuh", "heads.cuh", "wide.cuh"}, "attention_bwd_wide_wgmma": {"cap.cuh", "attention.cuh", "copies.cuh", "mma.cuh", "heads.cuh", "wgmma.cuh", "wide.cuh"},
	"route": {"router.cuh"}, "route_bwd": {"router.cuh", "dispatch.cuh"},
	"soft_cap": {"cap.cuh"}, "product": {"chains.cuh"}, "cross_entropy": {"copies.cuh"}, "dispatch": {"dispatch.cuh"}, "nf4": {"nf4.cuh"}, "fp8": {"fp8.cuh"}, "expert_linear": {"chains.cuh", "dispatch.cuh", "starts.cuh", "nf4.cuh"}, "expert_db": {"dispatch.cuh"}, "expert_dw": {"chains.cuh", "dispatch.cuh"},
	"expert_linear_mma": {"copies.cuh", "mma.cuh", "dispatch.cuh", "starts.cuh", "gather.cuh", "nf4.cuh"}, "expert_dw_mma": {"copies.cuh", "mma.cuh", "dispatch.cuh", "gather.cuh"},
	"expert_linear_wgmma": {"copies.cuh", "mma.cuh", "wgmma.cuh", "dispatch.cuh", "starts.cuh", "gather.cuh", "nf4.cuh"}, "expert_dw_wgmma": {"copies.cuh", "mma.cuh", "wgmma.cuh", "dispatch.cuh", "gather.cuh"},
	"muon_mean": {"draws.cuh", "update.cuh"}, "drop": {"draws.cuh"}, "jitter": {"draws.cuh"},
	"wgrad_mma": {"copies.cuh", "mma.cuh"}, "wgrad_wgmma": {"copies.cuh", "mma.cuh", "wgmma.cuh", "relay.cuh"},
}

// partsOf lists the files between the prelude and a unit's own.
func partsOf(file string) []string {
	if _, err := optimizer.Named(file); err == nil {
		return []string{"draws.cuh", "update.cuh", "moments.cuh"}
	}
	return parts[file]
}

// Source returns the unit's source text.
func (u Unit) Source() (string, error) {
	var b strings.Builder
	for _, name := range append(append([]string{"prelude.cuh"}, partsOf(u.File)...), u.File+".cu") {
		text, err := files.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("kernel %s: %w", u.File, err)
		}
		fmt.Fprintf(&b, "#line 1 %q\n%s", name, text)
	}
	return b.String(), nil
}

// Options returns the compiler's options for a Target.
func (u Unit) Options(arch string) []string {
	list := []string{"--gpu-architecture=" + arch, "--std=c++17", "--fmad=true", "-default-device"}
	for _, d := range strings.Fields(u.Defines) {
		list = append(list, "-D"+d)
	}
	return list
}

// Compiler compiles source text to machine code.
type Compiler interface {
	// VersionString differs between compilers that generate different code.
	VersionString() (string, error)
	// Target returns the architecture to compile for, given a card's compute
	// capability such as 90.
	Target(cc int) string
	Compile(name, source string, options []string) (code []byte, log string, err error)
}

// Cache keeps compiled units, and choices among the library's algorithms, in the folder Dir; if Dir is empty it
// keeps none.
type Cache struct {
	Dir      string
	Compiler Compiler
}

// Load returns the unit's code for a Target.
func (c *Cache) Load(u Unit, arch string) ([]byte, error) {
	source, err := u.Source()
	if err != nil {
		return nil, err
	}
	version, err := c.Compiler.VersionString()
	if err != nil {
		return nil, err
	}
	options := u.Options(arch)
	key := sha256.Sum256(fmt.Appendf(nil, "%s\n%q\n%s", version, options, source))
	name := fmt.Sprintf("%s-%s-%x.cubin", u.File, arch, key[:12])
	if code, ok := c.Get(name); ok {
		return code, nil
	}
	code, _, err := c.Compiler.Compile(u.File+".cu", source, options)
	if err != nil {
		return nil, err
	}
	c.Put(name, code)
	return code, nil
}

// Get returns what Put kept under a name, also on an earlier run.
func (c *Cache) Get(name string) ([]byte, bool) {
	if c.Dir == "" {
		return nil, false
	}
	return readSealed(filepath.Join(c.Dir, name))
}

// Put keeps b under a name that says everything b depends on.
func (c *Cache) Put(name string, b []byte) {
	if c.Dir != "" {
		writeSealed(filepath.Join(c.Dir, name), b)
	}
}

// readSealed reads a file that ends with a hash of its content, so that a file
// truncated by a crash or a full disk is rejected.
func readSealed(path string) ([]byte, bool) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) <= sha256.Size {
		return nil, false
	}
	code, seal := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	return code, sha256.Sum256(code) == [sha256.Size]byte(seal)
}

// writeSealed writes to a temporary name and renames it. A cache that cannot be
// written is no error: the next run compiles again.
func writeSealed(path string, code []byte) {
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return
	}
	seal := sha256.Sum256(code)
	_, err = f.Write(append(code[:len(code):len(code)], seal[:]...))
	if e := f.Close(); err == nil && e == nil && os.Rename(f.Name(), path) == nil {
		return
	}
	_ = os.Remove(f.Name())
}
