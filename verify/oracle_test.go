package verify

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// The oracle against which Verify and Equivalent are tested: it runs a program
// on memory, with addresses, in random orders that streams and waits allow, and
// looks at what is left. It knows nothing of atoms, clocks, buffers' lifetimes or names
// of content.
// Elements are 64-bit fingerprints; an operator mixes those that it depends on,
// element by element and row by row, in place of arithmetic.

// machine is the memory of a rank, one fingerprint per two bytes. Unordered, it
// adds up sums instead of mixing terms in their order.
type machine struct {
	p         *program.Program
	mem       [device.NumTiers][]uint64
	unordered bool
}

// join continues a sum.
func (m *machine) join(sum, term uint64) uint64 {
	if m.unordered {
		return sum + term
	}
	return mix(sum, term)
}

func mix(a, b uint64) uint64 {
	a = (a ^ b*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return a ^ a>>29 ^ b>>3
}

func mixString(a uint64, s string) uint64 {
	for _, c := range []byte(s) {
		a = mix(a, uint64(c))
	}
	return a
}

func (m *machine) load(o device.Operand, r, c int) uint64 {
	return m.mem[o.Tier][(o.Addr+int64(r*o.Stride+c)*o.DType.Size())/2]
}

func (m *machine) store(o device.Operand, r, c int, v uint64) {
	at := (o.Addr + int64(r*o.Stride+c)*o.DType.Size()) / 2
	for k := range o.DType.Size() / 2 {
		m.mem[o.Tier][at+k] = v + uint64(k)
	}
}

// boot fills memory with garbage, and persistent buffers as the run does before the
// first step: state by homes, everything else by name.
func boot(p *program.Program, rng *rand.Rand) *machine {
	m := &machine{p: p}
	for t := range m.mem {
		m.mem[t] = make([]uint64, p.Height[t]/2+8)
		for i := range m.mem[t] {
			m.mem[t][i] = rng.Uint64()
		}
	}
	named := map[string]int{}
	for i := range p.Buffers {
		named[p.Buffers[i].Name] = i
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if !b.Persistent || named[b.Name] != i {
			continue
		}
		o, row := p.Operand(p.BufferRegion(i)), func(r int) int { return r }
		if strings.HasPrefix(b.Name, "batch.") {
			row = p.GlobalRow
		}
		m.each(o, func(r, c int) { m.store(o, r, c, element(b.Name, row(r), c)) })
	}
	for _, h := range p.Homes {
		o, kind := p.Operand(h.Region), strings.TrimSuffix(h.Kind.String(), "16")
		if kind == "rest" {
			kind = "p"
		}
		m.each(o, func(r, c int) {
			v := element(fmt.Sprint(kind, h.Param), 0, h.At+r*o.Cols+c)
			switch o.DType {
			case graph.BF16:
				v = castElement(o.DType, v)
			case graph.U16:
				v ^= lowerMark
			}
			m.store(o, r, c, v)
		})
	}
	return m
}

func element(name string, r, c int) uint64 { return mix(mix(mixString(1, name), uint64(r)), uint64(c)) }

func castElement(t graph.DType, v uint64) uint64 { return mix(v, 1000+uint64(t)) }

// lowerMark marks the fingerprints of lower halves.
const lowerMark = 0x510e527fade682d1

func bit(on bool) int {
	if on {
		return 1
	}
	return 0
}

// step runs the program once in a random order that is allowed.
func (m *machine) step(rng *rand.Rand) {
	var queue [device.NumStreams][]int
	for i := range m.p.Instrs {
		s := m.p.Instrs[i].Stream
		queue[s] = append(queue[s], i)
	}
	done := make([]bool, len(m.p.Instrs))
	for range m.p.Instrs {
	draw:
		for {
			s := rng.IntN(len(queue))
			if len(queue[s]) == 0 {
				continue
			}
			for _, w := range m.p.Instrs[queue[s][0]].Waits {
				if !done[w] {
					continue draw
				}
			}
			m.exec(queue[s][0])
			done[queue[s][0]] = true
			queue[s] = queue[s][1:]
			break
		}
	}
}

// exec runs one instruction.
func (m *machine) exec(i int) {
	in := &m.p.Instrs[i]
	args := make([]device.Operand, len(in.Args))
	for j, r := range in.Args {
		args[j] = m.p.Operand(r)
	}
	a := in.Attr
	a.Acc, a.Row0 = false, 0
	rule := optimizer.Updating(in.Op)
	chance := rule != nil && byChance(m.p, in, rule)
	if chance {
		a.First = 0
	}
	if m.unordered && in.Op == graph.ExpertDW { // how many tokens are padded together is a matter of order
		a.Seq = 0
	}
	op := mixString(uint64(in.Op), fmt.Sprintf("%+v", a))
	switch in.Op {
	case graph.Copy, graph.Cast, graph.Add:
		dst, src := args[graph.CopyDst], args[graph.CopySrc] // or y and x of Add
		m.each(dst, func(r, c int) {
			v := m.load(src, r, c)
			switch in.Op {
			case graph.Cast:
				v = castElement(dst.DType, v)
			case graph.Add:
				v = m.join(m.load(dst, r, c), v)
			}
			m.store(dst, r, c, v)
		})
		return
	case graph.NormPart:
		sums := make([]uint64, args[graph.NormPartPart].Cols)
		m.each(args[graph.NormPartGrad], func(r, c int) {
			k := (r*args[graph.NormPartGrad].Cols + c) / graph.NormPiece
			sums[k] = mix(sums[k], m.load(args[graph.NormPartGrad], r, c))
		})
		for k, v := range sums {
			m.store(args[graph.NormPartPart], 0, k, v)
		}
		return
	}
	switch {
	case rule != nil && rule.Elementwise:
		m.update(rule, in, args, op, chance)
	case attends(in.Op):
		m.attention(in, args)
	default:
		m.generic(in, args, op)
	}
}

// update makes an optimizer's update, element by element.
func (m *machine) update(rule *optimizer.Rule, in *program.Instr, args []device.Operand, op uint64, chance bool) {
	for _, j := range []int{rule.ClipAt(), rule.ScalarsAt()} {
		if args[j].Rows > 0 {
			op = m.row(op, args[j], 0)
		}
	}
	p16, rest := rule.HalfWeightsAt(), rule.LowerHalvesAt()
	m.each(args[0], func(r, c int) {
		v := op
		if chance {
			v = mix(v, uint64(in.Attr.First+r*args[0].Cols+c))
		}
		halves := len(args) > rest && args[rest].Rows > 0
		for j := range rule.ClipAt() {
			now := m.load(args[j], r, c)
			if whole := m.load(args[rest*bit(halves)], r, c) ^ lowerMark; j == 0 && halves {
				if now = mix(now, whole); castElement(graph.BF16, whole) == m.load(args[0], r, c) {
					now = whole
				}
			}
			v = mix(v, now)
		}
		for j := range rule.State() {
			m.store(args[j], r, c, mix(v, uint64(j)))
		}
		if halves {
			m.store(args[0], r, c, castElement(graph.BF16, mix(v, 0)))
			m.store(args[rest], r, c, mix(v, 0)^lowerMark)
		}
		if len(args) > p16 && args[p16].Rows > 0 {
			m.store(args[p16], r, c, castElement(graph.BF16, mix(v, 0)))
		}
	})
}

// attention of each head by itself, with its key head: heads are independent. Gradients of keys are rounded in the end if they are bf16.
func (m *machine) attention(in *program.Instr, args []device.Operand) {
	n, keys, a := in.Attr.Heads, in.Attr.KVHeads, in.Attr
	a.Acc, a.Heads, a.KVHeads = false, 1, 1
	dkv := slices.IndexFunc(in.Op.Info().Args, func(s graph.ArgSpec) bool { return s.Name == "dkv" })
	if dkv >= 0 && !in.Attr.Acc {
		m.each(args[dkv], func(r, c int) { m.store(args[dkv], r, c, 0) })
	}
	band := func(o device.Operand, k, of int) device.Operand {
		o.Cols /= of
		o.Addr += int64(k*o.Cols) * o.DType.Size()
		return o
	}
	for k := range n {
		h := headOf{machine: m, in: in, op: mixString(uint64(in.Op), fmt.Sprintf("%+v", a))}
		for j, o := range args {
			switch name := in.Op.Info().Args[j].Name; {
			case o.Rows == 0 || name == "starts":
				h.args = append(h.args, o)
			case name == "kv":
				h.args = append(h.args, o)
				h.keys = [2]device.Operand{band(o, k*keys/n, 2*keys), band(o, keys+k*keys/n, 2*keys)}
			case name == "dkv":
				h.args = append(h.args, o)
				h.dkeys = [2]device.Operand{band(o, k*keys/n, 2*keys), band(o, keys+k*keys/n, 2*keys)}
			default:
				h.args = append(h.args, band(o, k, n))
			}
		}
		h.attend()
	}
	if dkv >= 0 && args[dkv].DType == graph.BF16 {
		m.each(args[dkv], func(r, c int) { m.store(args[dkv], r, c, castElement(graph.BF16, m.load(args[dkv], r, c))) })
	}
}

// headOf is attention of one head.
type headOf struct {
	*machine
	in          *program.Instr
	op          uint64
	args        []device.Operand
	keys, dkeys [2]device.Operand // keys and values, and their gradients
}

// attend row by row: a query depends on the keys of its sequence up to its own position, and contributes to the sums of their gradients.
func (m *headOf) attend() {
	back, in, args, op := m.in.Op == graph.AttentionBwd, m.in, m.args, m.op
	q := args[graph.AttentionQ]
	reads, writes, starts := []int{graph.AttentionQ}, []int{graph.AttentionO, graph.AttentionLSE}, graph.AttentionStarts
	if back {
		q = args[graph.AttentionBwdQ]
		reads = []int{graph.AttentionBwdDO, graph.AttentionBwdQ, graph.AttentionBwdO, graph.AttentionBwdLSE}
		writes, starts = []int{graph.AttentionBwdDQ, graph.AttentionBwdDelta}, graph.AttentionBwdStarts
	}
	if len(args) > starts && args[starts].Rows > 0 {
		reads = append(reads, starts)
	}
	if !back && len(args) > graph.AttentionSinks {
		op = m.row(op, args[graph.AttentionSinks], 0)
	}
	for n := q.Rows - 1; n >= 0; n-- {
		at := m.keys[0].Rows - q.Rows + n
		own := mix(op, uint64(at%in.Attr.Seq))
		for _, j := range reads {
			own = m.row(mix(own, uint64(j)), args[j], n)
		}
		v := own
		for r := at - at%in.Attr.Seq; r <= at; r++ {
			v = m.row(m.row(v, m.keys[0], r), m.keys[1], r)
			for half, d := range m.dkeys {
				for c := range d.Cols {
					term := m.row(m.row(mix(own, uint64(half<<20+c)), m.keys[0], r), m.keys[1], r)
					m.store(d, r, c, m.join(m.load(d, r, c), term))
				}
			}
		}
		for _, j := range writes {
			for c := range args[j].Cols {
				m.store(args[j], n, c, mix(v, uint64(j<<20+c)))
			}
		}
	}
}

func (m *machine) each(o device.Operand, f func(r, c int)) {
	for r := range o.Rows {
		for c := range o.Cols {
			f(r, c)
		}
	}
}

func (m *machine) row(v uint64, o device.Operand, r int) uint64 {
	for c := range o.Cols {
		v = mix(v, m.load(o, r, c))
	}
	return v
}

// generic operators differ only in which rows depend on which.
func (m *machine) generic(in *program.Instr, args []device.Operand, op uint64) {
	specs := in.Op.Info().Args
	reads := func(j int) bool {
		return specs[j].Access == graph.Read || specs[j].Access == graph.Update || specs[j].Access == graph.Sum && in.Attr.Acc && !m.unordered
	}
	sums := in.Op.Info().Kind == graph.TokenSum
	together := []int{1}
	switch half := len(args) > 2 && args[1].DType == graph.BF16 && args[2].DType == graph.BF16; {
	case in.Op == graph.LinearDW && half && !m.unordered:
		together = []int{2, max(in.Attr.Cut, 2)} // on different processors
	case in.Op == graph.ExpertDW && half && !m.unordered, in.Op == graph.RouteBwd, in.Op == graph.Preference:
		together = []int{in.Attr.Seq}
	}
	rows := 0
	for j, o := range args {
		if in.Op == graph.NormAll && j == 1 && m.unordered {
			m.each(o, func(r, c int) { op += mix(9, m.load(o, r, c)) })
		} else if specs[j].Token {
			rows = max(rows, o.Rows)
		} else if reads(j) && !(sums && specs[j].Access == graph.Sum) {
			for r := range o.Rows {
				op = m.row(mix(op, uint64(j)), o, r)
			}
		}
	}
	if sums && !in.Attr.Acc {
		for j, o := range args {
			if writesArg(in, j) {
				m.each(o, func(r, c int) { m.store(o, r, c, 0) })
			}
		}
	}
	for row := range max(rows, 1) {
		v := op
		switch in.Op {
		case graph.RoPE, graph.Embed, graph.PosBwd:
			v = mix(v, uint64((in.Attr.Row0+row)%in.Attr.Seq))
		}
		for j, o := range args {
			if specs[j].Token && reads(j) {
				v = m.row(mix(v, uint64(j)), o, row)
				for _, n := range together {
					first := row - row%n
					for mate := first; mate < min(first+n, rows); mate++ {
						if mate != row {
							v = m.row(mix(v, 1000), o, mate)
						}
					}
				}
			}
		}
		for j, o := range args {
			switch {
			case !writesArg(in, j) || o.Rows == 0:
			case specs[j].Token:
				for c := range o.Cols {
					term := mix(v, uint64(j<<20+c))
					if m.unordered && specs[j].Access == graph.Sum && in.Attr.Acc {
						term += m.load(o, row, c)
					}
					m.store(o, row, c, term)
				}
			default: // sums over tokens, and results of all operands
				m.each(o, func(r, c int) {
					old := uint64(0)
					if sums {
						old = m.load(o, r, c)
					}
					m.store(o, r, c, m.join(old, mix(v, uint64(j<<20+r*o.Cols+c))))
				})
			}
		}
	}
}

// outputs are the names of a step's results besides what is in homes.
func outputs(ps ...*program.Program) map[string]bool {
	list := map[string]bool{}
	for _, p := range ps {
		for i := range p.Buffers {
			if b := &p.Buffers[i]; b.Persistent && b.Class == program.ClassReductions {
				list[b.Name] = true
			}
		}
	}
	return list
}

// results are the fingerprints of every home and of the step's other results.
func (m *machine) results(outputs map[string]bool) map[string]uint64 {
	out := map[string]uint64{}
	take := func(key string, r program.Region) {
		o := m.p.Operand(r)
		m.each(o, func(i, c int) { out[key] = mix(out[key], m.load(o, i, c)) })
	}
	for _, h := range m.p.Homes {
		if !h.Replica {
			take(fmt.Sprint(h.Param, h.Kind), h.Region)
		}
	}
	for i := range m.p.Buffers {
		if b := &m.p.Buffers[i]; outputs[b.Name] {
			take(b.Name, m.p.BufferRegion(i))
		}
	}
	return out
}

// behaviour is what some steps in random orders leave behind: in homes, and in the
// buffers named by outputs.
func behaviour(p *program.Program, outputs map[string]bool, rng *rand.Rand) map[string]uint64 {
	m := boot(p, rng)
	all := map[string]uint64{}
	for step := range 2 {
		m.step(rng)
		for k, v := range m.results(outputs) {
			all[fmt.Sprint(step, " ", k)] = v
		}
	}
	return all
}

// hazard returns why a program may not run, or "".
func hazard(p *program.Program) string {
	for t, c := range p.Capacity {
		for i := range p.Buffers {
			if b := &p.Buffers[i]; int(b.Tier) == t && b.Addr+b.Size > c {
				return "outside of the capacity"
			}
		}
	}
	for i := range p.Instrs {
		var after []bool
		for j := i + 1; j < len(p.Instrs); j++ {
			if !clash(p, i, j) {
				continue
			}
			if after == nil {
				after = reachable(p, i)
			}
			if !after[j] {
				return fmt.Sprintf("race between\n%s\n%s\n", p.Line(i), p.Line(j))
			}
		}
	}
	return ""
}

// harmless returns why a program is not as good as a reference, or "".
func harmless(p, reference *program.Program, rng *rand.Rand) string {
	if why := hazard(p); why != "" {
		return why
	}
	names := outputs(reference)
	want := behaviour(reference, names, rng)
	for range 3 {
		have := behaviour(p, names, rng)
		for k := range want {
			if have[k] != want[k] {
				return "other result: " + k
			}
		}
	}
	return ""
}

// TestOracle: the oracle itself must find the small programs equal, and notice
// what is wrong with plainly broken ones.
func TestOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	list := smallPrograms()
	for i, p := range list {
		if why := harmless(p, list[0], rng); why != "" {
			t.Errorf("variant %+v: %s", smallVariants[i], why)
		}
	}
	p := smallProgram(smallOptions{micro: 2, offload: true})
	for i := range p.Instrs {
		p.Instrs[i].Waits = nil
	}
	if harmless(p, list[0], rng) == "" {
		t.Error("a program without waits passes")
	}
	p = smallProgram(smallOptions{micro: 2})
	p.Instrs = p.Instrs[1:]
	if harmless(p, list[0], rng) == "" {
		t.Error("a program without its first instruction passes")
	}
	names := outputs(list[0])
	if a, b := behaviour(list[0], names, rng), behaviour(list[0], names, rng); !maps.Equal(a, b) {
		t.Error("a program's results depend on the order")
	}
}
