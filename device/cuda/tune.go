package cuda

import (
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Choosing among the library's algorithms by the clock.
//
// For a product, cublasLt lists algorithms by how fast it expects them to be. It is often wrong: on an H200,
// another one than the first computes GPT-2 XL's product of 6400 to 1600 columns a fifth faster. But which one
// computes a product decides its bits, and those must depend neither on the plan (law L1, see product.go) nor
// on a clock.
//
// So the first one for canonRows rows defines the bits. The others, from the list for the product's own
// extents and from that for canonRows rows, compute the same product of random numbers. Those whose result has
// the same bits in every element are timed, and the fastest is used from then on. Most only divide the result
// into other tiles and still sum each element's terms in turn. One that sums in another order is off by some
// 2^-24 of an element times the root of the number of terms, and each element has 8 bits, so of the 2^30 terms
// that a tuned product has at least, more than a hundred elements would differ.
//
// Tune does so before arenas are reserved, in their memory to be, and keeps choices in the cache of compiled
// kernels. Prepare only looks them up. Known weaknesses: a trial has two results, so a product that takes most of
// a small arena keeps the first algorithm; and what is fastest among other products, with other numbers and at
// another clock, may be a different one, by a few percent.

const (
	tuneTerms  = 1 << 30 // multiply-adds of the smallest product that is tuned: a few microseconds
	tuneMost   = 8       // algorithms of a list
	tuneRounds = 7       // in which each is timed
	tuneFew    = 3       // rounds of a product that takes longer than tuneLong
	tuneLong   = 1e-2    // seconds
	tuneSpan   = 1e-3    // seconds that a round is to take, at most tuneTurns launches
	tuneTurns  = 20
	tuneText   = "tune 1" // changes when choices must be made anew
)

// Tune implements device.Tuner.
func (d *Device) Tune(calls []device.Call, memory int64) error {
	if d.library.lt == nil {
		return nil
	}
	var list []choiceKey
	everywhere := [device.NumTiers]int64{math.MaxInt64, math.MaxInt64, math.MaxInt64}
	t := d.target()
	t.room = scratchBytes // it will be there
	for i := range calls {
		c := &calls[i]
		if err := device.Check(c, everywhere); err != nil {
			return fmt.Errorf("tune: %w", &device.CallError{Call: i, Op: c.Op, Err: err})
		}
		if c.Op == graph.Copy || c.Op.Info().Between || isHost(c.Stream) {
			continue
		}
		works, err := t.build(c)
		if err != nil {
			return fmt.Errorf("tune: %w", &device.CallError{Call: i, Op: c.Op, Err: err})
		}
		list = d.library.untuned(list, works)
	}
	if len(list) == 0 {
		return nil
	}
	differ := launch{unit: kernels.Unit{File: "differ"}, kernel: "differ", block: threads}
	codes, err := d.code.compile([][]work{{{launch: &differ}}}, d.chip.arch)
	if err != nil {
		return fmt.Errorf("tune: %w", err)
	}
	err = d.work.do(func() error {
		if err := d.code.load(codes); err != nil {
			return err
		}
		for _, k := range list {
			if err := d.tune(k, differ, memory); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("tune: %w", err)
	}
	return nil
}

// tune chooses the algorithm of a product, on the worker. Without memory to try any, it chooses none.
func (d *Device) tune(k choiceKey, differ launch, memory int64) (err error) {
	t := &trial{d: d, key: k, differ: differ, scalars: scalars{alpha: 1}}
	if k.added {
		t.beta = 1
	}
	if !t.reserve(memory) {
		return nil
	}
	defer func() {
		if e := t.close(); err == nil {
			err = e
		}
	}()
	var first algorithm
	if t.plan, err = d.library.lt.Plan(k.product, t.extra); err == nil {
		first, err = d.library.algorithm(canonical(k.product), t.extra)
	}
	if err != nil {
		return nil // Prepare says so
	}
	list := t.candidates(first)
	if err := t.fill(); err != nil {
		return err
	}
	if list, err = t.withFirstBits(list); err != nil || len(list) == 0 {
		return err
	}
	best, err := fastest(len(list), func(i, turns int) (float64, error) {
		if err := t.plan.Adopt(d.library.handle, list[i], workspaceBytes); err != nil {
			return 0, err
		}
		return t.seconds(turns)
	})
	if err != nil {
		return err
	}
	d.library.choose(k, list[best])
	return nil
}

// fastest returns the number, below n, of what takes the least time, by the median of some rounds. time
// returns the seconds that so many turns of it take. A GPU at its power cap slows down for what comes after a
// thirsty algorithm, so in every round another one comes first.
func fastest(n int, time func(i, turns int) (float64, error)) (best int, err error) {
	once, err := time(0, 1)
	if err != nil || n == 1 {
		return 0, err
	}
	turns := max(1, min(tuneTurns, int(math.Ceil(tuneSpan/max(once, 1e-9)))))
	rounds := tuneRounds
	if once > tuneLong {
		rounds = tuneFew
	}
	times := make([][]float64, n)
	for round := range rounds {
		for k := range n {
			i := (k + round) % n
			s, err := time(i, turns)
			if err != nil {
				return 0, err
			}
			times[i] = append(times[i], s)
		}
	}
	for i := range times {
		slices.Sort(times[i])
		if times[i][rounds/2] < times[best][rounds/2] {
			best = i
		}
	}
	return best, nil
}
