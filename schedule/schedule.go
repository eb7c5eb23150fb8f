// Package schedule represents pipeline schedules as data.
//
// A model of S stages runs on p ranks; a training step passes m micro-batches through
// it, forward and backward. A schedule is the order in which each rank executes its
// units, and nothing else: no times, no buffers, no communication. That suffices to
// compute times, bubble, activation peaks, messages and parameter gathers (Simulate), to
// prove that the ranks cannot deadlock (Check), to draw it (Grid), and to lower it to
// programs.
//
// A Unit is one pass of one stage over one slice of one micro-batch. The pass is a
// forward, a full backward, or one half of a split backward: the input gradient, for
// which the preceding stage waits, or the weight gradient, for which no stage waits, so
// that it can fill bubbles. Named schedules are small functions from a Request to one
// list of units per rank. They share only the dependencies of units (stage s,
// micro-batch i, slice q):
//
//	F(s,i)  after F(s-1,i);             with slices also after F(s,i,q-1), whose keys and values it reads
//	B(s,i)  after B(s+1,i) and F(s,i);  with slices also after B(s,i,q+1), which adds to the gradients of its keys and values
//	W(s,i)  after the input gradient B(s,i)
//
// Schedule.Home says which rank holds which stage. A schedule that runs micro-batches in
// both directions has one such table per direction, and two copies of the weights.
//
// Letters in formulas: p ranks, m micro-batches, v chunks (stages per rank), k slices,
// r the rank.
package schedule

// Pass is the kind of work of a unit.
type Pass uint8

// The backward of a micro-batch on a stage is either one B, or one Bx and later one W.
const (
	F  Pass = iota // forward
	B              // full backward: input and weight gradients
	Bx             // input gradients only
	W              // weight gradients only
)

// Unit is one pass of one stage over one slice of one micro-batch, the smallest thing
// that is scheduled.
type Unit struct {
	Pass   Pass
	Dir    int  // direction, and thereby copy of the weights: 0, or 1 if it enters at the last rank
	Stage  int  // position in the model, from 0, whichever rank holds it
	Micro  int  // micro-batch, counted within its direction
	Slice  int  // slice of the sequence, from 0
	Joined bool // a B that overlaps with the F before it in the order (DualPipe)
}

// Schedule is a placement of stages on ranks and one ordered list of units per rank.
type Schedule struct {
	Name     string
	Ranks    int
	Micros   int      // micro-batches of the step, over all directions
	Chunks   int      // stages per rank and direction
	Slices   int      // slices per sequence
	Home     [][]int  // Home[direction][stage] is the rank that holds the stage
	Orders   [][]Unit // by rank, in order of execution
	Notation Notation // in which Text writes Orders
}

// Stages returns the number of stages of the model.
func (s *Schedule) Stages() int { return len(s.Home[0]) }

// Directions returns 2 if micro-batches enter at both ends of the ranks, else 1.
func (s *Schedule) Directions() int { return len(s.Home) }

// MicrosPerDirection returns the number of micro-batches of each direction.
func (s *Schedule) MicrosPerDirection() int { return s.Micros / len(s.Home) }

// WeightCopies returns how many copies of the model's weights all ranks together hold.
func (s *Schedule) WeightCopies() int { return len(s.Home) }

// index numbers the (direction, stage, micro-batch, slice) of units from 0 to slots()-1.
func (s *Schedule) index(u Unit) int {
	return ((u.Dir*s.Stages()+u.Stage)*s.MicrosPerDirection()+u.Micro)*s.Slices + u.Slice
}

func (s *Schedule) slots() int {
	return s.Directions() * s.Stages() * s.MicrosPerDirection() * s.Slices
}

// Loop places stage s on rank s mod p: the usual placement for one chunk, the modular or
// interleaved one for several (Lamy-Poirier 2021, arXiv 2106.02679).
func Loop(ranks, chunks int) []int {
	home := make([]int, ranks*chunks)
	for s := range home {
		home[s] = s % ranks
	}
	return home
}

// Vee places 2p stages on ranks 0 to p-1 and back, so that rank 0 holds the first stage
// and the last.
func Vee(ranks int) []int {
	home := make([]int, 2*ranks)
	for s := range home {
		home[s] = min(s, 2*ranks-1-s)
	}
	return home
}

// Reversed returns the placement with the ranks in opposite order.
func Reversed(home []int) []int {
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

// Empty returns a schedule of q's shape without units. home has one placement per
// direction.
func Empty(q Request, notation Notation, home ...[]int) *Schedule {
	return &Schedule{
		Ranks: q.Ranks, Micros: q.Micros, Chunks: q.Chunks, Slices: q.Slices,
		Home: home, Orders: make([][]Unit, q.Ranks), Notation: notation,
	}
}

// fill sets the order of every rank to what order returns for it.
func (s *Schedule) fill(order func(rank int) []Unit) *Schedule {
	for r := range s.Orders {
		s.Orders[r] = order(r)
	}
	return s
}
