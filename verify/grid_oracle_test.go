package verify

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// The oracle for several ranks: machines that run together, in random orders
// that streams, waits and meetings allow. The instruction at the head of a stream
// meets those at the heads of the other ranks' streams.

type cluster []*machine

func bootAll(ps []*program.Program, unordered bool, rng *rand.Rand) (cl cluster) {
	for _, p := range ps {
		m := boot(p, rng)
		m.unordered = unordered
		cl = append(cl, m)
	}
	return cl
}

// head is an instruction that comes next on its stream.
type head struct{ rank, instr int }

func (cl cluster) instr(h head) *program.Instr { return &cl[h.rank].p.Instrs[h.instr] }

// step runs all programs once; it returns why they cannot finish, or "".
func (cl cluster) step(rng *rand.Rand) string {
	queues := make([][device.NumStreams][]int, len(cl))
	done := make([][]bool, len(cl))
	left := 0
	for r, m := range cl {
		done[r] = make([]bool, len(m.p.Instrs))
		for i := range m.p.Instrs {
			s := m.p.Instrs[i].Stream
			queues[r][s] = append(queues[r][s], i)
			left++
		}
	}
	free := func(h head) bool { // it is at the head, and waits for nothing on its own rank
		q := queues[h.rank][cl.instr(h).Stream]
		return len(q) > 0 && q[0] == h.instr && !slices.ContainsFunc(cl.instr(h).Waits, func(w int) bool { return !done[h.rank][w] })
	}
	for left > 0 {
		var able [][]head
		for r := range queues {
			for _, q := range queues[r] {
				if len(q) == 0 || !free(head{r, q[0]}) {
					continue
				}
				if all := cl.meet(head{r, q[0]}, queues); all != nil && !slices.ContainsFunc(all, func(h head) bool { return !free(h) }) {
					able = append(able, all)
				}
			}
		}
		if len(able) == 0 {
			return "deadlock"
		}
		all := able[rng.IntN(len(able))]
		if why := cl.exec(all); why != "" {
			return why
		}
		for _, h := range all {
			s := cl.instr(h).Stream
			done[h.rank][h.instr] = true
			queues[h.rank][s] = queues[h.rank][s][1:]
			left--
		}
	}
	return ""
}

// meet lists the heads that an instruction meets, itself among them, or nil.
func (cl cluster) meet(h head, queues [][device.NumStreams][]int) []head {
	in := cl.instr(h)
	if !in.Op.Info().Between {
		return []head{h}
	}
	at := func(r int, s device.Stream) (head, *program.Instr) {
		if r >= len(cl) || len(queues[r][s]) == 0 {
			return head{}, nil
		}
		o := head{r, queues[r][s][0]}
		return o, cl.instr(o)
	}
	switch in.Op {
	case graph.Send:
		o, other := at(in.Peers[0], device.Recv)
		if other == nil || other.Peers[0] != h.rank || other.Tag != in.Tag {
			return nil
		}
		return []head{h, o}
	case graph.Recv:
		return nil // the sender checks
	}
	var all []head
	for _, r := range in.Peers {
		o, other := at(r, device.Collective)
		if other == nil || !slices.Equal(other.Peers, in.Peers) {
			return nil
		}
		all = append(all, o)
	}
	return all
}

// cross returns what each member of an all_to_all ends with. read returns an operand's elements, row by row.
func (cl cluster) cross(all []head, read func(h head, j int) []uint64) (results [][]uint64, fault string) {
	n, first := len(all), cl.instr(all[0])
	dst, src := first.Args[0], first.Args[1]
	for _, h := range all {
		if in := cl.instr(h); in.Args[0].Rows != dst.Rows || in.Args[0].Cols != dst.Cols || in.Args[1].Rows != src.Rows || in.Args[1].Cols != src.Cols {
			return nil, "members have parts of different extents"
		}
	}
	back := dst.Rows != n*src.Rows
	if back && (src.Rows != n*dst.Rows || dst.Cols != n*src.Cols) || !back && (src.Cols%dst.Cols != 0 || n%(src.Cols/dst.Cols) != 0) {
		return nil, "members have no equal parts"
	}
	owner := func(row, chunk int) (member, own int) { // of a row of all
		if k := row / chunk; k < n {
			return k, row % chunk
		} else {
			return 2*n - 1 - k, chunk + row%chunk
		}
	}
	for i, h := range all {
		list := read(h, 0)
		for e := range list {
			row, col := e/dst.Cols, e%dst.Cols
			if back { // member col/src.Cols has this element in the row that this rank's row is of all
				for whole := range src.Rows {
					if k, own := owner(whole, dst.Rows/2); k == i && own == row {
						list[e] = read(all[col/src.Cols], 1)[whole*src.Cols+col%src.Cols]
					}
				}
				continue
			}
			k, own := owner(row, src.Rows/2)
			together := n / (src.Cols / dst.Cols) // neighbours who take the same columns
			list[e] = read(all[k], 1)[own*src.Cols+i/together*dst.Cols+col]
		}
		results = append(results, list)
	}
	return results, ""
}

// exec runs one instruction, or those that meet.
func (cl cluster) exec(all []head) string {
	in := cl.instr(all[0])
	if !in.Op.Info().Between {
		cl[all[0].rank].exec(all[0].instr)
		return ""
	}
	read := func(h head, j int) (list []uint64) {
		if args := cl.instr(h).Args; j < len(args) {
			o := cl[h.rank].p.Operand(args[j])
			cl[h.rank].each(o, func(r, c int) { list = append(list, cl[h.rank].load(o, r, c)) })
		}
		return list
	}
	// What each member ends with, computed from memory as it was before.
	var results [][]uint64
	var whole []uint64
	for _, h := range all {
		if cl.instr(h).Op != in.Op && in.Op != graph.Send {
			return "different collectives meet"
		}
	}
	switch in.Op {
	case graph.Send:
		results = [][]uint64{nil, read(all[0], 0)}
	case graph.AllGather:
		for _, h := range all {
			whole = append(whole, read(h, 1)...)
		}
		for range all {
			results = append(results, whole)
		}
	case graph.AllToAll:
		var why string
		if results, why = cl.cross(all, read); why != "" {
			return why
		}
	default:
		src := 0
		if in.Op == graph.ReduceScatter {
			src = 1
		}
		for n, h := range all {
			list := read(h, src)
			if n > 0 && len(list) != len(whole) {
				return "sources of different lengths"
			}
			for k, v := range list {
				if n == 0 {
					whole = append(whole, v)
				} else {
					whole[k] = cl[h.rank].join(whole[k], v)
				}
			}
		}
		at := 0
		for _, h := range all {
			if in.Op == graph.AllReduce {
				results = append(results, whole)
				continue
			}
			old := read(h, 0)
			if at+len(old) > len(whole) {
				return "parts are longer than the whole"
			}
			part := slices.Clone(whole[at : at+len(old)])
			for k := range part {
				if cl.instr(h).Attr.Acc {
					part[k] = cl[h.rank].join(old[k], part[k])
				}
			}
			at += len(old)
			results = append(results, part)
		}
		if in.Op == graph.ReduceScatter && at != len(whole) {
			return "parts are shorter than the whole"
		}
	}
	for n, h := range all {
		m, k := cl[h.rank], 0
		if in.Op == graph.Send && n == 0 {
			continue
		}
		o := m.p.Operand(cl.instr(h).Args[0])
		if o.Rows*o.Cols != len(results[n]) {
			return "operands of different lengths"
		}
		m.each(o, func(r, c int) { m.store(o, r, c, results[n][k]); k++ })
	}
	return ""
}

// results are the fingerprints of each element of each home, and of the step's
// other results, over all ranks.
func (cl cluster) results(outputs map[string]bool) (map[string]uint64, string) {
	out, conflict := map[string]uint64{}, ""
	same := func(key string, v uint64) {
		if old, ok := out[key]; ok && old != v {
			conflict = "ranks differ in " + key
		}
		out[key] = v
	}
	for _, m := range cl {
		for _, h := range m.p.Homes {
			// Halves count as the number and its bf16 copy.
			o, kind, mark := m.p.Operand(h.Region), h.Kind.String(), uint64(0)
			switch {
			case kind == "rest":
				kind, mark = "p", lowerMark
			case kind == "p" && slices.ContainsFunc(m.p.Homes, func(r program.Home) bool { return r.Kind == optimizer.LowerHalves && r.Param == h.Param }):
				kind = "p16"
			}
			m.each(o, func(r, c int) {
				same(fmt.Sprint(kind, h.Param, "/", h.Slab, " ", h.At+r*o.Cols+c), m.load(o, r, c)^mark)
			})
		}
		for i := range m.p.Buffers {
			b := &m.p.Buffers[i]
			if !outputs[b.Name] {
				continue
			}
			o, own := m.p.Operand(m.p.BufferRegion(i)), rowsWritten(m.p, i)
			m.each(o, func(r, c int) {
				if !own[r] {
					return
				}
				row := r
				if b.RowUnit > 0 { // rows of the batch, of which each rank has a part
					row = m.p.GlobalRow(r)
				}
				key, v := fmt.Sprint(b.Name, " ", row, " ", c), m.load(o, r, c)
				if _, ok := out[key]; ok && b.DType == graph.F64 {
					out[key] = m.join(out[key], v)
				} else {
					same(key, v)
				}
			})
		}
	}
	return out, conflict
}

// rowsWritten reports for each row of a buffer whether some instruction writes it. The other
// rows hold what was there before.
func rowsWritten(p *program.Program, buf int) []bool {
	rows := make([]bool, p.Buffers[buf].Rows)
	for i := range p.Instrs {
		for j, a := range p.Instrs[i].Args {
			if _, writes := accessOf(&p.Instrs[i], j); writes && !a.Absent() && a.Buf == buf {
				for r := range a.Rows {
					rows[a.Off/p.Buffers[buf].Cols+r] = true
				}
			}
		}
	}
	return rows
}

// behaviourOf is what some steps in random orders leave behind.
func behaviourOf(ps []*program.Program, outputs map[string]bool, unordered bool, rng *rand.Rand) (map[string]uint64, string) {
	cl := bootAll(ps, unordered, rng)
	all := map[string]uint64{}
	for step := range 2 {
		if why := cl.step(rng); why != "" {
			return nil, why
		}
		list, why := cl.results(outputs)
		if why != "" {
			return nil, why
		}
		for k, v := range list {
			all[fmt.Sprint(step, " ", k)] = v
		}
	}
	return all, ""
}

// harmlessAll returns why programs are not as good as a reference, or "".
func harmlessAll(ps, reference []*program.Program, eq Equality, rng *rand.Rand) string {
	for _, p := range ps {
		if why := hazard(p); why != "" {
			return why
		}
	}
	names := outputs(reference...)
	want, why := behaviourOf(reference, names, eq == Reordered, rng)
	if why != "" {
		return "reference: " + why
	}
	for range 3 {
		have, why := behaviourOf(ps, names, eq == Reordered, rng)
		if why != "" {
			return why
		}
		for k := range want {
			if have[k] != want[k] {
				return "other result: " + k
			}
		}
	}
	return ""
}

// TestGridOracle: the oracle itself finds the grids equal, and notices what is
// plainly wrong.
func TestGridOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	reference := gridPrograms(gridVariants[0])
	for _, o := range gridVariants {
		ps := gridPrograms(o)
		eq := Exact
		if o.replicas > 1 {
			eq = Reordered
			if harmlessAll(ps, reference, Exact, rng) == "" {
				t.Errorf("%+v: the same bits, though sums are over ranks", o)
			}
		}
		if why := harmlessAll(ps, reference, eq, rng); why != "" {
			t.Errorf("%+v: %s", o, why)
		}
		for r := range ps {
			for i := range ps[r].Instrs {
				q := gridPrograms(o)
				if q[r].Instrs[i].Waits == nil {
					continue
				}
				for k := range q[r].Instrs {
					q[r].Instrs[k].Waits = nil
				}
				if harmlessAll(q, reference, eq, rng) == "" {
					t.Errorf("%+v: rank %d passes without waits", o, r)
				}
				break
			}
		}
	}
	tight := gridPrograms(gridOptions{1, 2, 4, "", true})
	if why := harmlessAll(tight, reference, Exact, rng); why != "deadlock" {
		t.Errorf("messages that wait for each other's memory: %q", why)
	}
}
