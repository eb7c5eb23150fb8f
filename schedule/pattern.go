package schedule

import "sort"

// Repeating patterns: all micro-batches do the same, a fixed interval apart. How long a micro-batch takes through the
// pipe, measured in intervals, is how many of them a rank holds, so a pattern that is steep in the right places keeps a
// memory cap that greedy construction fails at (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory",
// 2405.15362: V-Half and V-Min are such patterns).
//
// Approach: a pattern plans a time for every forward and input gradient: it moves on by a step per stage, with one step
// each for the way down, the way up, and the two ways back. Each rank's order is that of the planned times; the real times
// follow from running it, with weight gradients put into gaps that they fit, or where the cap demands them. Few patterns
// are needed, so all are tried.
//
// Example (p=4, m=8, unit times, V): half of the memory of 1F1B costs a tenth of the time.
// Weakness: uniform steps; collisions of planned times are resolved by waiting.

// pattern are the steps per stage, in thirds of a unit's whole work, and the interval in units of a rank's work per
// micro-batch.
type pattern struct {
	steps    [4]float64 // forward in the first and second half of the stages, backward in the second and first half
	turn     float64    // between the last forward and the first backward
	interval float64
}

// patterns lists what is tried, straight pipelines with equal halves.
func patterns(folded bool) []pattern {
	var list []pattern
	steps := []float64{1, 2, 3}
	for _, interval := range []float64{1, 7. / 6, 4. / 3, 1.5, 2} {
		for _, turn := range []float64{1, 2} {
			for _, a := range steps {
				for _, d := range steps {
					if !folded {
						list = append(list, pattern{[4]float64{a, a, d, d}, turn, interval})
						continue
					}
					for _, b := range steps {
						for _, c := range steps {
							list = append(list, pattern{[4]float64{a, b, c, d}, turn, interval})
						}
					}
				}
			}
		}
	}
	return list
}

// plan gives the planned start of every forward and input gradient of one micro-batch, by stage.
func (y pattern) plan(stages int, c Costs) (forward, backward []float64) {
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

// order fills s.Orders by the pattern; false if the cap cannot be kept.
func (y pattern) order(s *Schedule, c Costs, limit float64) bool {
	forward, backward := y.plan(s.Stages(), c)
	work := (c.F + c.B + c.W) * float64(s.Chunks*s.Slices) * y.interval // of one rank for one micro-batch
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

// follow is what a rank runs next if its sequence is given: the head of the sequence, unless a weight gradient fits before
// it or must make room for it.
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
	case len(k.sequence) == 0 || head.ok && head.start >= k.clock+g.c.of(k.pending[0]):
		return weight
	case !head.ok && k.held+1 > k.limit+1e-9 && k.sequence[0].Pass == F:
		return weight
	}
	return head
}
