package lower

import (
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// instance identifies one copy of a per-token value.
type instance struct{ value, micro, copy, run int }

// instances holds the buffers of a value's instances. Lookups mostly hit one of the
// last entries.
type instances []struct {
	instance
	buf int
}

func (list instances) find(key instance) (buf int, ok bool) {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].instance == key {
			return list[i].buf, true
		}
	}
	return 0, false
}

// activations allocates a device buffer for every instance of a forward value and of
// its gradient. Their lifetimes follow from the instructions that read them.
func (lo *lowering) activations() error {
	made := make([]instances, len(lo.g.Values))
	for _, kind := range []graph.ValueKind{graph.Forwarded, graph.Gradient} {
		class := program.ClassActivations
		if kind == graph.Gradient {
			class = program.ClassActGrads
		}
		lo.resolve(kind, func(u *unit, r ref) program.Region {
			v := &lo.g.Values[r.value]
			key := instance{r.value, r.micro, r.copy, r.run}
			buf, ok := made[r.value].find(key)
			if !ok {
				rows := lo.rows()
				if v.Chunked {
					rows = r.rows
					made[r.value] = made[r.value][:0] // a chunk is dead when the next one starts, and there may be thousands
				}
				buf = lo.buffer(program.Buffer{
					Name: instanceName(v.Name, key), Tier: device.DeviceTier, Class: class, DType: v.DType,
					Rows: rows, Cols: v.Cols, RowUnit: lo.p.RowUnit, Cuts: v.Cuts,
				})
				if v.Chunked && len(v.Cuts) > 0 { // logits: nothing touches the padding of the last row
					lo.p.Buffers[buf].Size -= int64(v.Cols-v.Cuts[0]) * v.DType.Size()
				}
				made[r.value] = append(made[r.value], struct {
					instance
					buf int
				}{key, buf})
			}
			return subRegion(lo.p, buf, r)
		})
	}
	return nil
}

func instanceName(name string, k instance) string {
	name += "." + strconv.Itoa(k.micro)
	if k.copy > 0 {
		name += "'" + strconv.Itoa(k.copy)
	}
	if k.run > 0 {
		name += "@" + strconv.Itoa(k.run)
	}
	return name
}

// sub returns the part of a matrix buffer that r refers to.
func subRegion(p *program.Program, buf int, r ref) program.Region {
	cols := p.Buffers[buf].Cols
	return program.Region{Buf: buf, Off: r.row*cols + r.lo, Rows: r.rows, Cols: r.hi - r.lo, Stride: cols}
}

// inputs copies tokens, targets and scalars to the device where they are used. It
// declares the buffers that the run fills before each step.
func (lo *lowering) inputs() error {
	g, p := lo.g, lo.p
	host := func(name string, dt graph.DType, rows, cols, unit int) int {
		return lo.buffer(program.Buffer{Name: name, Tier: device.HostTier, Class: program.ClassInputs, DType: dt, Rows: rows, Cols: cols,
			RowUnit: unit, Persistent: true, Init: []string{name}})
	}
	all := lo.rows() * lo.pl.MicroBatches
	batch := map[int]int{} // rows of this rank's sequences that its segments read
	lo.resolve(graph.Input, func(_ *unit, r ref) program.Region {
		if _, ok := batch[r.value]; !ok {
			batch[r.value] = host("batch."+g.Values[r.value].Name, g.Values[r.value].DType, all, 1, p.RowUnit)
		}
		return program.Region{}
	})
	scalars := g.Scalars
	if g.Pos >= 0 {
		scalars = g.Pos
	}
	v := &g.Values[scalars]
	lo.scalars = [device.NumTiers]int{-1, host(v.Name, v.DType, v.Rows, v.Cols, 0), -1}
	onDevice := lo.buffer(program.Buffer{Name: v.Name + ".dev", Tier: device.DeviceTier, Class: program.ClassInputs, DType: v.DType, Rows: v.Rows, Cols: v.Cols})
	lo.scalars[device.DeviceTier] = onDevice
	first := &lo.units[0]
	first.before = append(first.before, copyOp(device.HostToDev, program.NoKey, p.Whole(onDevice), p.Whole(lo.scalars[device.HostTier])))

	made := map[instance]int{}
	lo.resolve(graph.Input, func(u *unit, r ref) program.Region {
		key := instance{value: r.value, micro: r.micro}
		buf, ok := made[key]
		if !ok {
			v := &g.Values[r.value]
			buf = lo.buffer(program.Buffer{Name: instanceName(v.Name, key), Tier: device.DeviceTier, Class: program.ClassInputs, DType: v.DType,
				Rows: lo.rows(), Cols: 1, RowUnit: p.RowUnit})
			made[key] = buf
			src := program.Region{Buf: batch[r.value], Off: r.micro * lo.rows(), Rows: lo.rows(), Cols: 1, Stride: 1}
			u.before = append(u.before, copyOp(device.HostToDev, program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1}, p.Whole(buf), src))
		}
		return subRegion(p, buf, r)
	})
	lo.resolve(graph.Scalars, func(*unit, ref) program.Region { return p.Whole(onDevice) })
	lo.kept(graph.Constant, program.ClassInputs)
	lo.kept(graph.Cache, program.ClassActivations)
	lo.lossTotal()
	return nil
}

// kept allocates flat buffers, whatever the extents, for the values of one kind that
// stay on the device between steps.
func (lo *lowering) kept(kind graph.ValueKind, class program.Class) {
	made := map[int]int{}
	lo.resolve(kind, func(_ *unit, r ref) program.Region {
		v := &lo.g.Values[r.value]
		buf, ok := made[r.value]
		if !ok {
			buf = lo.buffer(program.Buffer{Name: v.Name, Tier: device.DeviceTier, Class: class, DType: v.DType, Rows: 1, Cols: v.Rows * v.Cols,
				Persistent: true, Init: []string{v.Name}})
			made[r.value] = buf
		}
		return program.Region{Buf: buf, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
	})
}

// lossTotal allocates the buffer in which the loss is summed over all micro-batches.
func (lo *lowering) lossTotal() {
	lo.total = -1
	if !slices.ContainsFunc(lo.units, func(u unit) bool { return u.forward && u.segment == lo.g.Head() }) || lo.g.Total < 0 {
		return
	}
	lo.total = lo.buffer(program.Buffer{Name: "loss.total.dev", Tier: device.DeviceTier, Class: program.ClassReductions, DType: graph.F64, Rows: 1, Cols: 1})
	begun := false
	lo.resolve(graph.Total, func(*unit, ref) program.Region { return lo.p.Whole(lo.total) })
	for i := range lo.units {
		for j := range lo.units[i].work {
			if in := &lo.units[i].work[j].in; in.Op == graph.LossSum {
				in.Attr.Acc = begun
				begun = true
			}
		}
	}
}

// results copies the loss to the host, and the logits if the mode asks for them.
func (lo *lowering) results() error {
	p := lo.p
	if lo.total >= 0 {
		last := &lo.units[len(lo.units)-1]
		loss := lo.buffer(program.Buffer{Name: "loss.total", Tier: device.HostTier, Class: program.ClassReductions, DType: graph.F64, Rows: 1, Cols: 1,
			Persistent: true, Init: []string{"loss.total.before"}})
		last.after = append(last.after, copyOp(device.DevToHost, program.NoKey, p.Whole(loss), p.Whole(lo.total)))
	}
	if lo.g.Logits >= 0 && (lo.opt.Mode == Logits || lo.opt.Mode == Decode) {
		lo.rowsToHost(lo.g.Logits, graph.Linear, 0, lo.g.Model.Vocab)
	}
	if lo.total >= 0 && lo.g.Ratios >= 0 {
		lo.rowsToHost(lo.g.Ratios, graph.Preference, 1, 1)
	}
	return nil
}

// rowsToHost copies the first cols columns of a value, which operator maker writes as its operand k, to the host as
// soon as they are computed: those of the logits by row chunks.
func (lo *lowering) rowsToHost(value int, maker graph.Op, k, cols int) {
	v := &lo.g.Values[value]
	out := lo.buffer(program.Buffer{Name: v.Name, Tier: device.HostTier, Class: program.ClassReductions, DType: v.DType,
		Rows: lo.rows() * lo.pl.MicroBatches, Cols: cols, RowUnit: lo.p.RowUnit, Persistent: true, Init: []string{v.Name + ".before"}})
	for i := range lo.units {
		u := &lo.units[i]
		row := u.micro*lo.rows() + u.row
		var work []op
		for _, o := range u.work {
			work = append(work, o)
			if o.in.Op != maker || o.refs[k].value != value {
				continue
			}
			src := o.in.Args[k]
			dst := program.Region{Buf: out, Off: row * src.Cols, Rows: src.Rows, Cols: src.Cols, Stride: src.Cols}
			row += src.Rows
			work = append(work, copyOp(device.DevToHost, o.in.Key, dst, src))
		}
		u.work = work
	}
}
