package schedule

// Schedules whose order does not depend on times. Except in breadth-first, a rank runs
// some warm-up forwards, then alternates between a queue of forwards and a queue of
// backwards. The schedules differ in the queues and in the length of the warm-up.
//
// Example (1F1B, p=2, m=3): rank 0 has one warm-up forward: F0 | F1 B0 F2 B1 | B2.
// Weakness: with uneven stages orders that know the times do better (lab/pipeline finds them).

// alternate returns the order of a rank: warm forwards, then pairs of a forward and a
// backward, then the remaining backwards. forward and backward return the i-th of the n
// units of each queue.
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

// gpipe runs all forwards, then all backwards, both in order of micro-batches (Huang et
// al. 2019, GPipe).
func gpipe(q Request) (*Schedule, error) {
	s := Empty(q, Plain, Loop(q.Ranks, 1))
	return s.fill(func(r int) []Unit {
		return alternate(q.Micros, q.Micros,
			func(i int) Unit { return Unit{Pass: F, Stage: r, Micro: i} },
			func(i int) Unit { return Unit{Pass: B, Stage: r, Micro: i} })
	}), nil
}

// oneForwardOneBackward is 1F1B (Fan et al. 2021, DAPPLE; Narayanan et al. 2021,
// PipeDream-Flush): p-1-r warm-up forwards on rank r, which therefore holds the
// activations of at most p-r micro-batches.
func oneForwardOneBackward(q Request) (*Schedule, error) {
	s := Empty(q, Plain, Loop(q.Ranks, 1))
	return s.fill(func(r int) []Unit {
		return alternate(q.Micros, q.Ranks-1-r,
			func(i int) Unit { return Unit{Pass: F, Stage: r, Micro: i} },
			func(i int) Unit { return Unit{Pass: B, Stage: r, Micro: i} })
	}), nil
}

// interleaved is 1F1B with v chunks per rank (Narayanan et al. 2021, Megatron-LM, 2.2): p
// micro-batches go through the first chunk, then the same p through the second, and so
// on. That divides the bubble by v and multiplies the messages by about v.
func interleaved(q Request) (*Schedule, error) { return seqOneForwardOneBackward(q) }

// seqOneForwardOneBackward is 1F1B over slices of sequences (Sun et al. 2024, Seq1F1B).
// Within a micro-batch, backwards run from the last slice to the first, because the
// gradients of a slice's keys and values are complete only after all later slices. With
// one slice it is interleaved 1F1B, with one slice and one chunk plain 1F1B.
func seqOneForwardOneBackward(q Request) (*Schedule, error) {
	p, v, k := q.Ranks, q.Chunks, q.Slices
	s := Empty(q, Plain, Loop(p, v))
	slot := func(i int) (chunk, unit int) { // of the i-th unit of a queue: in each round, p slices through v chunks
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

// wholeRounds refuses interleaved schedules with a round of fewer than p slices, or with
// a micro-batch whose slices are in two rounds.
func wholeRounds(q Request) *UsageError {
	if q.Chunks == 1 {
		return nil
	}
	if units := q.Micros * q.Slices; units%q.Ranks != 0 {
		need := (units + q.Ranks - 1) / q.Ranks * q.Ranks
		for need%q.Slices != 0 {
			need += q.Ranks
		}
		return &UsageError{Why: "in an interleaved schedule, the number of micro-batches (times splits) must be a multiple of the ranks",
			Hint: "take " + plural(need/q.Slices, "micro-batch") + ", or one chunk per rank"}
	}
	if q.Ranks%q.Slices != 0 {
		return &UsageError{Why: "an interleaved schedule cannot cut a micro-batch between two rounds of the ranks",
			Hint: "take a number of splits that divides the ranks, or one chunk per rank"}
	}
	return nil
}

// breadthFirst runs each stage for all micro-batches before the next stage: layered
// gradient accumulation on a modular placement (Lamy-Poirier 2021, arXiv 2106.02679),
// called breadth-first in arXiv 2211.05953. Whatever the number of micro-batches, a
// stage's parameters are gathered once per pass and its gradients reduced once per step.
//
// A depth-first factor d divides the micro-batches into d groups that run one after the
// other (micro-batch b*d + g is in group g), for fewer activations and more gathers.
// d = m is plain gradient accumulation.
func breadthFirst(q Request) (*Schedule, error) {
	p, v, k, groups := q.Ranks, q.Chunks, q.Slices, q.DepthFirst
	wide := q.Micros / groups
	s := Empty(q, Plain, Loop(p, v))
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

// wholeGroups refuses depth-first groups of unequal size.
func wholeGroups(q Request) *UsageError {
	if q.Micros%q.DepthFirst != 0 {
		return &UsageError{Why: "the depth-first factor must divide the micro-batches", Hint: "take a divisor of the number of micro-batches as the depth-first factor"}
	}
	return nil
}
