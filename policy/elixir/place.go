package elixir

import "math"

// Rates of one host's GPUs, all n together.
type Rates struct {
	Up, Down         float64 // host to GPU and back, GB/s
	GPUAdam, CPUAdam float64 // 1e9 elements per second
}

// Fitted are the rates that the authors fitted to their A100 host for 1, 2 and
// 4 GPUs and built in.
func Fitted(n int) Rates {
	x := float64(n)
	return Rates{Up: 16.3*x + 8.7, Down: 15.8*x + 2.3, GPUAdam: 50 * x, CPUAdam: 1.66*math.Log(x) + 5.15}
}

// Cache is I(n), what one more block saves per element, in ns: a chunk is not
// written back and not sent again.
func (r Rates) Cache(f Format) float64 {
	p := float64(f.Bytes)
	return p/r.Up + p/r.Down
}

// State is J(n), what the same memory saves if optimizer state is on the GPU
// instead. A block of C elements is on every GPU, a chunk with its state takes
// Units*C/n of each, so n/Units chunks stay in the place of one block. Each
// saves the first upload in fp32 after the optimizer, one write-back and upload,
// the way of the gradient to the host, and the slower optimizer there.
func (r Rates) State(f Format, n int) float64 {
	p := float64(f.Bytes)
	each := 4/r.Up + r.Cache(f) + p/r.Down + 1/r.CPUAdam - 1/r.GPUAdam
	return float64(n) / float64(f.Units()) * each
}

// Placement is what the GPU's memory is spent on.
type Placement struct {
	Blocks int    // of the cache
	OnGPU  []bool // of each public chunk, then of each private one: shard and optimizer state
	Left   int64  // elements of the budget that nothing uses
}

// Resident is the number of chunks that stay on the GPU.
func (p *Placement) Resident() (n int) {
	for _, on := range p.OnGPU {
		if on {
			n++
		}
	}
	return n
}

const (
	fewestBlocks  = 4 // where optimizer state comes first
	runningBlocks = 1 // beyond those of one checkpointed region
)

// Place spends capacity (elements per GPU). cacheFirst: all blocks that Choose
// found, then optimizer state. Otherwise as few blocks as run well, then state,
// then blocks with what is left. Chunks are taken in order of use, and one that
// does not fit does not stop a smaller one.
func Place(t *Trace, f Format, c *Choice, capacity int64, gpus int, cacheFirst, overlap bool) Placement {
	p := Placement{Blocks: c.Blocks}
	if !cacheFirst {
		blocks := max(fewestBlocks, int(up(t.Largest(), c.Size)/c.Size)+runningBlocks)
		if overlap {
			blocks += prefetchBlocks
		}
		p.Blocks = min(c.Blocks, blocks)
	}
	left := capacity - int64(p.Blocks)*c.Size
	for _, size := range t.chunkSizes(c) {
		need := up(f.Units()*size, int64(gpus)) / int64(gpus)
		stays := left >= need
		if stays {
			left -= need
		}
		p.OnGPU = append(p.OnGPU, stays)
	}
	if !cacheFirst {
		more := min(int(left/c.Size), c.Blocks-p.Blocks)
		p.Blocks += more
		left -= int64(more) * c.Size
	}
	p.Left = left
	return p
}

// chunkSizes are those of the public chunks, then of the private ones.
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
