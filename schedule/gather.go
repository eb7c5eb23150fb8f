package schedule

// Parameters of stages are sharded over data-parallel ranks (ZeRO-3): before a stage can compute they are gathered into
// one of a few buffers. Because the order is known, the best choice is known too: keep what is used soonest (Belady 1966),
// and start a gather as soon as the last use of the stage that it displaces is over.
//
// Example: two chunks, one buffer, breadth-first: chunk 0, chunk 1 (shared by the turn), chunk 0: 3 gathers per step,
// whatever the number of micro-batches. Interleaved 1F1B changes the chunk after every pair: 2m gathers and more.

// fetch is a gather before one position of an order.
type fetch struct {
	needed bool
	after  int // position of the last use of what the buffer held before; -1 if it held nothing
}

func usesParameters(u Unit) bool { return u.Pass != W } // weight gradients need inputs and output gradients only
func addsGradients(u Unit) bool  { return u.Pass == B || u.Pass == W }

// fetchPlan says before which positions a stage must be brought into one of the buffers. No buffers means that everything
// stays resident: one fetch per stage. Simulate has refused overlapped pairs with a single buffer.
func fetchPlan(s *Schedule, order []Unit, buffers int, uses func(Unit) bool) []fetch {
	plan := make([]fetch, len(order))
	stages := s.Stages()
	key := func(u Unit) int { return u.Dir*stages + u.Stage }
	const never = 1 << 60
	after := make([]int, len(order)) // next use of the same stage
	upcoming := map[int]int{}        // of the few stages of this rank
	for i := len(order) - 1; i >= 0; i-- {
		if uses(order[i]) {
			after[i] = never
			if next, ok := upcoming[key(order[i])]; ok {
				after[i] = next
			}
			upcoming[key(order[i])] = i
		}
	}
	type buffer struct{ key, last, next int }
	var held []buffer
	for i, u := range order {
		if !uses(u) {
			continue
		}
		slot := -1
		for b := range held {
			if held[b].key == key(u) {
				slot = b
			}
		}
		if slot < 0 {
			plan[i] = fetch{needed: true, after: -1}
			if buffers == 0 || len(held) < buffers {
				held, slot = append(held, buffer{}), len(held)
			} else {
				for b := range held {
					inUse := u.Joined && held[b].last == i-1
					if !inUse && (slot < 0 || held[b].next > held[slot].next) {
						slot = b
					}
				}
				plan[i].after = held[slot].last
			}
		}
		held[slot] = buffer{key(u), i, after[i]}
	}
	return plan
}

func count(plan []fetch) int {
	n := 0
	for _, f := range plan {
		if f.needed {
			n++
		}
	}
	return n
}

// plan prepares the gathers of all ranks, if they are modelled.
func (m *machine) plan() {
	if m.c.Buffers == 0 || m.c.Gather == 0 {
		return
	}
	m.fetches = make([][]fetch, m.s.Ranks)
	for r, order := range m.s.Orders {
		m.fetches[r] = fetchPlan(m.s, order, m.c.Buffers, usesParameters)
	}
}

// fetch gathers what position j of rank r needs and says when it is there. Gathers of a rank follow each other.
func (m *machine) fetch(r, j int) float64 {
	if m.fetches == nil || !m.fetches[r][j].needed {
		return 0
	}
	begin := m.link[r]
	if after := m.fetches[r][j].after; after >= 0 {
		begin = max(begin, m.end[r][after])
	}
	m.link[r] = begin + m.c.Gather
	return m.link[r]
}
