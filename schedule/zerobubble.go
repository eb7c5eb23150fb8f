package schedule

// The two handcrafted zero-bubble schedules (Qi et al. 2024, Zero Bubble Pipeline
// Parallelism, arXiv 2401.10241, 2.2 and 2.3).
//
// Backwards are split. The preceding stage waits only for the input gradient B; weight
// gradients W are deferred to fill gaps.
//
// Example (H1, p=2, m=3): rank 0 runs F0 F1 B0 W0 F2 B1 W1 B2 W2, rank 1 runs
// F0 B0 F1 B1 W0 F2 B2 W1 W2.
// Weakness: the schedules are made for F = B = W. For other times zb-auto and searched
// orders do better.

// zeroBubbleH1 has p-r warm-up forwards on rank r, and W lags B by r micro-batches. No rank
// holds more activations than rank 0 of 1F1B, p micro-batches.
func zeroBubbleH1(q Request) (*Schedule, error) {
	return handmade(q, func(r int) (warm, delay int) { return q.Ranks - r, r }), nil
}

// zeroBubbleH2 has 2(p-r)-1 warm-up forwards on rank r, and W lags B by 2r micro-batches.
// It has no bubble for F = B = W and m >= 2p-1, but holds up to 2p-1 micro-batches.
func zeroBubbleH2(q Request) (*Schedule, error) {
	return handmade(q, func(r int) (warm, delay int) { return 2*(q.Ranks-r) - 1, 2 * r }), nil
}

// handmade returns the schedule in which a rank runs warm forwards, then in turn a B, a W
// (from the delay-th turn on) and an F, then the remaining W.
func handmade(q Request, shape func(r int) (warm, delay int)) *Schedule {
	s := Empty(q, Plain, Loop(q.Ranks, 1))
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
