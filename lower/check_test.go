package lower

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
	"github.com/athanor-llm/athanor/verify"
)

// What can be checked after each pass, so that a wrong pass is named. Until the optimizer's pass the units are not yet a
// program: their operators are run in order on what is known of their operands, and must read only what was written.
// From then on they are completed in the plainest way, see completed, and verified.

// resolvedBy says after which pass the operands that are values of a kind are regions of buffers.
var resolvedBy = map[graph.ValueKind]string{
	graph.Forwarded: "activations", graph.Gradient: "activations",
	graph.Input: "inputs", graph.Scalars: "inputs", graph.Constant: "inputs", graph.Cache: "inputs", graph.Total: "inputs",
	graph.ParamValue: "weights", graph.ParamGrad: "gradients",
}

// passNumber returns the position of a pass in the table.
func passNumber(name string) int {
	return slices.IndexFunc(passes, func(p pass) bool { return p.name == name })
}

// checkAfter checks what a pass left in the lowerings of all ranks.
func checkAfter(name string, ranks []*lowering) error {
	at := passNumber(name)
	var checks []func(*lowering) error
	switch name {
	case "order":
		checks = append(checks, checkUnits)
	case "compute", "recompute", "share", "swap":
		checks = append(checks, func(lo *lowering) error { return checkValues(lo, name != "swap") })
	case "activations", "inputs", "weights", "gradients":
		checks = append(checks, func(lo *lowering) error { return checkRegions(lo, at) }, func(lo *lowering) error { return checkBuffers(lo, at) })
	case "optimizer":
		checks = append(checks, checkUpdates)
	case "results":
		checks = append(checks, checkResults)
	}
	for _, lo := range ranks {
		for _, check := range checks {
			if err := check(lo); err != nil {
				return fmt.Errorf("rank %d: %w", lo.step.rank, err)
			}
		}
	}
	if at < passNumber("optimizer") {
		return nil
	}
	var list []*program.Program
	for _, lo := range ranks {
		list = append(list, completed(lo, at))
	}
	return verify.Verify(list...)
}

// checkUnits: every row of every micro-batch passes once through each segment that this rank has, in each direction, and
// forward before it goes back.
func checkUnits(lo *lowering) error {
	st := lo.step
	type key struct{ segment, micro int }
	forward, backward, weights := map[key]int{}, map[key]int{}, map[key]int{}
	for _, u := range lo.units {
		if u.segment < 0 {
			continue // of the optimizer
		}
		k := key{u.segment, u.micro}
		if u.forward {
			forward[k] += u.rows
		}
		if !u.backward {
			continue
		}
		if u.half != schedule.W {
			backward[k] += u.rows
			if u.segment != st.g.Head() && u.row+u.rows > forward[k] {
				return fmt.Errorf("segment %d, micro-batch %d goes back before it went forward", u.segment, u.micro)
			}
		}
		if u.half != schedule.Bx || u.forward {
			weights[k] += u.rows
		}
	}
	for s := range st.g.Segments {
		for m := range st.pl.MicroBatches {
			place := 0
			if sc := st.top.Schedule; sc != nil {
				place = sc.Home[m%sc.Directions()][st.top.Stage(s)]
			}
			here, k := place == st.top.Place(st.rank), key{s, m}
			for _, way := range []struct {
				name string
				rows int
				want bool
			}{{"forward", forward[k], here}, {"back", backward[k], here && st.goesBack(s)}, {"back to its weights", weights[k], here && st.goesBack(s)}} {
				want := 0
				if way.want {
					want = st.rows()
				}
				if way.rows != want {
					return fmt.Errorf("%d rows of segment %d, micro-batch %d go %s, want %d", way.rows, s, m, way.name, want)
				}
			}
		}
	}
	return nil
}

// readsWrites says what an instruction does with operand k.
func readsWrites(in *program.Instr, k int) (reads, writes bool) {
	switch in.Op.Info().Args[k].Access {
	case graph.Read:
		return true, false
	case graph.Write:
		return false, true
	case graph.Sum:
		return in.Attr.Acc, true
	}
	return true, true
}

// eachOp visits the ops of all units in order, until one has a fault.
func eachOp(units []unit, visit func(u *unit, o *op) error) error {
	for i := range units {
		u := &units[i]
		for _, list := range [][]*op{u.before, u.work, u.after} {
			for _, o := range list {
				if err := visit(u, o); err != nil {
					return fmt.Errorf("%v in unit %d (segment %d, micro-batch %d): %w", o.in.Op, i, u.segment, u.micro, err)
				}
			}
		}
	}
	return nil
}

// eachAccess visits the operands that an instruction reads, and then those that it writes.
func eachAccess(in *program.Instr, visit func(k int, writes bool) error) error {
	for _, writing := range []bool{false, true} {
		for k := range in.Args {
			if reads, writes := readsWrites(in, k); writing && !writes || !writing && !reads {
				continue
			}
			if err := visit(k, writing); err != nil {
				return err
			}
		}
	}
	return nil
}

// elements says which elements of a matrix are known.
type elements []bool

// access makes a region known, or checks that it is.
func (known elements) access(r program.Region, writes bool) error {
	for row := range r.Rows {
		for e := r.Off + row*r.Stride; e < r.Off+row*r.Stride+r.Cols; e++ {
			if !writes && !known[e] {
				return fmt.Errorf("element %d is read before it is written", e)
			}
			known[e] = true
		}
	}
	return nil
}

// checkValues runs the units on values of the graph: an operator reads only elements that were computed, by whoever
// made this instance. Before pass swap, what it will bring back counts as there.
func checkValues(lo *lowering, beforeSwap bool) error {
	st := lo.step
	known := map[instance]elements{}
	return eachOp(lo.units, func(u *unit, o *op) error {
		return eachAccess(&o.in, func(k int, writes bool) error {
			if k >= len(o.refs) || o.refs[k].value < 0 {
				return nil
			}
			r := o.refs[k]
			v := &st.g.Values[r.value]
			if v.Kind != graph.Forwarded && v.Kind != graph.Gradient {
				return nil
			}
			if beforeSwap && !writes && r.copy == 1 && u.hasRetention() && v.Kind == graph.Forwarded {
				if f := lo.retention.fate(u.segment, r.value); f.Swapped() {
					back := min(max(st.waitingRows(f)-r.row, 0), r.rows)
					r.row, r.rows = r.row+back, r.rows-back
				}
			}
			key := instance{r.value, r.micro, r.copy, r.run}
			if known[key] == nil {
				known[key] = make(elements, max(st.rows(), r.row+r.rows)*v.Cols)
			}
			err := known[key].access(program.Region{Off: r.row*v.Cols + r.lo, Rows: r.rows, Cols: r.hi - r.lo, Stride: v.Cols}, writes)
			if err != nil {
				return fmt.Errorf("%s: %w", instanceName(v.Name, key), err)
			}
			return nil
		})
	})
}

// checkBuffers runs the units on buffers, as far as operands are resolved: an instruction reads only elements that were
// written before, or persist.
func checkBuffers(lo *lowering, at int) error {
	p := lo.builder.p
	known := make([]elements, len(p.Buffers))
	return eachOp(lo.units, func(_ *unit, o *op) error {
		return eachAccess(&o.in, func(k int, writes bool) error {
			r := o.in.Args[k]
			if !isResolved(lo, o, k, at) || r.Absent() || p.Buffers[r.Buf].Persistent {
				return nil
			}
			b := &p.Buffers[r.Buf]
			if known[r.Buf] == nil {
				known[r.Buf] = make(elements, b.Rows*b.Cols)
			}
			if err := known[r.Buf].access(r, writes); err != nil {
				return fmt.Errorf("%s: %w", b.Name, err)
			}
			return nil
		})
	})
}

// isResolved reports whether operand k is a region by now.
func isResolved(lo *lowering, o *op, k, at int) bool {
	return k >= len(o.refs) || o.refs[k].value < 0 || at >= passNumber(resolvedBy[lo.step.g.Values[o.refs[k].value].Kind])
}

// checkRegions: operands that are resolved by now are inside their buffers and as large as the values that they are.
func checkRegions(lo *lowering, at int) error {
	whose := map[int]string{} // per buffer the instance that it holds
	return eachOp(lo.units, func(_ *unit, o *op) error {
		for k, r := range o.refs {
			if r.value < 0 || !isResolved(lo, o, k, at) {
				continue
			}
			if err := checkRegion(lo, r, o.in.Args[k], whose); err != nil {
				return fmt.Errorf("%+v for %s: %w", o.in.Args[k], lo.step.g.Values[r.value].Name, err)
			}
		}
		return nil
	})
}

// checkRegion checks the region got of an operand.
func checkRegion(lo *lowering, r ref, got program.Region, whose map[int]string) error {
	st, p := lo.step, lo.builder.p
	v := &st.g.Values[r.value]
	rows, cols := r.rows, r.hi-r.lo
	if v.Kind == graph.ParamValue || v.Kind == graph.ParamGrad {
		rows = v.Rows
	}
	if got.Rows != rows || got.Cols != cols {
		return fmt.Errorf("its extents are %d x %d", rows, cols)
	}
	if got.Buf < 0 || got.Buf >= len(p.Buffers) {
		return errors.New("there is no such buffer")
	}
	b := &p.Buffers[got.Buf]
	if _, end := got.Span(); got.Off < 0 || int64(end)*b.DType.Size() > b.Size {
		return errors.New("that is outside the buffer")
	}
	if v.Kind == graph.Forwarded || v.Kind == graph.Gradient {
		name := instanceName(v.Name, instance{r.value, r.micro, r.copy, r.run})
		if old, ok := whose[got.Buf]; ok && old != name && !v.Chunked {
			return fmt.Errorf("its buffer is that of %s", old)
		}
		whose[got.Buf] = name
	}
	if v.Kind != graph.ParamValue || !b.Persistent {
		return nil
	}
	want := ":" + st.g.Params[v.Param].Name
	if r.lo > 0 { // the sinks of some heads
		want += fmt.Sprintf("+%d", r.lo)
	}
	if content := contentAt(b, got.Off); !strings.HasSuffix(content, want) {
		return fmt.Errorf("what is there is %s", content)
	}
	return nil
}

// contentAt returns the name of the content of a flat buffer at an element.
func contentAt(b *program.Buffer, off int) string {
	k := 0
	for k < len(b.Cuts) && b.Cuts[k] <= off {
		k++
	}
	return b.Init[k]
}

// checkUpdates: each element that this rank updates is updated once, and its square counts once.
func checkUpdates(lo *lowering) error {
	st := lo.step
	if !st.updates() {
		return nil
	}
	updated, squared := make([]int, len(st.pl.Chunks)), make([]int, len(st.pl.Chunks))
	eachOp(lo.units, func(_ *unit, o *op) error {
		switch rule := optimizer.Updating(o.in.Op); {
		case rule != nil && rule == st.pl.Rule(st.g, o.in.Key.Chunk):
			updated[o.in.Key.Chunk] += o.in.Args[0].Rows * o.in.Args[0].Cols
		case o.in.Op == graph.NormPart:
			squared[o.in.Key.Chunk] += o.in.Args[1].Cols
		}
		return nil
	})
	for c := range st.pl.Chunks {
		want := 0
		if st.trained(c) {
			want = st.reduced(c).len()
		}
		if owned := st.owned(st.rank, c).len(); updated[c] != want || squared[c] != owned {
			return fmt.Errorf("chunk %d: %d elements are updated, want %d; %d are squared, want %d", c, updated[c], want, squared[c], owned)
		}
	}
	return nil
}

// checkResults: the loss, and what else the mode asks for, reaches the host.
func checkResults(lo *lowering) error {
	st, p := lo.step, lo.builder.p
	written := map[string]int{} // elements
	rows := 0                   // that pass through the head here
	for _, u := range lo.units {
		if u.forward && u.segment == st.g.Head() {
			rows += u.rows
		}
	}
	eachOp(lo.units, func(_ *unit, o *op) error {
		if r := o.in.Args[0]; o.in.Op == graph.Copy {
			written[p.Buffers[r.Buf].Name] += r.Rows * r.Cols
		}
		return nil
	})
	want := map[string]int{}
	if lo.inputs.loss >= 0 {
		want["loss.total"] = 1
		if st.g.Ratios >= 0 {
			want[st.g.Values[st.g.Ratios].Name] = rows
		}
	}
	if st.opt.Mode == Logits && lo.inputs.loss >= 0 {
		want[st.g.Values[st.g.Logits].Name] = rows * st.g.Model.Vocab
	}
	for name, n := range want {
		if written[name] != n {
			return fmt.Errorf("%d elements of %s reach the host, want %d", written[name], name, n)
		}
	}
	return nil
}

// completed returns the program of the units with what later passes have not done yet done in the plainest way: all
// buffers side by side, and each instruction waits for all earlier ones that touch its buffers.
func completed(lo *lowering, at int) *program.Program {
	p := *lo.builder.p
	p.Instrs, p.Buffers = slices.Clone(p.Instrs), slices.Clone(p.Buffers)
	if at < passNumber("list") {
		p.Instrs = listInstructions(lo.step.opt.Mode, lo.units)
	}
	if at < passNumber("place") {
		for i := range p.Buffers {
			b := &p.Buffers[i]
			b.Addr = (p.Height[b.Tier] + b.Align - 1) / b.Align * b.Align
			p.Height[b.Tier] = b.Addr + b.Size
		}
	}
	if at < passNumber("waits") {
		waitForConflicts(&p)
	}
	return &p
}

// waitForConflicts lets each instruction wait for the earlier ones on other streams that touch the same buffer, or the
// same bytes, where one of the two writes.
func waitForConflicts(p *program.Program) {
	type use struct {
		instr  int
		writes bool
	}
	users, together := make([][]use, len(p.Buffers)), make([][]int, len(p.Buffers))
	for i := range p.Buffers {
		for j := range p.Buffers {
			if a, b := &p.Buffers[i], &p.Buffers[j]; i == j || a.Tier == b.Tier && a.Addr < b.Addr+b.Size && b.Addr < a.Addr+a.Size {
				together[i] = append(together[i], j)
			}
		}
	}
	for i := range p.Instrs {
		in := &p.Instrs[i]
		in.Waits = nil
		for k, r := range in.Args {
			if r.Absent() {
				continue
			}
			_, writes := readsWrites(in, k)
			for _, buf := range together[r.Buf] {
				for _, u := range users[buf] {
					if (writes || u.writes) && p.Instrs[u.instr].Stream != in.Stream {
						in.Waits = append(in.Waits, u.instr)
					}
				}
			}
		}
		for k, r := range in.Args {
			if _, writes := readsWrites(in, k); !r.Absent() {
				users[r.Buf] = append(users[r.Buf], use{i, writes})
			}
		}
		slices.Sort(in.Waits)
		in.Waits = slices.Compact(in.Waits)
	}
}
