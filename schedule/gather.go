package schedule

// The parameters of a stage may be sharded over data-parallel ranks (ZeRO-3). Then they
// are gathered into one of a few buffers before the stage computes. As the order is
// known, the optimal replacement is too: evict the stage whose next use is latest (Belady
// 1966), and start the gather when the last use of the evicted stage ends.
//
// Example (two chunks, one buffer): breadth-first needs 3 gathers per step whatever m is:
// chunk 0, chunk 1 (for both its forwards and its backwards), chunk 0. Interleaved 1F1B
// alternates between chunks: for p=4 and m=32, 17 to 103 gathers per rank.

// fetch says whether a gather precedes a position of an order.
type fetch struct {
	needed bool
	after  int // position of the last use of the evicted stage; -1 if the buffer was free
}

func usesParameters(u Unit) bool { return u.Pass != W } // weight gradients need only the inputs and output gradients
func addsGradients(u Unit) bool  { return u.Pass == B || u.Pass == W }

// fetchPlan returns, for each position of order, whether its stage must be fetched into a
// buffer first. uses selects the units that need it there. Without buffers everything
// stays resident, so each stage is fetched once. An overlapped pair needs two buffers;
// Simulate refuses it with one.
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

// plan plans the gathers of all ranks, if they are modelled.
func (m *Clock) plan() {
	if m.c.Buffers == 0 || m.c.Gather == 0 {
		return
	}
	m.fetches = make([][]fetch, m.s.Ranks)
	for r, order := range m.s.Orders {
		m.fetches[r] = fetchPlan(m.s, order, m.c.Buffers, usesParameters)
	}
}

// fetch gathers what position j of rank r needs and returns when it is available, or 0 if
// it need not be gathered. A rank runs one gather at a time.
func (m *Clock) fetch(r, j int) float64 {
	if m.fetches == nil || !m.fetches[r][j].needed {
		return 0
	}
	begin := m.link[r]
	if after := m.fetches[r][j].after; after >= 0 {
		begin = max(begin, m.End[r][after])
	}
	m.link[r] = begin + m.c.Gather
	return m.link[r]
}
