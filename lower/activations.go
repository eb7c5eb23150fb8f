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

// bufferActivations allocates a device buffer for every instance of a forward value and of
// its gradient. Their lifetimes follow from the instructions that read them.
func bufferActivations(b *builder, args *operands) {
	st := b.st
	b.p.Buffers = slices.Grow(b.p.Buffers, args.written(graph.Forwarded)+args.written(graph.Gradient))
	made := make([]instances, len(st.g.Values))
	for _, kind := range []graph.ValueKind{graph.Forwarded, graph.Gradient} {
		class := program.ClassActivations
		if kind == graph.Gradient {
			class = program.ClassActGrads
		}
		resolve(args[kind], func(r ref) program.Region {
			v := &st.g.Values[r.value]
			key := instance{r.value, r.micro, r.copy, r.run}
			buf, ok := made[r.value].find(key)
			if !ok {
				rows := st.rows()
				switch {
				case r.tile:
					rows = st.pl.FeedRows
				case v.Chunked:
					rows = r.rows
					made[r.value] = made[r.value][:0] // a chunk is dead when the next one starts, and there may be thousands
				}
				buf = b.buffer(program.Buffer{
					Name: instanceName(v.Name, key), Tier: device.DeviceTier, Class: class, DType: v.DType,
					Rows: rows, Cols: v.Cols, RowUnit: b.p.RowUnit, Cuts: st.cuts[r.value],
				})
				if v.Chunked && len(v.Cuts) > 0 { // logits: nothing touches the padding of the last row
					b.p.Buffers[buf].Size -= int64(v.Cols-v.Cuts[0]) * v.DType.Size()
				}
				made[r.value] = append(made[r.value], struct {
					instance
					buf int
				}{key, buf})
			}
			return subRegion(b.p, buf, r)
		})
	}
}

// instanceName names the buffer of an instance.
func instanceName(name string, k instance) string {
	text := append(append(make([]byte, 0, 64), name...), '.')
	text = strconv.AppendInt(text, int64(k.micro), 10)
	if k.copy > 0 {
		text = strconv.AppendInt(append(text, '\''), int64(k.copy), 10)
	}
	if k.run > 0 {
		text = strconv.AppendInt(append(text, '@'), int64(k.run), 10)
	}
	return string(text)
}
