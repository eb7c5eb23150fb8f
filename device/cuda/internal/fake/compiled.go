//go:build linux

package fake

import (
	"bytes"
	"sync"

	"github.com/athanor-llm/athanor/device/cuda/internal/ptx"
	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// Virtual is NVIDIA's compiler, set to generate PTX for any card.
type Virtual struct{ *nv.NVRTC }

// Target returns the virtual architecture of a card.
func (Virtual) Target(cc int) string { return "compute_" + nv.Architecture(cc) }

// Interpreter runs kernels that Virtual compiled.
type Interpreter struct {
	GPU *GPU
	// Descending runs blocks and warps from the last to the first.
	Descending bool
	// Count, if not nil, is called with the costs of each launch, never
	// concurrently.
	Count   func(kernel string, c *ptx.Counts)
	mu      sync.Mutex
	modules map[string]*ptx.Module
}

// Load implements GPU.Load.
func (r *Interpreter) Load(image []byte) error {
	_, err := r.module(image)
	return err
}

func (r *Interpreter) module(image []byte) (*ptx.Module, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := string(image)
	if m := r.modules[key]; m != nil {
		return m, nil
	}
	m, err := ptx.Parse(string(bytes.TrimRight(image, "\x00")))
	if err != nil {
		return nil, err
	}
	if r.modules == nil {
		r.modules = map[string]*ptx.Module{}
	}
	r.modules[key] = m
	return m, nil
}

// Kernel implements GPU.Kernel.
func (r *Interpreter) Kernel(image []byte, name string, grid, block [3]uint32, shared uint32, args []byte) error {
	m, err := r.module(image)
	if err != nil {
		return err
	}
	counts, err := m.Run(name, ptx.Launch{Grid: grid, Block: block, Shared: shared, Args: args, Memory: r.GPU.spans(), Descending: r.Descending, Traffic: r.Count != nil})
	if err == nil && r.Count != nil {
		r.mu.Lock()
		r.Count(name, &counts)
		r.mu.Unlock()
	}
	return err
}

// spans returns all allocations.
func (g *GPU) spans() []ptx.Span {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []ptx.Span
	for at, b := range g.memory.blocks {
		list = append(list, ptx.Span{At: at, Bytes: uintptr(len(b))})
	}
	return list
}
