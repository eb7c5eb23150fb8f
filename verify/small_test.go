package verify

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Programs made by hand, without the lowering: two linear layers with an
// activation between them and a loss, on eight tokens. Addresses and waits are
// found by brute force, in code that shares nothing with the product's.

type smallOptions struct {
	micro     int  // micro-batches
	recompute bool // the activation is recomputed for the backward pass
	offload   bool // weights and their state on the host
}

var smallVariants = []smallOptions{
	{micro: 1}, {micro: 2}, {micro: 4, recompute: true}, {micro: 1, offload: true}, {micro: 2, recompute: true, offload: true},
}

func smallPrograms() (list []*program.Program) {
	for _, o := range smallVariants {
		list = append(list, smallProgram(o))
	}
	return list
}

type smallBuilder struct {
	*program.Program
	smallOptions
}

const smallTokens, smallUnit = 8, 2

func (s *smallBuilder) matrix(name string, class program.Class, dt graph.DType, rows, cols int) int {
	s.Buffers = append(s.Buffers, program.Buffer{Name: name, Tier: device.DeviceTier, Class: class, DType: dt, Rows: rows, Cols: cols,
		RowUnit: smallUnit, Size: int64(rows*cols) * dt.Size(), Align: 16, Addr: -1})
	return len(s.Buffers) - 1
}

func (s *smallBuilder) flat(name string, tier device.Tier, class program.Class, dt graph.DType, cols int, cuts []int, init ...string) int {
	s.Buffers = append(s.Buffers, program.Buffer{Name: name, Tier: tier, Class: class, DType: dt, Rows: 1, Cols: cols, Cuts: cuts,
		Size: int64(cols) * dt.Size(), Align: 16, Addr: -1, Persistent: len(init) > 0, Init: init})
	return len(s.Buffers) - 1
}

func (s *smallBuilder) op(stream device.Stream, op graph.Op, attr graph.Attr, args ...program.Region) {
	s.Instrs = append(s.Instrs, program.Instr{Op: op, Attr: attr, Stream: stream, Args: args, Key: program.NoKey})
}

func (s *smallBuilder) copy(stream device.Stream, dst, src program.Region) {
	s.op(stream, graph.Copy, graph.Attr{}, dst, src)
}

func (s *smallBuilder) rows(buf, row, n int) program.Region {
	c := s.Buffers[buf].Cols
	return program.Region{Buf: buf, Off: row * c, Rows: n, Cols: c, Stride: c}
}

// smallWeights are the two matrices: extents, and offsets in a chunk of 64.
var smallWeights = []struct{ rows, cols, off int }{{4, 6, 0}, {6, 5, 24}}

var smallCuts = []int{24, 54}

func weightIn(buf, k int) program.Region {
	w := smallWeights[k]
	return program.Region{Buf: buf, Off: w.off, Rows: w.rows, Cols: w.cols, Stride: w.cols}
}

func smallProgram(o smallOptions) *program.Program {
	s := &smallBuilder{Program: &program.Program{Name: "small", RowUnit: smallUnit}, smallOptions: o}
	home := device.DeviceTier
	if o.offload {
		home = device.HostTier
	}
	x := s.matrix("x", program.ClassInputs, graph.F32, smallTokens, 4)
	y := s.matrix("targets", program.ClassInputs, graph.I32, smallTokens, 1)
	for _, b := range []int{x, y} {
		s.Buffers[b].Persistent, s.Buffers[b].Init = true, []string{s.Buffers[b].Name}
	}
	scalars := s.flat("scalars", device.DeviceTier, program.ClassInputs, graph.F32, graph.NumScalars, nil, "scalars")
	total := s.flat("loss", device.DeviceTier, program.ClassReductions, graph.F64, 1, nil, "loss.before")
	w := s.flat("w", home, program.ClassWeights, graph.F32, 64, smallCuts, "p:w1", "p:w2", "")
	m := s.flat("m", home, program.ClassState, graph.F32, 64, smallCuts, "m:w1", "m:w2", "")
	v := s.flat("v", home, program.ClassState, graph.F32, 64, smallCuts, "v:w1", "v:w2", "")
	dw := s.flat("dw", device.DeviceTier, program.ClassGrads, graph.F32, 64, smallCuts)
	for k := range smallWeights {
		for i, r := range []program.Region{weightIn(w, k), weightIn(m, k), weightIn(v, k)} {
			s.Homes = append(s.Homes, program.Home{Param: k, Kind: optimizer.AdamW.Rule().State()[i], Region: r})
		}
	}
	for i := range o.micro {
		s.microBatch(i, x, y, scalars, total, w, dw)
	}
	s.optimizer(scalars, w, m, v, dw)
	placeByForce(s.Program)
	waitByForce(s.Program)
	return s.Program
}

// weight returns matrix k on the device, fetched if it lives on the host.
func (s *smallBuilder) weight(w, k int) program.Region {
	if !s.offload {
		return weightIn(w, k)
	}
	n := smallWeights[k].rows * smallWeights[k].cols
	slot := s.flat("slot"+string(rune('a'+len(s.Buffers))), device.DeviceTier, program.ClassWeights, graph.F32, n, nil)
	r := weightIn(slot, k)
	r.Off = 0
	s.copy(device.HostToDev, r, weightIn(w, k))
	return r
}

func (s *smallBuilder) microBatch(i, x, y, scalars, total, w, dw int) {
	n, c := smallTokens/s.micro, device.Compute
	mat := func(name string, cols int) int {
		return s.matrix(name+string(rune('0'+i)), program.ClassActivations, graph.F32, n, cols)
	}
	xs, ys := s.rows(x, i*n, n), s.rows(y, i*n, n)
	h, a, z, l, da := mat("h", 6), mat("a", 6), mat("z", 5), mat("l", 1), mat("da", 6)
	acc := graph.Attr{Acc: i > 0}
	gelu := graph.Attr{Act: model.GELUErf}
	s.op(c, graph.Linear, graph.Attr{}, s.BufferRegion(h), xs, s.weight(w, 0), program.Region{}, program.Region{})
	s.op(c, graph.Act, gelu, s.BufferRegion(a), s.BufferRegion(h))
	s.op(c, graph.Linear, graph.Attr{}, s.BufferRegion(z), s.BufferRegion(a), s.weight(w, 1), program.Region{}, program.Region{})
	s.op(c, graph.CrossEntropy, graph.Attr{Grad: true}, s.BufferRegion(l), s.BufferRegion(z), ys, s.BufferRegion(scalars))
	s.op(c, graph.LossSum, acc, s.BufferRegion(total), s.BufferRegion(l))
	if s.recompute {
		a = mat("a'", 6)
		s.op(c, graph.Act, gelu, s.BufferRegion(a), s.BufferRegion(h))
	}
	s.op(c, graph.LinearDW, acc, weightIn(dw, 1), s.BufferRegion(a), s.BufferRegion(z))
	s.op(c, graph.LinearDX, graph.Attr{}, s.BufferRegion(da), s.BufferRegion(z), s.weight(w, 1))
	s.op(c, graph.ActBwd, gelu, s.BufferRegion(da), s.BufferRegion(da), s.BufferRegion(h))
	s.op(c, graph.LinearDW, acc, weightIn(dw, 0), xs, s.BufferRegion(da))
}

func (s *smallBuilder) optimizer(scalars, w, m, v, dw int) {
	tier, stream := device.DeviceTier, device.Compute
	if s.offload {
		tier, stream = device.HostTier, device.HostCompute
		host := s.flat("dw.host", tier, program.ClassGrads, graph.F32, 64, smallCuts)
		for k := range smallWeights {
			s.copy(device.DevToHost, weightIn(host, k), weightIn(dw, k))
		}
		sc := s.flat("scalars.host", tier, program.ClassInputs, graph.F32, graph.NumScalars, nil)
		s.copy(device.DevToHost, s.BufferRegion(sc), s.BufferRegion(scalars))
		dw, scalars = host, sc
	}
	parts := s.flat("parts", tier, program.ClassReductions, graph.F64, 2, []int{1})
	clip := s.flat("clip", tier, program.ClassReductions, graph.F32, 2, nil)
	for k := range smallWeights {
		s.op(stream, graph.NormPart, graph.Attr{}, program.Region{Buf: parts, Off: k, Rows: 1, Cols: 1, Stride: 1}, weightIn(dw, k))
	}
	s.op(stream, graph.NormAll, graph.Attr{Clip: 1}, s.BufferRegion(clip), s.BufferRegion(parts), s.BufferRegion(scalars))
	for k := range smallWeights {
		s.op(stream, graph.AdamW, graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1},
			weightIn(w, k), weightIn(m, k), weightIn(v, k), weightIn(dw, k), s.BufferRegion(clip), s.BufferRegion(scalars))
	}
}

// placeByForce puts every buffer at the lowest address that is free throughout its life.
func placeByForce(p *program.Program) {
	live := p.Lifetimes()
	order := make([]int, len(p.Buffers))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.Buffers[b].Size, p.Buffers[a].Size) })
	var done []int
	for _, i := range order {
		b := &p.Buffers[i]
		b.Addr = 0
		for again := true; again; {
			again = false
			for _, j := range done {
				o := &p.Buffers[j]
				if o.Tier == b.Tier && live[i][0] < live[j][1] && live[j][0] < live[i][1] && b.Addr < o.Addr+o.Size && o.Addr < b.Addr+b.Size {
					b.Addr = (o.Addr + o.Size + b.Align - 1) / b.Align * b.Align
					again = true
				}
			}
		}
		done = append(done, i)
		p.Height[b.Tier] = max(p.Height[b.Tier], b.Addr+b.Size)
	}
	p.Capacity = p.Height
}

// waitByForce adds the waits that are needed: for every instruction, backwards
// over all before it.
func waitByForce(p *program.Program) {
	for i := range p.Instrs {
		for j := i - 1; j >= 0; j-- {
			if clash(p, j, i) && !reachable(p, j)[i] {
				p.Instrs[i].Waits = append(p.Instrs[i].Waits, j)
			}
		}
	}
}

// reachable reports which instructions are certain to run after i has.
func reachable(p *program.Program, i int) []bool {
	after := make([]bool, len(p.Instrs))
	for k := i + 1; k < len(p.Instrs); k++ {
		in := &p.Instrs[k]
		for j := i; j < k && !after[k]; j++ {
			if j == i || after[j] {
				after[k] = p.Instrs[j].Stream == in.Stream || slices.Contains(in.Waits, j)
			}
		}
	}
	return after
}

// clash reports whether two instructions touch a common byte and one writes it.
func clash(p *program.Program, i, j int) bool {
	for a, r := range p.Instrs[i].Args {
		for b, s := range p.Instrs[j].Args {
			if (writesArg(&p.Instrs[i], a) || writesArg(&p.Instrs[j], b)) && commonByte(p.Operand(r), p.Operand(s)) {
				return true
			}
		}
	}
	return false
}

func writesArg(in *program.Instr, j int) bool {
	return in.Op.Info().Args[j].Access != graph.Read && (in.Op != graph.CrossEntropy || j == 0 || in.Attr.Grad)
}

func commonByte(a, b device.Operand) bool {
	if a.Rows == 0 || b.Rows == 0 || a.Tier != b.Tier {
		return false
	}
	rows := func(o device.Operand) (width, step int64) {
		return int64(o.Cols) * o.DType.Size(), int64(o.Stride) * o.DType.Size()
	}
	aw, as := rows(a)
	bw, bs := rows(b)
	if a.Addr+int64(a.Rows-1)*as+aw <= b.Addr || b.Addr+int64(b.Rows-1)*bs+bw <= a.Addr {
		return false
	}
	for i := range int64(a.Rows) {
		for j := range int64(b.Rows) {
			if x, y := a.Addr+i*as, b.Addr+j*bs; x < y+bw && y < x+aw {
				return true
			}
		}
	}
	return false
}
