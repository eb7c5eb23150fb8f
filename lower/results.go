package lower

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
)

// returnsLogits reports whether a program's logits are results: if the mode asks for them, and of a model that chooses among labels, of which
// it is counted how many are guessed. They are so in training, too, where they are few, so that what validations take is in the plan.
func returnsLogits(st *step) bool {
	switch st.opt.Mode {
	case Logits, Decode:
		return st.g.Logits >= 0
	case Train, Update, Eval:
		return st.g.Logits >= 0 && model.Classifies(st.g.Model) && st.g.Preference() == 0
	}
	return false
}

// copyResults copies the loss to the host, what a teacher says, and the logits if they are results.
func copyResults(b *builder, units []unit, loss int) {
	st := b.st
	p := b.p
	reports := loss >= 0 && st.rank%st.g.Shared() == 0 // ranks that share matrices have the same loss
	if reports {
		last := &units[len(units)-1]
		onHost := b.buffer(program.Buffer{Name: "loss.total", Tier: device.HostTier, Class: program.ClassReductions, DType: graph.F64, Rows: 1, Cols: 1,
			Persistent: true, Init: []string{"loss.total.before"}})
		last.after = append(last.after, copyOp(device.DevToHost, program.NoKey, p.BufferRegion(onHost), p.BufferRegion(loss)))
	}
	if returnsLogits(st) {
		last := graph.Linear
		if st.g.Model.LogitCap > 0 {
			last = graph.SoftCap
		}
		for _, v := range graph.LogitValues(st.g) { // of a vocabulary in parts each by itself, as where ranks have parts
			rowsToHost(b, units, v, last, 0, graph.ColumnsOf(st.g, v))
		}
	}
	if st.g.SaidIDs >= 0 {
		rowsToHost(b, units, st.g.SaidIDs, graph.TopLogs, graph.TopLogsIds, st.g.Model.Asked.Top)
		rowsToHost(b, units, st.g.SaidLogs, graph.TopLogs, graph.TopLogsLogs, st.g.Model.Asked.Top)
	}
	if reports && st.g.Ratios >= 0 {
		maker, k := ratioMaker(st.pl)
		rowsToHost(b, units, st.g.Ratios, maker, k, 1)
	}
}

// rowsToHost copies the first cols columns of a value, which operator maker writes as its operand k, to the host as
// soon as they are computed: those of the logits by row chunks, after what an adapter adds to them.
func rowsToHost(b *builder, units []unit, value int, maker graph.Op, k, cols int) {
	st := b.st
	v := &st.g.Values[value]
	name := v.Name
	if value == st.g.Logits && cols < model.Outcomes(st.g.Model) && st.g.Shared() > 1 { // other ranks have other columns
		name = fmt.Sprintf("%s/%d", name, 1+st.rank%st.g.Shared())
	}
	rows := st.rows() // of a micro-batch
	if value == st.g.Logits && st.g.Last {
		rows = 1
	}
	out := b.buffer(program.Buffer{Name: name, Tier: device.HostTier, Class: program.ClassReductions, DType: v.DType,
		Rows: rows * st.pl.MicroBatches, Cols: cols, RowUnit: b.p.RowUnit, Persistent: true, Init: []string{name + ".before"}})
	makes := func(o *op) bool { return o.in.Op == maker && k < len(o.refs) && o.refs[k].value == value }
	for i := range units {
		u := &units[i]
		row := u.micro*rows + u.row
		var work []*op
		for j, o := range u.work {
			work = append(work, o)
			if !makes(o) {
				continue
			}
			later := u.work[j+1:]
			if next := slices.IndexFunc(later, makes); next >= 0 && later[next].in.Attr.Acc {
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
