// Package elixir is the search of Elixir (Huang et al., 2212.05339), reimplemented
// from a description of the decisions of the authors' code, so that other planners
// can be compared with it. It is a pure function from the order in which a step
// uses its parameters, and a few rates, to a chunk size, a number of blocks, and
// the chunks that stay on the GPU.
//
//	graph --Record--> trace --Choose--> chunk size, blocks --Place--> who stays
//
// Approach: parameters are stored in order of first use in flat chunks of one size
// C. A chunk is sharded over the GPUs, and gathered into one of k blocks (the
// rCache) when an operator needs it. With as many blocks as chunks each is gathered
// once per step (ZeRO-2), with fewer blocks repeatedly (ZeRO-3). The search chooses
// C and k so that the fewest elements move, then spends GPU memory on blocks or
// optimizer state, whichever saves more time per byte.
//
// Example: a trace of chunks 0 | 1 2 | 3 | 3 | 1 2 | 0 and two blocks: six loads,
// so twelve moves. Known weakness (the original's): one price for every move, no
// computation time, no overlap, and C is chosen as if the whole budget were blocks.
//
// The original's defects are deliberately not reproduced: an infinite loop if
// memory is short, an order of parameters that differs between processes, and a
// cache too small for one operator.
package elixir

import "fmt"

// Decision is the result of the whole search.
type Decision struct {
	Choice
	Placement
	Cache, State float64 // I and J, see Rates
	Filled       int64   // elements of public chunks that hold parameters
}

// CacheFirst reports whether blocks have priority over optimizer state.
func (d *Decision) CacheFirst() bool { return d.Cache > d.State }

// Waste returns the ratio of empty to filled elements in the chunks.
func (d *Decision) Waste() float64 { return float64(d.Packing.Waste) / float64(max(d.Filled, 1)) }

// Machine describes n GPUs on one host to the search.
type Machine struct {
	GPUs     int
	Capacity int64 // elements per GPU, see Budget
	Rates    Rates // of all GPUs together
}

// Decide runs the whole search.
func Decide(t *Trace, f Format, m Machine, overlap bool) (*Decision, error) {
	if m.GPUs < 1 {
		return nil, fmt.Errorf("elixir: impossible number of %d GPUs; hint: use at least 1", m.GPUs)
	}
	capacity := m.Capacity - t.private()
	c, err := Choose(t, f, capacity, m.GPUs, overlap)
	if err != nil {
		return nil, err
	}
	d := &Decision{Choice: *c, Cache: m.Rates.Cache(f), State: m.Rates.State(f, m.GPUs)}
	_, d.Filled, _ = t.public()
	d.Placement = Place(t, f, c, capacity, m.GPUs, d.CacheFirst(), overlap)
	return d, nil
}
