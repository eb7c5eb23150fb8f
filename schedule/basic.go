package schedule

// The schedules whose order follows from counting alone: each rank alternates between a queue of forwards and a queue of
// backwards after some warm-up forwards. They differ in the queues and in the warm-up.
//
// Example (p=2, m=3, rank 0): 1F1B has one warm-up forward: F0 | F1 B0 F2 B1 | B2.
// Weakness: the times play no role; with uneven stages Search does better.

// alternate is the common form: warm forwards, then pairs, then the remaining backwards. forward and backward give the
// i-th unit of each queue of n units.
func alternate(n, warm int, forward, backward func(i int) Unit) []Unit {
	warm = min(warm, n)
	order := make([]Unit, 0, 2*n)
	for i := range n + warm {
		if i < n {
			order = append(order, forward(i))
		}
		if i >= warm {
			order = append(order, backward(i-warm))
		}
	}
	return order
}

// gpipe runs all forwards, then all backwards (Huang et al. 2019, GPipe); the backwards first in, first out.
func gpipe(q Request) (*Schedule, error) {
	s := empty(q, Plain, loop(q.Ranks, 1))
	return s.fill(func(r int) []Unit {
		return alternate(q.Micros, q.Micros,
			func(i int) Unit { return Unit{Pass: F, Stage: r, Micro: i} },
			func(i int) Unit { return Unit{Pass: B, Stage: r, Micro: i} })
	}), nil
}

// oneForwardOneBackward runs p-1-r warm-up forwards on rank r (Fan et al. 2021, DAPPLE; Narayanan et al. 2021,
// PipeDream-Flush), so that at most p-r micro-batches are in flight.
func oneForwardOneBackward(q Request) (*Schedule, error) {
	s := empty(q, Plain, loop(q.Ranks, 1))
	return s.fill(func(r int) []Unit {
		return alternate(q.Micros, q.Ranks-1-r,
			func(i int) Unit { return Unit{Pass: F, Stage: r, Micro: i} },
			func(i int) Unit { return Unit{Pass: B, Stage: r, Micro: i} })
	}), nil
}

// interleaved is 1F1B with v chunks per rank (Narayanan et al. 2021, Megatron-LM 2.2): p micro-batches go through the
// first chunk, then the same p through the second, and so on; the bubble shrinks by v, the messages grow by v.
func interleaved(q Request) (*Schedule, error) { return seqOneForwardOneBackward(q) }

// seqOneForwardOneBackward makes slices of the sequence the units of 1F1B (Sun et al. 2024, Seq1F1B): forwards in order,
// and within a micro-batch backwards from the last slice to the first, because the key and value gradients of a slice
// are complete only after all later slices. With one slice it is interleaved 1F1B; with one chunk also, plain 1F1B.
func seqOneForwardOneBackward(q Request) (*Schedule, error) {
	p, v, k := q.Ranks, q.Chunks, q.Slices
	s := empty(q, Plain, loop(p, v))
	slot := func(i int) (chunk, unit int) { // i-th slot of a queue: rounds of p units through v chunks
		if v == 1 {
			return 0, i
		}
		round, within := i/(p*v), i%(p*v)
		return within / p, round*p + within%p
	}
	return s.fill(func(r int) []Unit {
		warm := (v-1)*p + (p - 1 - r) + k - 1
		if v > 1 {
			warm += p - 1 - r
		}
		return alternate(q.Micros*k*v, warm,
			func(i int) Unit {
				chunk, u := slot(i)
				return Unit{Pass: F, Stage: r + p*chunk, Micro: u / k, Slice: u % k}
			},
			func(i int) Unit {
				chunk, u := slot(i)
				return Unit{Pass: B, Stage: r + p*(v-1-chunk), Micro: u / k, Slice: k - 1 - u%k}
			})
	}), nil
}

// wholeRounds: the rounds of p units of an interleaved schedule must be full, and must not cut a micro-batch in two.
func wholeRounds(q Request) *UsageError {
	if q.Chunks == 1 {
		return nil
	}
	if units := q.Micros * q.Slices; units%q.Ranks != 0 {
		need := (units + q.Ranks - 1) / q.Ranks * q.Ranks
		for need%q.Slices != 0 {
			need += q.Ranks
		}
		return &UsageError{Why: "an interleaved schedule needs a multiple of the ranks as micro-batches (times splits)",
			Hint: "take " + plural(need/q.Slices, "micro-batch") + ", or one chunk"}
	}
	if q.Ranks%q.Slices != 0 {
		return &UsageError{Why: "an interleaved schedule cannot cut a micro-batch between two rounds of the ranks",
			Hint: "take a number of splits that divides the ranks, or one chunk"}
	}
	return nil
}

// breadthFirst runs each layer (stage) for all micro-batches before the next one: layered gradient accumulation on the
// modular placement of Lamy-Poirier 2021 (2106.02679), called breadth-first in 2211.05953. Each stage's parameters are
// gathered once per pass and its gradients reduced once per step, whatever the number of micro-batches. A depth-first
// factor d cuts the micro-batches into d groups that run one after the other (micro-batch b*d + g belongs to group g):
// fewer activations, more gathers; d = m is plain accumulation.
func breadthFirst(q Request) (*Schedule, error) {
	p, v, k, groups := q.Ranks, q.Chunks, q.Slices, q.DepthFirst
	wide := q.Micros / groups
	s := empty(q, Plain, loop(p, v))
	return s.fill(func(r int) []Unit {
		order := make([]Unit, 0, 2*q.Micros*v*k)
		for g := range groups {
			for c := range v {
				for i := range wide * k {
					order = append(order, Unit{Pass: F, Stage: r + p*c, Micro: i/k*groups + g, Slice: i % k})
				}
			}
			for c := v - 1; c >= 0; c-- {
				for i := range wide * k {
					order = append(order, Unit{Pass: B, Stage: r + p*c, Micro: i/k*groups + g, Slice: k - 1 - i%k})
				}
			}
		}
		return order
	}), nil
}

// wholeGroups: the depth-first groups are equal.
func wholeGroups(q Request) *UsageError {
	if q.Micros%q.DepthFirst != 0 {
		return &UsageError{Why: "the depth-first factor must divide the micro-batches", Hint: "take a divisor of the number of micro-batches"}
	}
	return nil
}
