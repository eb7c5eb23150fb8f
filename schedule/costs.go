package schedule

import (
	"fmt"
	"math"
)

// Times are the durations of the passes of one stage for one slice of a micro-batch, in
// any one unit of time (the command line uses seconds). A full backward takes B + W.
type Times struct {
	F float64 // forward
	B float64 // input gradient
	W float64 // weight gradient
}

// Costs are the times and memory that Simulate charges. The zero value of every field but
// Times means "not modelled".
type Costs struct {
	Times
	Comm         float64   // time of a message between two ranks; overlaps with computation
	Pair         float64   // time of an overlapped forward and full backward; 0 means F + B + W
	WeightMemory float64   // share of a unit's activations that is held until W (M_W/M_B)
	Stages       []Times   // by stage, in place of Times
	Slices       []float64 // by slice: factor on the times, 1 on average
	Gather       float64   // time to gather the parameters of a stage; has no effect without Buffers
	Buffers      int       // per rank, of gathered parameters of a stage; 0: parameters stay resident
}

// DefaultCosts returns the costs of the figures in the literature: all times 1, messages
// free, half of the activations held until W.
func DefaultCosts() Costs {
	return Costs{Times: Times{F: 1, B: 1, W: 1}, WeightMemory: 0.5}
}

// Of returns the time of a unit that overlaps with no other.
func (c *Costs) Of(u Unit) float64 {
	t := c.Times
	if c.Stages != nil {
		t = c.Stages[u.Stage]
	}
	d := t.F
	switch u.Pass {
	case B:
		d = t.B + t.W
	case Bx:
		d = t.B
	case W:
		d = t.W
	}
	if c.Slices != nil {
		d *= c.Slices[u.Slice]
	}
	return d
}

// ofPair returns the time of an overlapped pair.
func (c *Costs) ofPair(a, b Unit) float64 {
	if c.Pair > 0 {
		return c.Pair
	}
	return c.Of(a) + c.Of(b)
}

// Memory returns what a unit adds to the activations of its rank, in chunks of one slice
// of a micro-batch.
func (c *Costs) Memory(u Unit) float64 {
	switch u.Pass {
	case F:
		return 1
	case B:
		return -1
	case Bx:
		return c.WeightMemory - 1
	default:
		return -c.WeightMemory
	}
}

// check refuses impossible costs and tables whose length is not the schedule's, with a
// *UsageError.
func (c *Costs) check(stages, slices int) error {
	if err := c.CheckTimes(); err != nil {
		return err
	}
	if c.Stages != nil && len(c.Stages) != stages {
		return &UsageError{fmt.Sprintf("%d stage times", len(c.Stages)), fmt.Sprintf("the schedule has %d stages", stages),
			"give one per stage"}
	}
	if c.Slices != nil && len(c.Slices) != slices {
		return &UsageError{fmt.Sprintf("%d slice factors", len(c.Slices)), fmt.Sprintf("the schedule has %d slices", slices),
			"give one per slice"}
	}
	return nil
}

// CheckTimes refuses costs that are negative or not finite, and times that are all zero,
// with a *UsageError.
func (c *Costs) CheckTimes() error {
	type named struct {
		name  string
		value float64
	}
	all := []named{{"tf", c.F}, {"tb", c.B}, {"tw", c.W}, {"tc", c.Comm}, {"pair time", c.Pair}, {"gather time", c.Gather},
		{"weight memory", c.WeightMemory}, {"buffers", float64(c.Buffers)}}
	for i, t := range c.Stages {
		for pass, value := range []float64{t.F, t.B, t.W} {
			all = append(all, named{fmt.Sprintf("t%c of stage %d", "fbw"[pass], i), value})
		}
	}
	for i, f := range c.Slices {
		all = append(all, named{fmt.Sprintf("factor of slice %d", i), f})
	}
	for _, a := range all {
		if !(a.value >= 0) || a.value > math.MaxFloat32 {
			return &UsageError{fmt.Sprintf("%s = %g", a.name, a.value), "costs must be finite and not negative", "give a number >= 0"}
		}
	}
	if c.F+c.B+c.W == 0 && c.Stages == nil {
		return &UsageError{"tf = tb = tw = 0", "a step that takes no time has no schedule", "give at least one positive time"}
	}
	if c.WeightMemory > 1 {
		return &UsageError{fmt.Sprintf("weight memory = %g", c.WeightMemory), "it is a share of the activations",
			"give a number between 0 and 1"}
	}
	return nil
}
