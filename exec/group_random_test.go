package exec_test

import (
	"math/rand/v2"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Random programs of several ranks. They are written in one order of events,
// each an instruction of one rank or a call in which several meet, so they never
// hang, and executing the events in this order on plain slices defines what they
// mean.

// world is programs of all ranks and what they do.
type world struct {
	programs []*program.Program
	events   []happening
	tag      int
}

// happening is an instruction of one rank, or those of all that meet.
type happening struct{ rank, instr []int }

func randomWorld(r *rand.Rand, ranks, events int) *world {
	w := &world{}
	for k := range ranks {
		p := randomBuffers(r)
		p.Rank = k
		w.programs = append(w.programs, p)
	}
	for range events {
		switch k := r.IntN(10); {
		case k < 4:
			rank := r.IntN(ranks)
			w.happen([]int{rank}, []program.Instr{randomInstr(r, w.programs[rank])})
		case k < 7:
			w.collective(r)
		case ranks > 1:
			w.messages(r)
		}
	}
	return w
}

// happen gives each rank its instruction.
func (w *world) happen(ranks []int, instrs []program.Instr) {
	h := happening{rank: ranks}
	for k, rank := range ranks {
		p := w.programs[rank]
		p.Instrs = append(p.Instrs, instrs[k])
		addWaits(p, len(p.Instrs)-1)
		h.instr = append(h.instr, len(p.Instrs)-1)
	}
	w.events = append(w.events, h)
}

// buffers picks two different buffers of a rank's device tier, the first there.
func (w *world) buffers(r *rand.Rand, rank int) (a, b int) {
	n := 0
	for w.programs[rank].Buffers[n].Tier == device.DeviceTier {
		n++
	}
	a = r.IntN(n)
	return a, (a + 1 + r.IntN(n-1)) % n
}

func flat(buf, off, n int) program.Region {
	if n == 0 {
		return program.Region{}
	}
	return program.Region{Buf: buf, Off: off, Rows: 1, Cols: n, Stride: n}
}

func between(op graph.Op, s device.Stream, peers []int, tag int, args ...program.Region) program.Instr {
	return program.Instr{Op: op, Stream: s, Peers: peers, Tag: tag, Args: args, Key: program.Key{Segment: -1, Micro: -1, Chunk: -1}}
}

func (w *world) collective(r *rand.Rand) {
	var peers []int
	for k := range w.programs {
		if r.IntN(4) > 0 {
			peers = append(peers, k)
		}
	}
	if len(peers) == 0 {
		peers = []int{r.IntN(len(w.programs))}
	}
	if r.IntN(4) == 0 {
		w.cross(r, peers)
		return
	}
	parts, total := make([]int, len(peers)), 0
	for k := range parts {
		if r.IntN(3) > 0 {
			parts[k] = r.IntN(elems / len(peers))
		}
		total += parts[k]
	}
	if total == 0 {
		parts[0], total = 7, 7
	}
	op := []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce}[r.IntN(3)]
	var instrs []program.Instr
	at := 0
	for k, rank := range peers {
		a, b := w.buffers(r, rank)
		off := r.IntN(elems - total + 1)
		whole, part := flat(a, off, total), flat(b, r.IntN(elems-parts[k]+1), parts[k])
		acc := r.IntN(2) == 0
		if parts[k] > 0 && r.IntN(2) == 0 && !acc {
			part = flat(a, off+at, parts[k])
		}
		in := between(op, device.Collective, peers, 0)
		switch op {
		case graph.AllGather:
			in.Args = []program.Region{whole, part}
		case graph.ReduceScatter:
			in.Attr.Acc = acc
			in.Args = []program.Region{part, whole}
		default:
			in.Args = []program.Region{whole}
		}
		instrs = append(instrs, in)
		at += parts[k]
	}
	w.happen(peers, instrs)
}

// cross exchanges rows for columns, or the other way around.
func (w *world) cross(r *rand.Rand, peers []int) {
	n := len(peers)
	chunk := 1 + r.IntN(3)
	cols := 1 + r.IntN(elems/(2*n*chunk)/2)
	back, groups := r.IntN(2) == 0, n
	if !back && n%2 == 0 && r.IntN(2) == 0 {
		groups = n / 2 // two members take the same columns
	}
	var instrs []program.Instr
	for _, rank := range peers {
		a, b := w.buffers(r, rank)
		columns, rows := program.Region{Buf: a, Rows: 2 * n * chunk, Cols: cols, Stride: cols + r.IntN(cols+1)}, program.Region{Buf: b, Rows: 2 * chunk, Cols: groups * cols, Stride: groups*cols + r.IntN(cols+1)}
		in := between(graph.AllToAll, device.Collective, peers, 0, columns, rows)
		if back {
			in.Args = []program.Region{rows, columns}
		}
		instrs = append(instrs, in)
	}
	w.happen(peers, instrs)
}

// interpretCross does it element by element. Row x of the first half of member k's is in chunk k, one of the second half in the k-th from
// the end.
func interpretCross(ins []*program.Instr, at func(k, arg int) []float32, set func(k int, values []float32)) {
	n, dst, src := len(ins), ins[0].Args[0], ins[0].Args[1]
	back := dst.Rows != n*src.Rows
	chunk, cols := min(dst.Rows, src.Rows)/2, min(dst.Cols, src.Cols)
	var from, to [][]float32
	for k := range ins {
		from, to = append(from, at(k, 1)), append(to, at(k, 0))
	}
	for k := range n {
		for x := range 2 * chunk {
			whole := []int{k*chunk + x, (2*n-1-k)*chunk + x - chunk}[x/chunk]
			for i := range n {
				groups := max(dst.Cols, src.Cols) / cols
				rows, columns := (x*groups+i/(n/groups))*cols, whole*cols
				if back {
					copy(to[k][rows:rows+cols], from[i][columns:])
				} else {
					copy(to[i][columns:columns+cols], from[k][rows:])
				}
			}
		}
	}
	for k := range ins {
		set(k, to[k])
	}
}

// messages go one way, or both ways at once, where each end may list its send
// and its receive in either order.
func (w *world) messages(r *rand.Rand) {
	x := r.IntN(len(w.programs))
	y := (x + 1 + r.IntN(len(w.programs)-1)) % len(w.programs)
	rows := 1 + r.IntN(8)
	cols := 1 + r.IntN(elems/rows)
	matrix := func(buf int) program.Region {
		return program.Region{Buf: buf, Rows: rows, Cols: cols, Stride: cols + r.IntN(elems/rows-cols+1)}
	}
	xs, xr := w.buffers(r, x)
	ys, yr := w.buffers(r, y)
	w.tag += 2
	there := func() {
		w.happen([]int{x, y}, []program.Instr{
			between(graph.Send, device.Send, []int{y}, w.tag, matrix(xs)),
			between(graph.Recv, device.Recv, []int{x}, w.tag, matrix(yr))})
	}
	back := func() {
		w.happen([]int{y, x}, []program.Instr{
			between(graph.Send, device.Send, []int{x}, w.tag+1, matrix(ys)),
			between(graph.Recv, device.Recv, []int{y}, w.tag+1, matrix(xr))})
	}
	there()
	if r.IntN(2) == 0 {
		return
	}
	back()
	for _, rank := range []int{x, y} {
		if r.IntN(2) == 0 {
			w.swapLast(rank)
		}
	}
}

// swapLast swaps a rank's last two instructions, which are an exchange.
func (w *world) swapLast(rank int) {
	p := w.programs[rank]
	n := len(p.Instrs)
	p.Instrs[n-1], p.Instrs[n-2] = p.Instrs[n-2], p.Instrs[n-1]
	for k := range 2 {
		p.Instrs[n-2+k].Waits = nil
	}
	addWaits(p, n-2)
	addWaits(p, n-1)
	for _, h := range w.events[len(w.events)-2:] {
		for k := range h.rank {
			if h.rank[k] == rank {
				h.instr[k] = 2*n - 3 - h.instr[k]
			}
		}
	}
}

// interpret runs one step on plain slices, by rank and buffer.
func (w *world) interpret(memory [][][]float32) {
	for _, h := range w.events {
		var ins []*program.Instr
		for k, rank := range h.rank {
			ins = append(ins, &w.programs[rank].Instrs[h.instr[k]])
		}
		at := func(k, arg int) []float32 { // a copy of an operand
			var list []float32
			for _, i := range elements(ins[k].Args[arg]) {
				list = append(list, memory[h.rank[k]][ins[k].Args[arg].Buf][i])
			}
			return list
		}
		set := func(k int, values []float32) {
			for j, i := range elements(ins[k].Args[0]) {
				memory[h.rank[k]][ins[k].Args[0].Buf][i] = values[j]
			}
		}
		switch ins[0].Op {
		case graph.Send:
			set(1, at(0, 0))
		case graph.AllGather:
			var all []float32
			for k := range ins {
				all = append(all, at(k, 1)...)
			}
			for k := range ins {
				set(k, all)
			}
		case graph.ReduceScatter, graph.AllReduce:
			interpretSum(ins, at, set)
		case graph.AllToAll:
			interpretCross(ins, at, set)
		default:
			interpretOne(ins[0], memory[h.rank[0]])
		}
	}
}

func interpretSum(ins []*program.Instr, at func(k, arg int) []float32, set func(k int, values []float32)) {
	last := len(ins[0].Args) - 1
	sum := at(0, last)
	for k := 1; k < len(ins); k++ {
		for i, x := range at(k, last) {
			sum[i] += x
		}
	}
	for k, in := range ins {
		part := sum
		if in.Op == graph.ReduceScatter {
			part, sum = sum[:in.Args[0].Cols], sum[in.Args[0].Cols:]
		}
		if in.Attr.Acc {
			old := at(k, 0)
			for i := range old {
				old[i] += part[i]
			}
			part = old
		}
		set(k, part)
	}
}
