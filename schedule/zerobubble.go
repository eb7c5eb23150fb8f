package schedule

// The two hand-made zero-bubble schedules (Qi et al. 2024, Zero Bubble Pipeline Parallelism, 2401.10241, 2.2 and 2.3).
//
// The backward is split; the stage before waits only for the input gradient B, and weight gradients W are put off until
// there is a gap. Example (p=2, m=3): H1 has rank 0 run F0 F1 B0 W0 F2 B1 W1 B2 W2 and rank 1 F0 B0 F1 B1 W0 F2 B2 W1 W2.
// Weakness: made for F = B = W; for other times zb-auto or Search.

// zeroBubbleH1 keeps the memory of 1F1B: p-r warm-up forwards, and W delayed by r.
func zeroBubbleH1(q Request) (*Schedule, error) {
	return handmade(q, func(r int) (warm, delay int) { return q.Ranks - r, r }), nil
}

// zeroBubbleH2 has no bubble for F = B = W, for twice the memory: 2(p-r)-1 warm-up forwards, and W delayed by 2r.
func zeroBubbleH2(q Request) (*Schedule, error) {
	return handmade(q, func(r int) (warm, delay int) { return 2*(q.Ranks-r) - 1, 2 * r }), nil
}

// handmade runs warm forwards, then B, a W (once delay others have been skipped) and an F in turn, then the other W.
func handmade(q Request, shape func(r int) (warm, delay int)) *Schedule {
	s := empty(q, Plain, loop(q.Ranks, 1))
	return s.fill(func(r int) []Unit {
		warm, delay := shape(r)
		order := make([]Unit, 0, 3*q.Micros)
		var next [4]int
		put := func(pass Pass) {
			if next[pass] < q.Micros {
				order = append(order, Unit{Pass: pass, Stage: r, Micro: next[pass]})
				next[pass]++
			}
		}
		for range min(warm, q.Micros) {
			put(F)
		}
		for j := range q.Micros {
			put(Bx)
			if j >= delay {
				put(W)
			}
			put(F)
		}
		for next[W] < q.Micros {
			put(W)
		}
		return order
	})
}
