package elixir

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
)

// Rates has the total rates of one host's n GPUs.
type Rates struct {
	Up, Down         float64 // host to GPU and back, GB/s
	GPUAdam, CPUAdam float64 // 1e9 elements per second
}

// adamBytes is the memory traffic of an update of fp32 state, in bytes per element.
const adamBytes = 28

// RatesOf returns the total rates of n ranks, each of which h describes. For the
// authors' own host, with their fitted constants, h is
// hardware.KnownRank("elixir-paper-40", n).
func RatesOf(h *hardware.Hardware, n int) (Rates, error) {
	up, down := h.Link(device.HostTier, device.DeviceTier), h.Link(device.DeviceTier, device.HostTier)
	gpu, host := h.Engine(device.Compute), h.Engine(device.HostCompute)
	if up == nil || down == nil || gpu == nil || host == nil {
		return Rates{}, fmt.Errorf("elixir: %s describes no host to hold weights; hint: describe the host's engine and its links to the device", h.Name)
	}
	giga := float64(n) / 1e9
	return Rates{Up: up.Bandwidth * giga, Down: down.Bandwidth * giga, GPUAdam: gpu.Bandwidth / adamBytes * giga, CPUAdam: host.Bandwidth / adamBytes * giga}, nil
}

// Cache returns I(n), the ns that one more block saves per element: a chunk is not
// written back and not sent again.
func (r Rates) Cache(f Format) float64 {
	p := float64(f.Bytes)
	return p/r.Up + p/r.Down
}

// State returns J(n), the ns that the same memory saves if it holds optimizer state
// instead. A block of C elements is on every GPU, a chunk with its state takes
// Units*C/n on each, so n/Units chunks fit in the space of one block. Each saves
// the first upload in fp32 after the optimizer, one write-back and upload, the
// gradient's transfer to the host, and the slower optimizer there.
func (r Rates) State(f Format, n int) float64 {
	p := float64(f.Bytes)
	each := 4/r.Up + r.Cache(f) + p/r.Down + 1/r.CPUAdam - 1/r.GPUAdam
	return float64(n) / float64(f.Units()) * each
}

// Placement is the use of the GPU's memory.
type Placement struct {
	Blocks int    // of the cache
	OnGPU  []bool // for each public chunk, then each private one: whether its shard and optimizer state are on the GPU
}

// Resident returns the number of chunks that stay on the GPU.
func (p *Placement) Resident() (n int) {
	for _, on := range p.OnGPU {
		if on {
			n++
		}
	}
	return n
}

const (
	fewestBlocks  = 4 // if optimizer state comes first
	runningBlocks = 1 // in addition to those of one checkpointed region
)

// Place allocates capacity (elements per GPU). With cacheFirst it takes all blocks
// that Choose found, then optimizer state. Otherwise it takes as few blocks as run
// well, then state, then blocks with the rest. Chunks are placed in order of use;
// one that does not fit does not stop a smaller one.
func Place(t *Trace, f Format, c *Choice, capacity int64, gpus int, cacheFirst, overlap bool) Placement {
	p := Placement{Blocks: c.Blocks}
	if !cacheFirst {
		blocks := max(fewestBlocks, int(roundUp(t.Largest(), c.Size)/c.Size)+runningBlocks)
		if overlap {
			blocks += prefetchBlocks
		}
		p.Blocks = min(c.Blocks, blocks)
	}
	left := capacity - int64(p.Blocks)*c.Size
	for _, size := range t.chunkSizes(c) {
		need := roundUp(f.Units()*size, int64(gpus)) / int64(gpus)
		stays := left >= need
		if stays {
			left -= need
		}
		p.OnGPU = append(p.OnGPU, stays)
	}
	if !cacheFirst {
		p.Blocks += min(int(left/c.Size), c.Blocks-p.Blocks)
	}
	return p
}

// chunkSizes returns the sizes of the public chunks, then of the private ones, in
// elements.
func (t *Trace) chunkSizes(c *Choice) []int64 {
	var list []int64
	for range c.Packing.Chunks {
		list = append(list, c.Size)
	}
	for _, p := range t.Params {
		if p.Private {
			list = append(list, p.Elems)
		}
	}
	return list
}
