package schedule

import "sort"

// Repeating patterns: all micro-batches follow the same time plan, a fixed interval apart.
// A rank holds a micro-batch from the forward to the backward of its stage; that time
// divided by the interval is the number of micro-batches that it holds. So a pattern with
// the right steps keeps memory caps at which greedy construction gets stuck. V-Half and
// V-Min are such patterns (Qi et al. 2024, "Pipeline Parallelism with Controllable
// Memory", arXiv 2405.15362).
//
// Approach: the plan of a micro-batch advances by a constant step from stage to stage,
// with four steps: for the forwards and for the backwards, each in the first and in the
// second half of the stages. A rank runs its forwards and input gradients in the order of
// their planned times. Weight gradients run in gaps that are long enough, or when the cap
// requires it; this and the actual times come from executing the order (see follow).
// There are few patterns, so all are tried.
//
// Example (V, p=4, m=8, all times 1): 1F1B holds 8 chunk activations and idles 18 of 48
// time units. Patterns idle 5 with 6 chunk activations, and 11 with 4.
// Weakness: steps are constant; where planned times collide, units wait.

// A Pattern is the time plan of a micro-batch.
type Pattern struct {
	steps    [4]float64 // from stage to stage: forwards in the first and second half, backwards in the second and first half; see plan
	turn     float64    // step from the last forward to the first backward
	interval float64    // between micro-batches, in times of a rank's work for one
}

// Patterns returns the patterns to try. On a placement that is not folded to a V, both
// halves have the same steps.
func Patterns(folded bool) []Pattern {
	var list []Pattern
	steps := []float64{1, 2, 3}
	for _, interval := range []float64{1, 7. / 6, 4. / 3, 1.5, 2} {
		for _, turn := range []float64{1, 2} {
			for _, a := range steps {
				for _, d := range steps {
					if !folded {
						list = append(list, Pattern{[4]float64{a, a, d, d}, turn, interval})
						continue
					}
					for _, b := range steps {
						for _, c := range steps {
							list = append(list, Pattern{[4]float64{a, b, c, d}, turn, interval})
						}
					}
				}
			}
		}
	}
	return list
}

// plan returns the planned starts of the forward and input gradient of micro-batch 0, by
// stage. A step of 1 is a third of the work of a stage plus a message.
func (y Pattern) plan(stages int, c Costs) (forward, backward []float64) {
	step := (c.F+c.B+c.W)/3 + c.Comm
	forward, backward = make([]float64, stages), make([]float64, stages)
	half := func(s int) int { return min(1, 2*s/stages) }
	for s := 1; s < stages; s++ {
		forward[s] = forward[s-1] + y.steps[half(s)]*step
	}
	backward[stages-1] = forward[stages-1] + y.turn*step
	for s := stages - 2; s >= 0; s-- {
		backward[s] = backward[s+1] + y.steps[3-half(s)]*step
	}
	return forward, backward
}

// Order fills s.Orders by the pattern. It returns false if the cap, in chunks of one
// micro-batch, cannot be kept.
func (y Pattern) Order(s *Schedule, c Costs, limit float64) bool {
	forward, backward := y.plan(s.Stages(), c)
	work := (c.F + c.B + c.W) * float64(s.Chunks*s.Slices) * y.interval // time between micro-batches
	type planned struct {
		at   float64
		unit Unit
	}
	g := newGreedy(s, c, limit)
	for r := range s.Orders {
		var list []planned
		for dir, home := range s.Home {
			for stage, h := range home {
				if h != r {
					continue
				}
				for i := range g.units {
					at := (float64(i/s.Slices*s.Directions()+dir) + float64(i%s.Slices)/float64(s.Slices)) * work
					k := &g.stages[dir][stage]
					list = append(list, planned{at + forward[stage], g.unit(k, F, i)}, planned{at + backward[stage], g.unit(k, Bx, i)})
				}
			}
		}
		sort.SliceStable(list, func(i, j int) bool { return list[i].at < list[j].at })
		sequence := make([]Unit, len(list))
		for i := range list {
			sequence[i] = list[i].unit
		}
		g.ranks[r].sequence = sequence
		g.ranks[r].limit = limit * float64(s.Slices)
	}
	return g.complete()
}

// follow returns what a rank with a given sequence runs next: the head of the sequence,
// unless a weight gradient fits before it or must free memory for it.
func (g *greedy) follow(k *greedyRank) option {
	var head option
	if len(k.sequence) > 0 {
		u := k.sequence[0]
		owner := &g.stages[u.Dir][u.Stage]
		if at, ok := g.arrival(owner, u.Pass); ok {
			head = option{unit: u, owner: owner, start: max(at, k.clock), ok: true}
		}
		if u.Pass == F && k.held+1 > k.limit+1e-9 {
			head.ok = false
		}
	}
	if len(k.pending) == 0 {
		return head
	}
	weight := option{unit: k.pending[0], start: k.clock, ok: true}
	switch {
	case len(k.sequence) == 0 || head.ok && head.start >= k.clock+g.c.Of(k.pending[0]):
		return weight
	case !head.ok && k.held+1 > k.limit+1e-9 && k.sequence[0].Pass == F:
		return weight
	}
	return head
}
