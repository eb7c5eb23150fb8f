// Package schedule holds pipeline schedules as data.
//
// A model of S stages runs on p ranks; a training step pushes m micro-batches through it, forward and backward. A
// schedule says in which order each rank does its share, and nothing else: no times, no buffers, no transport. That
// little is enough to compute everything that one wants to know beforehand (Simulate: times, bubble, activation peaks,
// messages, parameter gathers), to prove that the ranks cannot wait for each other in a circle (Check), to draw it (Grid,
// SVG), and to lower it to programs.
//
// The smallest thing that is ordered is a Unit: one pass of one stage over one slice of one micro-batch. The pass is
// forward, full backward, or one half of a backward that was split into input gradients (which the stage before waits
// for) and weight gradients (which nobody waits for, so they fill gaps). All named schedules are small functions from
// four integers to lists of units; what they have in common is only the rule of dependencies:
//
//	F(s,i)  after F(s-1,i)                    and, with slices, after F(s,i,q-1), whose keys and values it reads
//	B(s,i)  after B(s+1,i) and F(s,i)         and, with slices, after B(s,i,q+1), which adds to its key gradients
//	W(s,i)  after the input gradient B(s,i)
//
// Where a rank holds several stages (chunks), a Placement table says which; a schedule that runs micro-batches in both
// directions has one table per direction and two copies of the weights.
package schedule

// Pass is what a unit does with its stage.
type Pass uint8

// The four passes. A micro-batch's backward on a stage is either one B, or one Bx and later one W.
const (
	F  Pass = iota // forward
	B              // full backward: input and weight gradients
	Bx             // input gradients only
	W              // weight gradients only
)

// Unit is one pass of one stage over one slice of one micro-batch: the smallest thing that is scheduled.
type Unit struct {
	Pass   Pass
	Dir    int  // replica: 0, or 1 for the one that runs against the ranks
	Stage  int  // position in the model, 0 first, whichever rank holds it
	Micro  int  // micro-batch, counted within its direction
	Slice  int  // slice of the sequence, 0 first
	Joined bool // runs overlapped with the unit before it in the order (one F and one B; DualPipe)
}

// Schedule is a placement and one ordered list of units per rank.
type Schedule struct {
	Name     string
	Ranks    int
	Micros   int      // micro-batches of the step, over all directions
	Chunks   int      // stages per rank and direction
	Slices   int      // slices per sequence
	Home     [][]int  // Home[direction][stage] is the rank that holds it
	Orders   [][]Unit // Orders[rank], executed front to back
	Notation Notation // how Orders are written
}

// Stages is the number of stages that a micro-batch passes.
func (s *Schedule) Stages() int { return len(s.Home[0]) }

// Directions is 1, or 2 when a replica runs against the ranks.
func (s *Schedule) Directions() int { return len(s.Home) }

// MicrosPerDirection is how many micro-batches each direction runs.
func (s *Schedule) MicrosPerDirection() int { return s.Micros / len(s.Home) }

// WeightCopies is how many times the model's weights exist in the pipeline.
func (s *Schedule) WeightCopies() int { return len(s.Home) }

// index numbers the (direction, stage, micro-batch, slice) of a unit densely.
func (s *Schedule) index(u Unit) int {
	return ((u.Dir*s.Stages()+u.Stage)*s.MicrosPerDirection()+u.Micro)*s.Slices + u.Slice
}

// slots is the number of values of index.
func (s *Schedule) slots() int {
	return s.Directions() * s.Stages() * s.MicrosPerDirection() * s.Slices
}

// loop places stage s on rank s mod p: contiguous for one chunk, modular (interleaved, Lamy-Poirier 2021) for more.
func loop(ranks, chunks int) []int {
	home := make([]int, ranks*chunks)
	for s := range home {
		home[s] = s % ranks
	}
	return home
}

// vee places 2p stages down the ranks and up again, so that rank 0 holds the first stage and the last.
func vee(ranks int) []int {
	home := make([]int, 2*ranks)
	for s := range home {
		home[s] = min(s, 2*ranks-1-s)
	}
	return home
}

// reversed is a placement with the ranks in opposite order.
func reversed(home []int) []int {
	ranks := 0
	for _, r := range home {
		ranks = max(ranks, r+1)
	}
	back := make([]int, len(home))
	for s, r := range home {
		back[s] = ranks - 1 - r
	}
	return back
}

// empty is a schedule of the asked shape without any units yet.
func empty(q Request, notation Notation, home ...[]int) *Schedule {
	return &Schedule{
		Ranks: q.Ranks, Micros: q.Micros, Chunks: q.Chunks, Slices: q.Slices,
		Home: home, Orders: make([][]Unit, q.Ranks), Notation: notation,
	}
}

// fill sets Orders by calling order for each rank.
func (s *Schedule) fill(order func(rank int) []Unit) *Schedule {
	for r := range s.Orders {
		s.Orders[r] = order(r)
	}
	return s
}
