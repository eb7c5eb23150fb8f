package lower

import (
	"fmt"
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
			batch[value] = host("batch."+g.Values[value].Name, g.Values[value].DType, all, g.Values[value].Cols, p.RowUnit)
		}
	}
	in := bufferScalars(b, units, args[graph.Scalars], host)

	made := map[instance]int{}
	for _, a := range args[graph.Input] {
		u, r := &units[a.unit], a.ref()
		if a.op.in.Stream == device.HostCompute {
			n := g.Values[r.value].Cols
			a.resolve(program.Region{Buf: batch[r.value], Off: (r.micro*st.rows() + r.row) * n, Rows: r.rows, Cols: n, Stride: n})
			continue
		}
		key := instance{value: r.value, micro: r.micro}
		buf, ok := made[key]
		if !ok {
			v := &g.Values[r.value]
			buf = b.buffer(program.Buffer{Name: instanceName(v.Name, key), Tier: device.DeviceTier, Class: program.ClassInputs, DType: v.DType,
				Rows: st.rows(), Cols: v.Cols, RowUnit: p.RowUnit})
			made[key] = buf
			src := program.Region{Buf: batch[r.value], Off: r.micro * st.rows() * v.Cols, Rows: st.rows(), Cols: v.Cols, Stride: v.Cols}
			u.before = append(u.before, copyOp(device.HostToDev, program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1}, p.BufferRegion(buf), src))
		}
		a.resolve(subRegion(p, buf, r))
	}
	bufferConstants(b, args[graph.Constant])
	bufferCaches(b, units, args[graph.Cache])
	in.loss = bufferLoss(b, units, args[graph.Total])
	return in
}

// bufferScalars declares the buffer of the step's scalars, or those of each micro-batch's positions, and copies them to the device.
// Operators of the host read them there.
func bufferScalars(b *builder, units []unit, args []operand, host func(name string, dt graph.DType, rows, cols, unit int) int) stepInputs {
	st, p := b.st, b.p
	scalars, each := st.g.Scalars, 1
	if st.g.Pos >= 0 {
		scalars, each = st.g.Pos, st.pl.MicroBatches
	}
	v, first := &st.g.Values[scalars], &units[0]
	var at [device.NumTiers][]int // by tier and micro-batch
	for micro := range each {
		name := numbered(v.Name, micro)
		at[device.HostTier] = append(at[device.HostTier], host(name, v.DType, 1, v.Rows*v.Cols, 0))
		near := b.buffer(program.Buffer{Name: name + ".dev", Tier: device.DeviceTier, Class: program.ClassInputs, DType: v.DType, Rows: 1, Cols: v.Rows * v.Cols})
		at[device.DeviceTier] = append(at[device.DeviceTier], near)
		first.before = append(first.before, copyOp(device.HostToDev, program.NoKey, p.BufferRegion(near), p.BufferRegion(at[device.HostTier][micro])))
	}
	for _, a := range args {
		tier, micro := device.DeviceTier, 0
		if a.op.in.Stream == device.HostCompute {
			tier = device.HostTier
		}
		if each > 1 {
			micro = a.ref().micro
		}
		a.resolve(program.Region{Buf: at[tier][micro], Rows: v.Rows, Cols: v.Cols, Stride: v.Cols})
	}
	return stepInputs{scalars: [device.NumTiers]int{at[device.DeviceTier][0], at[device.HostTier][0], -1}}
}

// numbered names what a micro-batch or a batch has of its own: the first has the name itself.
func numbered(name string, n int) string {
	if n == 0 {
		return name
	}
	return fmt.Sprintf("%s.%d", name, n)
}

// bufferConstants allocates flat buffers, whatever the extents, for tables that
// stay on the device between steps.
func bufferConstants(b *builder, args []operand) {
	made := map[int]int{}
	resolve(args, func(r ref) program.Region {
		v := &b.st.g.Values[r.value]
		buf, ok := made[r.value]
		if !ok {
			buf = b.buffer(program.Buffer{Name: v.Name, Tier: device.DeviceTier, Class: program.ClassInputs, DType: v.DType, Rows: 1, Cols: v.Rows * v.Cols,
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
