package verify

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
)

// mutation changes a program and says how, or "" if there is nothing to change.
type mutation struct {
	name  string
	apply func(m *mutator) string
}

// mutator is a program under mutation with helpers that draw a part of it.
type mutator struct {
	*program.Program
	*rand.Rand
}

func (m *mutator) instr() (int, *program.Instr) {
	i := m.IntN(len(m.Instrs))
	return i, &m.Instrs[i]
}

// operand draws a present operand of a random instruction.
func (m *mutator) operand() (i, j int, r *program.Region) {
	for {
		i, in := m.such(func(in *program.Instr) bool { return len(in.Args) > 0 })
		j := m.IntN(len(in.Args))
		if !in.Args[j].Absent() {
			return i, j, &in.Args[j]
		}
	}
}

// such draws an instruction of some kind, nil if there seems to be none.
func (m *mutator) such(kind func(in *program.Instr) bool) (int, *program.Instr) {
	for range 100 {
		if i, in := m.instr(); kind(in) {
			return i, in
		}
	}
	return -1, nil
}

// waiting draws an instruction that waits for something.
func (m *mutator) waiting() (int, *program.Instr) {
	return m.such(func(in *program.Instr) bool { return len(in.Waits) > 0 })
}

// named draws a buffer whose content has a name.
func (m *mutator) named() *program.Buffer {
	for {
		if b := &m.Buffers[m.IntN(len(m.Buffers))]; len(b.Init) > 0 {
			return b
		}
	}
}

// reorder puts instruction order[k] at place k and renumbers waits; those for
// instructions that are gone are dropped.
func (m *mutator) reorder(order []int) {
	at := map[int]int{}
	for k, i := range order {
		at[i] = k // of a duplicate, the last
	}
	next := make([]program.Instr, len(order))
	for k, i := range order {
		next[k] = m.Instrs[i]
		next[k].Args = slices.Clone(next[k].Args)
		next[k].Waits = nil
		for _, w := range m.Instrs[i].Waits {
			if to, ok := at[w]; ok {
				next[k].Waits = append(next[k].Waits, to)
			}
		}
	}
	m.Instrs = next
}

func (m *mutator) order() []int {
	list := make([]int, len(m.Instrs))
	for i := range list {
		list[i] = i
	}
	return list
}

// sibling draws another buffer of the same extents and type.
func (m *mutator) sibling(buf int) int {
	b := &m.Buffers[buf]
	for range 100 {
		k := m.IntN(len(m.Buffers))
		if o := &m.Buffers[k]; k != buf && o.Rows == b.Rows && o.Cols == b.Cols && o.DType == b.DType {
			return k
		}
	}
	return -1
}

var mutations = []mutation{
	{"drop a wait", func(m *mutator) string {
		i, in := m.waiting()
		if in == nil {
			return ""
		}
		k := m.IntN(len(in.Waits))
		w := in.Waits[k]
		in.Waits = slices.Delete(slices.Clone(in.Waits), k, k+1)
		return fmt.Sprintf("i%d no longer waits for i%d", i, w)
	}},
	{"redirect a wait", func(m *mutator) string {
		i, in := m.waiting()
		if in == nil {
			return ""
		}
		k, w := m.IntN(len(in.Waits)), m.IntN(i)
		old := in.Waits[k]
		in.Waits[k] = w
		return fmt.Sprintf("i%d waits for i%d, not i%d", i, w, old)
	}},
	{"add a wait", func(m *mutator) string {
		i, in := m.instr()
		w := m.IntN(len(m.Instrs))
		in.Waits = append(in.Waits, w)
		return fmt.Sprintf("i%d waits for i%d too", i, w)
	}},
	{"swap two addresses", func(m *mutator) string {
		a, b := m.IntN(len(m.Buffers)), m.IntN(len(m.Buffers))
		x, y := &m.Buffers[a], &m.Buffers[b]
		if x.Tier != y.Tier || x.Addr == y.Addr {
			return ""
		}
		x.Addr, y.Addr = y.Addr, x.Addr
		return fmt.Sprintf("%s and %s change places", x.Name, y.Name)
	}},
	{"shift an address", func(m *mutator) string {
		b := &m.Buffers[m.IntN(len(m.Buffers))]
		b.Addr += int64(m.IntN(9)-4) * []int64{1, 4, 16, 64, b.Align}[m.IntN(5)]
		return fmt.Sprintf("%s moves to %d", b.Name, b.Addr)
	}},
	{"swap neighbours", func(m *mutator) string {
		if len(m.Instrs) < 2 {
			return ""
		}
		i := m.IntN(len(m.Instrs) - 1)
		o := m.order()
		o[i], o[i+1] = o[i+1], o[i]
		m.reorder(o)
		return fmt.Sprintf("i%d and its successor change places", i)
	}},
	{"move an instruction", func(m *mutator) string {
		i, to := m.IntN(len(m.Instrs)), m.IntN(len(m.Instrs))
		m.reorder(slices.Insert(slices.Delete(m.order(), i, i+1), to, i))
		return fmt.Sprintf("i%d moves to %d", i, to)
	}},
	{"drop an instruction", func(m *mutator) string {
		i := m.IntN(len(m.Instrs))
		m.reorder(slices.Delete(m.order(), i, i+1))
		return fmt.Sprintf("i%d is dropped", i)
	}},
	{"repeat an instruction", func(m *mutator) string {
		i := m.IntN(len(m.Instrs))
		m.reorder(slices.Insert(m.order(), i, i))
		return fmt.Sprintf("i%d runs twice", i)
	}},
	{"another buffer", func(m *mutator) string {
		i, j, r := m.operand()
		k := m.sibling(r.Buf)
		if k < 0 {
			return ""
		}
		r.Buf = k
		return fmt.Sprintf("operand %d of i%d is %s", j, i, m.Buffers[k].Name)
	}},
	{"another offset", func(m *mutator) string {
		i, j, r := m.operand()
		b := &m.Buffers[r.Buf]
		switch {
		case len(b.Cuts) > 0 && m.IntN(2) == 0:
			r.Off = b.Cuts[m.IntN(len(b.Cuts))]
		case b.RowUnit > 0:
			r.Off = m.IntN(b.Rows/b.RowUnit) * b.RowUnit * b.Cols
		default:
			r.Off = max(0, r.Off+m.IntN(7)-3)
		}
		return fmt.Sprintf("operand %d of i%d starts at %d", j, i, r.Off)
	}},
	{"other rows", func(m *mutator) string {
		i := m.IntN(len(m.Instrs))
		in := &m.Instrs[i]
		off, d := 0, m.RowUnit*(1+m.IntN(2))
		if m.IntN(2) == 0 {
			off = d
		}
		for j := range in.Args { // of all token operands together
			if r := &in.Args[j]; !r.Absent() && m.Buffers[r.Buf].RowUnit > 0 {
				r.Rows -= d
				r.Off += off * r.Stride
			}
		}
		return fmt.Sprintf("i%d leaves out %d rows", i, d)
	}},
	{"other extents", func(m *mutator) string {
		i, j, r := m.operand()
		switch m.IntN(3) {
		case 0:
			r.Rows, r.Cols = r.Cols, r.Rows
			r.Stride = program.DefaultStride(&m.Buffers[r.Buf], r.Cols)
		case 1:
			r.Rows += m.IntN(5) - 2
		default:
			r.Stride++
		}
		return fmt.Sprintf("operand %d of i%d is %dx%d", j, i, r.Rows, r.Cols)
	}},
	{"swap operands", func(m *mutator) string {
		i, j, r := m.operand()
		k := m.IntN(len(m.Instrs[i].Args))
		s := &m.Instrs[i].Args[k]
		*r, *s = *s, *r
		return fmt.Sprintf("operands %d and %d of i%d change places", j, k, i)
	}},
	{"leave out an operand", func(m *mutator) string {
		i, j, r := m.operand()
		if in := &m.Instrs[i]; m.IntN(2) == 0 {
			in.Args = in.Args[:len(in.Args)-1]
			return fmt.Sprintf("i%d has %d operands", i, len(in.Args))
		}
		*r = program.Region{}
		return fmt.Sprintf("i%d has no operand %d", i, j)
	}},
	{"turn a copy round", func(m *mutator) string {
		i, in := m.such(func(in *program.Instr) bool { return in.Op == graph.Copy })
		if in == nil {
			return ""
		}
		back := []device.Stream{device.HostToDev: device.DevToHost, device.DevToHost: device.HostToDev, device.DiskRead: device.DiskWrite, device.DiskWrite: device.DiskRead}
		in.Args[0], in.Args[1] = in.Args[1], in.Args[0]
		if m.IntN(2) == 0 && int(in.Stream) < len(back) {
			in.Stream = back[in.Stream]
		}
		return fmt.Sprintf("i%d copies the other way", i)
	}},
	{"toggle accumulation", func(m *mutator) string {
		i, in := m.instr()
		if !slices.ContainsFunc(in.Op.Info().Args, func(a graph.ArgSpec) bool { return a.Access == graph.Sum }) {
			return ""
		}
		in.Attr.Acc = !in.Attr.Acc
		return fmt.Sprintf("acc of i%d is %v", i, in.Attr.Acc)
	}},
	{"another attribute", func(m *mutator) string {
		i, in := m.instr()
		f := graph.AttrFields[m.IntN(len(graph.AttrFields))]
		switch v := f.Ptr(&in.Attr).(type) {
		case *bool:
			if f.Name == "acc" {
				return "" // a mutation of its own
			}
			*v = !*v
		case *int:
			*v = max(0, *v+m.IntN(5)-2)
		case *float64:
			if *v == 0 {
				return ""
			}
			*v *= 1.5
		case *model.Activation:
			*v = (*v + 1) % 4
		}
		return fmt.Sprintf("%s of i%d is other", f.Name, i)
	}},
	{"another cut", func(m *mutator) string { // of one call, or of all
		i, in := m.such(func(in *program.Instr) bool { return in.Op == graph.LinearDW })
		if in == nil {
			return ""
		}
		cut, all := []int{0, 2, 3, 4, 6, 32, in.Attr.Cut + 1, 2 * in.Attr.Cut}[m.IntN(8)], m.IntN(2) == 0
		for j := range m.Instrs {
			if o := &m.Instrs[j]; j == i || all && o.Op == in.Op {
				o.Attr.Cut = cut
			}
		}
		return fmt.Sprintf("cut of i%d is %d (all: %v)", i, cut, all)
	}},
	{"move a boundary", func(m *mutator) string { // between two calls of a sum, or a new one
		i, in := m.such(func(in *program.Instr) bool { return in.Op == graph.LinearDW })
		if in == nil {
			return ""
		}
		d := m.RowUnit * (1 + m.IntN(2))
		next := slices.IndexFunc(m.Instrs[i+1:], func(o program.Instr) bool { return o.Op == in.Op && len(o.Args) == 3 && o.Args[0] == in.Args[0] }) + i + 1
		if next == i {
			m.reorder(slices.Insert(m.order(), i, i))
			in, next = &m.Instrs[i], i+1
			m.Instrs[next].Attr.Acc = true
			for _, j := range []int{1, 2} {
				r := &m.Instrs[next].Args[j]
				r.Off, r.Rows = r.Off+in.Args[j].Rows*r.Stride, 0
			}
			d = -d
		}
		for _, j := range []int{1, 2} {
			r, s := &in.Args[j], &m.Instrs[next].Args[j]
			r.Rows, s.Rows, s.Off = r.Rows+d, s.Rows-d, s.Off+d*s.Stride
		}
		return fmt.Sprintf("%d rows go from i%d to i%d", d, next, i)
	}},
	{"another stream", func(m *mutator) string {
		i, in := m.instr()
		in.Stream = device.Stream(m.IntN(int(device.NumStreams)))
		return fmt.Sprintf("i%d runs on %v", i, in.Stream)
	}},
	{"another operator", func(m *mutator) string {
		i, in := m.instr()
		in.Op = graph.Op(m.IntN(int(graph.NumOps)))
		return fmt.Sprintf("i%d is %v", i, in.Op)
	}},
	{"less memory", func(m *mutator) string {
		t := m.IntN(int(device.NumTiers))
		if m.Height[t] <= 1 {
			return ""
		}
		m.Capacity[t] = m.Height[t] - 1 - m.Int64N(m.Height[t]-1)
		if m.IntN(2) == 0 {
			m.Height[t] = m.Capacity[t]
		}
		return fmt.Sprintf("%v has %d bytes", device.Tier(t), m.Capacity[t])
	}},
	{"another home", func(m *mutator) string {
		if len(m.Homes) == 0 {
			return ""
		}
		i, j := m.IntN(len(m.Homes)), m.IntN(len(m.Homes))
		h, o := &m.Homes[i], &m.Homes[j]
		switch m.IntN(4) {
		case 0:
			h.Region, o.Region = o.Region, h.Region
		case 1:
			h.Kind, o.Kind = o.Kind, h.Kind
		case 2:
			h.Replica = !h.Replica
		default:
			m.Homes = slices.Delete(m.Homes, i, i+1)
			return fmt.Sprintf("home %d is gone", i)
		}
		return fmt.Sprintf("homes %d and %d are mixed up", i, j)
	}},
	{"another buffer property", func(m *mutator) string {
		k := m.IntN(len(m.Buffers))
		b := &m.Buffers[k]
		switch m.IntN(6) {
		case 0:
			b.DType = graph.DType(m.IntN(4))
		case 1:
			b.Persistent = !b.Persistent
		case 2:
			b.Size += int64(m.IntN(3)-1) * 16
		case 3:
			b.Tier = device.Tier(m.IntN(3))
		case 4:
			b.Rows, b.Cols = b.Cols, b.Rows
		default:
			if len(b.Cuts) == 0 {
				return ""
			}
			b.Cuts = b.Cuts[1:]
		}
		return fmt.Sprintf("buffer %d (%s) is other", k, b.Name)
	}},
	{"another content", func(m *mutator) string {
		b, o := m.named(), m.named()
		i, j := m.IntN(len(b.Init)), m.IntN(len(o.Init))
		b.Init[i], o.Init[j] = o.Init[j], b.Init[i]
		return fmt.Sprintf("contents of %s and %s change places", b.Name, o.Name)
	}},
	{"swap names", func(m *mutator) string {
		a, b := m.IntN(len(m.Buffers)), m.IntN(len(m.Buffers))
		x, y := &m.Buffers[a], &m.Buffers[b]
		if m.IntN(2) == 0 {
			x.Name = y.Name
			return fmt.Sprintf("buffer %d is called %s, like %d", a, x.Name, b)
		}
		x.Name, y.Name = y.Name, x.Name
		return fmt.Sprintf("%s and %s exchange names", x.Name, y.Name)
	}},
	{"another class", func(m *mutator) string {
		b := &m.Buffers[m.IntN(len(m.Buffers))]
		b.Class = program.Class(m.IntN(int(program.NumClasses)))
		return fmt.Sprintf("%s is %s", b.Name, b.Class)
	}},
	{"onto another buffer", func(m *mutator) string {
		a, b := m.IntN(len(m.Buffers)), m.IntN(len(m.Buffers))
		x, y := &m.Buffers[a], &m.Buffers[b]
		if a == b || x.Tier != y.Tier || y.Addr+x.Size > m.Height[x.Tier] {
			return ""
		}
		x.Addr = y.Addr
		return fmt.Sprintf("%s moves to where %s is", x.Name, y.Name)
	}},
	{"swap like operands", func(m *mutator) string {
		i, j, r := m.operand()
		for range 100 {
			if k, l, s := m.operand(); (k != i || l != j) && r.Rows == s.Rows && r.Cols == s.Cols && m.Buffers[r.Buf].Tier == m.Buffers[s.Buf].Tier {
				*r, *s = *s, *r
				return fmt.Sprintf("operand %d of i%d and %d of i%d change places", j, i, l, k)
			}
		}
		return ""
	}},
	{"another operand", func(m *mutator) string {
		i, j, r := m.operand()
		for range 100 {
			if k, l, s := m.operand(); k != i && *r != *s && r.Rows == s.Rows && r.Cols == s.Cols && m.Buffers[r.Buf].Tier == m.Buffers[s.Buf].Tier {
				*r = *s
				return fmt.Sprintf("operand %d of i%d is %d of i%d too", j, i, l, k)
			}
		}
		return ""
	}},
	{"later", func(m *mutator) string { // what it reads may be other content by then
		i, j := m.IntN(len(m.Instrs)), m.IntN(len(m.Instrs))
		if i >= j {
			return ""
		}
		m.reorder(slices.Insert(slices.Delete(m.order(), i, i+1), j, i))
		return fmt.Sprintf("i%d runs after i%d", i, j)
	}},
	{"an absurd number", (*mutator).absurd},
}

// absurd sets a random number anywhere in the program to something absurd.
func (m *mutator) absurd() string {
	v, path := reflect.ValueOf(m.Program).Elem(), "program"
	for {
		switch v.Kind() {
		case reflect.Struct:
			i := m.IntN(v.NumField())
			path += "." + v.Type().Field(i).Name
			v = v.Field(i)
		case reflect.Slice, reflect.Array:
			if v.Len() == 0 {
				return ""
			}
			i := m.IntN(v.Len())
			path += fmt.Sprintf("[%d]", i)
			v = v.Index(i)
		case reflect.Int, reflect.Int64:
			v.SetInt([]int64{-1, 0, 1, 1 << 31, 1 << 40, math.MaxInt64, math.MinInt64, -v.Int()}[m.IntN(8)])
			return fmt.Sprintf("%s is %d", path, v.Int())
		case reflect.Uint8:
			v.SetUint(uint64(m.IntN(256)))
			return fmt.Sprintf("%s is %d", path, v.Uint())
		case reflect.Float64:
			v.SetFloat([]float64{math.NaN(), math.Inf(1), -1, math.MaxFloat64}[m.IntN(4)])
			return fmt.Sprintf("%s is %g", path, v.Float())
		default:
			return ""
		}
	}
}
