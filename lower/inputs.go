package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// stepInputs are the buffers that pass inputs leaves for later passes.
type stepInputs struct {
	scalars [device.NumTiers]int // of the step's scalars, by tier, or -1
	loss    int                  // of the loss on the device, or -1
}

// bufferInputs copies tokens, targets and scalars to the device where they are used. It
// declares the buffers that the run fills before each step.
func bufferInputs(b *builder, units []unit, args *operands) stepInputs {
	st := b.st
	g, p := st.g, b.p
	host := func(name string, dt graph.DType, rows, cols, unit int) int {
		return b.buffer(program.Buffer{Name: name, Tier: device.HostTier, Class: program.ClassInputs, DType: dt, Rows: rows, Cols: cols,
			RowUnit: unit, Persistent: true, Init: []string{name}})
	}
	all := st.rows() * st.pl.MicroBatches
	batch := map[int]int{} // rows of this rank's sequences that its segments read
	for _, a := range args[graph.Input] {
		value := a.ref().value
		if _, ok := batch[value]; !ok {
			batch[value] = host("batch."+g.Values[value].Name, g.Values[value].DType, all, 1, p.RowUnit)
		}
	}
	scalars := g.Scalars
	if g.Pos >= 0 {
		scalars = g.Pos
	}
	v := &g.Values[scalars]
	in := stepInputs{scalars: [device.NumTiers]int{-1, host(v.Name, v.DType, 1, v.Rows*v.Cols, 0), -1}}
	onDevice := b.buffer(program.Buffer{Name: v.Name + ".dev", Tier: device.DeviceTier, Class: program.ClassInputs, DType: v.DType, Rows: 1, Cols: v.Rows * v.Cols})
	in.scalars[device.DeviceTier] = onDevice
	first := &units[0]
	first.before = append(first.before, copyOp(device.HostToDev, program.NoKey, p.BufferRegion(onDevice), p.BufferRegion(in.scalars[device.HostTier])))

	made := map[instance]int{}
	for _, a := range args[graph.Input] {
		u, r := &units[a.unit], a.ref()
		key := instance{value: r.value, micro: r.micro}
		buf, ok := made[key]
		if !ok {
			v := &g.Values[r.value]
			buf = b.buffer(program.Buffer{Name: instanceName(v.Name, key), Tier: device.DeviceTier, Class: program.ClassInputs, DType: v.DType,
				Rows: st.rows(), Cols: 1, RowUnit: p.RowUnit})
			made[key] = buf
			src := program.Region{Buf: batch[r.value], Off: r.micro * st.rows(), Rows: st.rows(), Cols: 1, Stride: 1}
			u.before = append(u.before, copyOp(device.HostToDev, program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1}, p.BufferRegion(buf), src))
		}
		a.resolve(subRegion(p, buf, r))
	}
	resolve(args[graph.Scalars], func(ref) program.Region {
		return program.Region{Buf: onDevice, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
	})
	bufferKept(b, args[graph.Constant], program.ClassInputs)
	bufferKept(b, args[graph.Cache], program.ClassActivations)
	in.loss = bufferLoss(b, units, args[graph.Total])
	return in
}

// bufferKept allocates flat buffers, whatever the extents, for the values of one kind that
// stay on the device between steps.
func bufferKept(b *builder, args []operand, class program.Class) {
	made := map[int]int{}
	resolve(args, func(r ref) program.Region {
		v := &b.st.g.Values[r.value]
		buf, ok := made[r.value]
		if !ok {
			buf = b.buffer(program.Buffer{Name: v.Name, Tier: device.DeviceTier, Class: class, DType: v.DType, Rows: 1, Cols: v.Rows * v.Cols,
				Persistent: true, Init: []string{v.Name}})
			made[r.value] = buf
		}
		return program.Region{Buf: buf, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
	})
}

// bufferLoss allocates the buffer in which the loss is summed over all micro-batches, if this rank computes it.
func bufferLoss(b *builder, units []unit, args []operand) int {
	st := b.st
	if !slices.ContainsFunc(units, func(u unit) bool { return u.forward && u.segment == st.g.Head() }) || st.g.Total < 0 {
		return -1
	}
	loss := b.buffer(program.Buffer{Name: "loss.total.dev", Tier: device.DeviceTier, Class: program.ClassReductions, DType: graph.F64, Rows: 1, Cols: 1})
	begun := false
	resolve(args, func(ref) program.Region { return b.p.BufferRegion(loss) })
	for i := range units {
		for _, o := range units[i].work {
			if o.in.Op == graph.LossSum {
				o.in.Attr.Acc = begun
				begun = true
			}
		}
	}
	return loss
}
