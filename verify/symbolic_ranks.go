package verify

import "github.com/athanor-llm/athanor/graph"

// executions holds the symbolic executions of ranks that run together.
type executions struct {
	*ranks
	on []*execution // by rank
}

func (rs *ranks) executions(unordered bool) *executions {
	xs := &executions{ranks: rs}
	for r, p := range rs.ps {
		xs.on = append(xs.on, newExecution(p, rs.layouts[r], unordered))
	}
	return xs
}

// run executes all instructions.
func (xs *executions) run() error {
	for i := range xs.events {
		if err := xs.event(&xs.events[i]); err != nil {
			return err
		}
	}
	return nil
}

func (xs *executions) event(e *event) error {
	if e.meeting < 0 {
		return xs.of(int(e.rank), xs.on[e.rank].instr(int(e.instr)))
	}
	list := xs.meetings[e.meeting].members
	switch xs.instr(e.place).Op {
	case graph.AllGather:
		return xs.gather(list)
	case graph.ReduceScatter:
		return xs.scatter(list)
	case graph.AllReduce:
		return xs.allReduce(list)
	case graph.AllToAll:
		return xs.cross(list)
	}
	return xs.message(list[0], list[1])
}

// box returns operand j of an instruction, without atoms if it is absent.
func (xs *executions) box(at place, j int) box {
	if args := xs.layouts[at.rank].operands(int(at.instr)); j < len(args) {
		return args[j]
	}
	return box{}
}

// unread returns the error for reading what was never written.
func (xs *executions) unread(at place, j int) error {
	p := xs.ps[at.rank]
	return xs.of(int(at.rank), operandFault(p, int(at.instr), j, "an earlier instruction must write it", "is read before it is written"))
}

func (xs *executions) message(from, to place) error {
	if !xs.on[to.rank].take(xs.box(to, 0), xs.on[from.rank], xs.box(from, 0)) {
		return xs.unread(from, 0)
	}
	return nil
}

// gather: every member's source goes to its place in every member's destination. A
// source that is already there is copied onto itself.
func (xs *executions) gather(list []place) error {
	for _, to := range list {
		dst := xs.box(to, 0)
		for _, from := range list {
			src := xs.box(from, 1)
			if src.blocks == 0 {
				continue
			}
			if !xs.on[to.rank].take(box{dst.atom, dst.step, 1, src.bands}, xs.on[from.rank], src) {
				return xs.unread(from, 1)
			}
			dst.atom += src.bands
		}
	}
	return nil
}

// scatter: every member gets its part of the sum of all sources. A destination may be its
// own place in the source, which no other member's part reads.
func (xs *executions) scatter(list []place) error {
	var first int32 // offset of the part, in atoms from the start of the source
	for _, to := range list {
		x, dst := xs.on[to.rank], xs.box(to, 0)
		for k := range dst.bands {
			sum, err := xs.sum(list, 1, 0, first+k)
			if err != nil {
				return err
			}
			a := &x.atoms[dst.at(0, k)]
			switch {
			case !xs.instr(to).Attr.Acc || sum == Value{}:
				*a = sum
			case *a == Value{}:
				return xs.unread(to, 0)
			case x.unordered:
				*a = a.plus(sum)
			default:
				*a = seedOp.hashInts(int(graph.ReduceScatter), 0).hashWith(*a).hashWith(sum)
			}
		}
		first += dst.bands
	}
	return nil
}

func (xs *executions) allReduce(list []place) error {
	all := xs.box(list[0], 0)
	for b := range all.blocks {
		for k := range all.bands {
			sum, err := xs.sum(list, 0, b, k)
			if err != nil {
				return err
			}
			for _, at := range list {
				xs.on[at.rank].atoms[xs.box(at, 0).at(b, k)] = sum
			}
		}
	}
	return nil
}

// sum returns the sum of band k of block b of operand j over all members, in group order. Padding
// that no member has written stays undefined.
func (xs *executions) sum(list []place, j int, b, k int32) (Value, error) {
	value := func(at place) Value { return xs.on[at.rank].atoms[xs.box(at, j).at(b, k)] }
	v := value(list[0])
	for n, at := range list[1:] {
		w := value(at)
		switch {
		case v == Value{} && w == Value{}:
			continue
		case w == Value{}:
			return v, xs.unread(at, j)
		case v == Value{}:
			return v, xs.unread(list[0], j)
		default:
			v = addRank(v, w, n+1, xs.on[at.rank].unordered)
		}
	}
	return v, nil
}

// addRank continues a sum over n ranks with the next rank's value.
func addRank(sum, v Value, n int, unordered bool) Value {
	switch {
	case unordered:
		return sum.plus(v)
	case n == 1:
		sum = seedOp.hashInts(int(graph.AllReduce), 0).hashWith(sum)
	}
	return sum.hashWith(v)
}
