package verify

import (
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// maxAtoms bounds the work of Verify on absurd programs.
const maxAtoms = 1 << 28

// checkStructure checks everything about a program that needs no execution, addresses
// aside, and returns its layout in atoms.
func checkStructure(p *program.Program) (*layout, error) {
	if p.Rank < 0 || p.BatchRow < 0 || p.BatchRow > program.MaxCount || p.BatchRow%max(p.RowUnit, 1) != 0 {
		return nil, fmt.Errorf("the program of rank %d begins at row %d of the batch with row unit %d; hint: begin at a multiple of the row unit", p.Rank, p.BatchRow, p.RowUnit)
	}
	if err := checkRuns(p); err != nil {
		return nil, err
	}
	if len(p.Buffers) > math.MaxInt32 || len(p.Instrs) > math.MaxInt32/16 {
		return nil, fmt.Errorf("a program of %d buffers and %d instructions is too large", len(p.Buffers), len(p.Instrs))
	}
	ly := &layout{base: make([]int32, 1, len(p.Buffers)+1), first: make([]int32, 1, len(p.Instrs)+1)}
	atoms := int64(0)
	for i := range p.Buffers {
		n, err := checkBuffer(p, &p.Buffers[i])
		if err != nil {
			return nil, err
		}
		if atoms += n; atoms > maxAtoms {
			return nil, fmt.Errorf("the program has more than %d atoms; hint: use a larger row unit", maxAtoms)
		}
		ly.base = append(ly.base, int32(atoms))
	}
	for i := range p.Instrs {
		if err := checkInstr(p, ly, i); err != nil {
			return nil, err
		}
		ly.first = append(ly.first, int32(len(ly.args)))
	}
	for i := range p.Homes {
		h := &p.Homes[i]
		s, why := ly.resolve(p, h.Region)
		switch {
		case h.Region.Absent():
			why = "it has no region"
		case why == "" && !p.Buffers[h.Region.Buf].Persistent:
			why = fmt.Sprintf("buffer %s is not persistent", p.Buffers[h.Region.Buf].Name)
		case why == "" && p.Buffers[h.Region.Buf].RowUnit > 0:
			why = fmt.Sprintf("buffer %s is not flat", p.Buffers[h.Region.Buf].Name)
		case h.Param < 0 || h.At < 0 || h.At > program.MaxCount:
			why = fmt.Sprintf("it has no element %d", h.At)
		case h.Of < 0 || h.Of > program.MaxCount || h.Of > 0 && (h.At > 0 || h.Slab > 0 || h.Of < h.Region.Rows*h.Region.Cols):
			why = fmt.Sprintf("it cannot be what is kept of %d elements", h.Of)
		case h.Slab < 0 || h.Slab > program.MaxCount:
			why = fmt.Sprintf("it has no slab %d", h.Slab)
		}
		if why != "" {
			return nil, fmt.Errorf("home %d (%s of parameter %d): %s; hint: homes are whole atoms of flat persistent buffers", i, h.Kind, h.Param, why)
		}
		ly.homes = append(ly.homes, s)
	}
	return ly, nil
}

// checkRuns checks which tokens of each sequence a rank says that it has.
func checkRuns(p *program.Program) error {
	end := 0
	for _, r := range p.Runs {
		if r.At < end || r.Rows < 1 || r.Rows > p.Sequence || r.At > p.Sequence-r.Rows || p.Sequence > program.MaxCount || r.At%max(p.RowUnit, 1) != 0 || r.Rows%max(p.RowUnit, 1) != 0 {
			return fmt.Errorf("the program of rank %d has tokens %d to %d of sequences of %d tokens, with row unit %d; hint: list runs of whole row units, in the order of the sequence",
				p.Rank, r.At, r.At+r.Rows, p.Sequence, p.RowUnit)
		}
		end = r.End()
	}
	return nil
}

// leastSize returns the minimum size of a buffer in bytes. The rows of a matrix that is
// not kept may be longer than their content; the last row's last band may then be
// outside the buffer. checkOperands ensures that nothing touches it.
func leastSize(b *program.Buffer) int64 {
	elems := int64(b.Rows) * int64(b.Cols)
	if b.RowUnit > 0 && !b.Persistent && len(b.Cuts) > 0 {
		elems -= int64(b.Cols - b.Cuts[len(b.Cuts)-1])
	}
	return elems * b.DType.Size()
}

// checkBuffer returns the number of atoms of a buffer.
func checkBuffer(p *program.Program, b *program.Buffer) (int64, error) {
	fail := func(format string, args ...any) (int64, error) {
		return 0, fmt.Errorf("buffer %s: %s; hint: see the comments on Buffer", b.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case b.Tier >= device.NumTiers:
		return fail("unknown %v", b.Tier)
	case b.Class >= program.NumClasses:
		return fail("unknown %s", program.ClassName(b.Class))
	case b.DType >= graph.NumDTypes:
		return fail("unknown %v", b.DType)
	case b.Rows < 1 || b.Cols < 1 || b.Rows > program.MaxCount || b.Cols > program.MaxCount || b.Rows > program.MaxBytes/8/b.Cols:
		return fail("impossible extents %dx%d", b.Rows, b.Cols)
	case b.Size < leastSize(b) || b.Size > program.MaxBytes:
		return fail("%d bytes cannot hold %dx%d elements of %v", b.Size, b.Rows, b.Cols, b.DType)
	case b.RowUnit == 0 && b.Rows != 1:
		return fail("flat, but has %d rows", b.Rows)
	case b.RowUnit != 0 && (b.RowUnit != p.RowUnit || b.RowUnit < 0):
		return fail("row unit %d, but the program's is %d", b.RowUnit, p.RowUnit)
	case b.RowUnit != 0 && b.Rows%b.RowUnit != 0:
		return fail("%d rows are not a multiple of the row unit %d", b.Rows, b.RowUnit)
	}
	last := 0
	for _, c := range b.Cuts {
		if c <= last || c >= b.Cols {
			return fail("cut %d is not ascending inside (0, %d)", c, b.Cols)
		}
		last = c
	}
	bands, want := len(b.Cuts)+1, 1
	if b.RowUnit == 0 {
		want = bands
	}
	switch {
	case len(b.Init) > 0 && !b.Persistent:
		return fail("it names its content, but is not persistent")
	case len(b.Init) > 0 && len(b.Init) != want:
		return fail("%d names of content, want %d", len(b.Init), want)
	case b.RowUnit > 0:
		return int64(bands) * int64(b.Rows/b.RowUnit), nil
	}
	return int64(bands), nil
}

// resolve turns a region into atoms, or says why it is invalid.
func (ly *layout) resolve(p *program.Program, r program.Region) (s box, why string) {
	if r.Absent() {
		if r != (program.Region{}) {
			return s, "is absent, but has extents"
		}
		return s, ""
	}
	if r.Buf < 0 || r.Buf >= len(p.Buffers) {
		return s, fmt.Sprintf("refers to buffer %d, but there are only %d", r.Buf, len(p.Buffers))
	}
	b := &p.Buffers[r.Buf]
	if r.Rows < 0 || r.Cols < 1 || r.Off < 0 || r.Rows > program.MaxCount || r.Cols > program.MaxCount || r.Off > program.MaxBytes {
		return s, fmt.Sprintf("has impossible extents %dx%d at %d", r.Rows, r.Cols, r.Off)
	}
	if r.Stride != program.DefaultStride(b, r.Cols) {
		return s, fmt.Sprintf("has stride %d, want %d", r.Stride, program.DefaultStride(b, r.Cols))
	}
	row, col, rows, cols := 0, r.Off, 1, r.Cols
	if b.RowUnit > 0 {
		row, col, rows = r.Off/b.Cols, r.Off%b.Cols, r.Rows
	} else if cols = b.Cols + 1; r.Rows <= b.Cols/r.Cols {
		cols = r.Rows * r.Cols
	}
	if row > b.Rows-rows || col > b.Cols-cols {
		return s, fmt.Sprintf("ends outside its buffer: %dx%d at element %d of %dx%d", r.Rows, r.Cols, r.Off, b.Rows, b.Cols)
	}
	lo, ok1 := cutAt(b, col)
	hi, ok2 := cutAt(b, col+cols)
	unit := max(b.RowUnit, 1)
	if !ok1 || !ok2 || row%unit != 0 || rows%unit != 0 {
		return s, fmt.Sprintf("is not made of whole atoms: rows %d:%d, columns %d:%d", row, row+rows, col, col+cols)
	}
	bands := len(b.Cuts) + 1
	return box{ly.base[r.Buf] + int32(row/unit*bands+lo), int32(bands), int32(rows / unit), int32(hi - lo)}, ""
}

// cutAt returns the number of the band that starts at column col.
func cutAt(b *program.Buffer, col int) (int, bool) {
	switch col {
	case 0:
		return 0, true
	case b.Cols:
		return len(b.Cuts) + 1, true
	}
	k, ok := slices.BinarySearch(b.Cuts, col)
	return k + 1, ok
}

// bandStart returns the first column of band k.
func bandStart(b *program.Buffer, k int) int {
	switch {
	case k == 0:
		return 0
	case k > len(b.Cuts):
		return b.Cols
	}
	return b.Cuts[k-1]
}

func checkInstr(p *program.Program, ly *layout, i int) error {
	in := &p.Instrs[i]
	if in.Op == graph.None || in.Op >= graph.NumOps {
		return fmt.Errorf("instruction i%d: unknown operator %v; hint: operators are in package graph's table", i, in.Op)
	}
	specs := in.Op.Info().Args
	if in.Stream >= device.NumStreams {
		return fmt.Errorf("instruction i%d (%s): unknown %v; hint: streams are in package device", i, in.Op, in.Stream)
	}
	if in.Key.Dir > program.Transfer {
		return fault(p, i, "fwd, bwd, rec, opt or copy", "unknown direction %d", in.Key.Dir)
	}
	if len(in.Args) > len(specs) {
		return fault(p, i, "see the operator's row in package graph", "has %d operands, but takes at most %d", len(in.Args), len(specs))
	}
	for j, spec := range specs {
		if !spec.Optional && (j >= len(in.Args) || in.Args[j].Absent()) {
			return fault(p, i, "see the operator's row in package graph", "operand %s is missing", spec.Name)
		}
	}
	for _, w := range in.Waits {
		switch {
		case w < 0 || w >= i:
			return fault(p, i, "waits name earlier instructions", "it waits for i%d", w)
		case p.Instrs[w].Stream == in.Stream:
			return fault(p, i, "a stream is in order by itself", "it waits for i%d on its own stream", w)
		}
	}
	if why := in.Op.CheckAttr(&in.Attr); why != "" {
		return fault(p, i, "see package graph for what the operator reads", "%s", why)
	}
	if hint, why := checkPeers(p, in); why != "" {
		return fault(p, i, hint, "%s", why)
	}
	if err := checkOperands(p, ly, i); err != nil {
		return err
	}
	return checkShapes(p, ly, i)
}

// checkPeers says what is wrong with an instruction's stream or its peers.
func checkPeers(p *program.Program, in *program.Instr) (hint, why string) {
	between, only := in.Op.Info().Between, streamTiers[in.Stream].only
	message := in.Op == graph.Send || in.Op == graph.Recv
	switch {
	case only != nil && !slices.Contains(only, in.Op):
		return "operators run on compute or host", fmt.Sprintf("this stream is for %v only", only)
	case only == nil && between:
		return "what runs between ranks has streams of its own", "this stream is for one rank"
	case !between && len(in.Peers) > 0:
		return "only collectives and messages have peers", fmt.Sprintf("it names ranks %v", in.Peers)
	case !message && in.Tag != 0:
		return "only messages have tags", fmt.Sprintf("it has tag %d", in.Tag)
	case message && (in.Tag < 0 || in.Tag > program.MaxCount):
		return "tags tell messages apart", fmt.Sprintf("it has tag %d", in.Tag)
	case message && (len(in.Peers) != 1 || in.Peers[0] < 0 || in.Peers[0] == p.Rank):
		return "a message names the one rank at its other end", fmt.Sprintf("it names ranks %v on rank %d", in.Peers, p.Rank)
	case between && !message:
		for k, r := range in.Peers {
			if r < 0 || k > 0 && r <= in.Peers[k-1] {
				return "each rank once, ascending", fmt.Sprintf("it names ranks %v", in.Peers)
			}
		}
		if !slices.Contains(in.Peers, p.Rank) {
			return "a rank is a member of its own group", fmt.Sprintf("it names ranks %v on rank %d", in.Peers, p.Rank)
		}
	}
	return "", ""
}

// checkOperands resolves the operands of instruction i and checks their placement:
// tiers, whole atoms, and no overlap with a written operand.
func checkOperands(p *program.Program, ly *layout, i int) error {
	in := &p.Instrs[i]
	tiers := &streamTiers[in.Stream]
	at := len(ly.args)
	for j, r := range in.Args {
		s, why := ly.resolve(p, r)
		if why != "" {
			return operandFault(p, i, j, "regions are whole atoms of a buffer", "%s", why)
		}
		ly.args = append(ly.args, s)
		if r.Absent() {
			continue
		}
		b := &p.Buffers[r.Buf]
		_, writes := accessOf(in, j)
		tier := tiers.read
		if writes {
			tier = tiers.write
		}
		if _, end := r.Span(); int64(end)*b.DType.Size() > b.Size {
			return operandFault(p, i, j, "make the buffer larger", "ends at element %d, the buffer has %d bytes", end, b.Size)
		}
		if b.Tier != tier {
			return operandFault(p, i, j, "copy it there first", "is on %s, this stream works on %s", b.Tier, tier)
		}
		if in.Op.Info().Args[j].Token && b.RowUnit == 0 {
			return operandFault(p, i, j, "token operands have a row unit", "is flat")
		}
	}
	mine := ly.args[at:]
	for j := range mine {
		if _, writes := accessOf(in, j); !writes {
			continue
		}
		for k := range mine {
			if k == j || in.Args[j].Buf != in.Args[k].Buf || !mine[j].relative(ly, in.Args[j]).overlaps(mine[k].relative(ly, in.Args[k])) {
				continue
			}
			if j+k == 1 && mayAlias(in, mine[0], mine[1]) {
				continue
			}
			return operandFault(p, i, j, "give it a buffer of its own", "overlaps operand %s", in.Op.Info().Args[k].Name)
		}
	}
	return nil
}

// relative numbers a box's atoms from its buffer's first.
func (s box) relative(ly *layout, r program.Region) box {
	if s.blocks > 0 {
		s.atom -= ly.base[r.Buf]
	}
	return s
}

// mayAlias reports whether the first two operands of an instruction may overlap as they do. A gather's source may
// already be at its place in the destination, and a reduction's result may go to its own place in the source:
// checkMeetings checks that it is the right place.
func mayAlias(in *program.Instr, first, second box) bool {
	switch in.Op.Info().Alias {
	case graph.Same:
		return first == second
	case graph.SameUnlessAdded:
		return !in.Attr.Acc && first == second
	case graph.SecondInFirst:
		return first.holds(second)
	case graph.FirstInSecond:
		return !in.Attr.Acc && second.holds(first)
	}
	return false
}

// checkShapes checks the operands' types, extents and, where their elements must correspond, cuts.
func checkShapes(p *program.Program, ly *layout, i int) error {
	in := &p.Instrs[i]
	if seq := in.Attr.Seq; in.Op.Info().Kind == graph.Sequence && seq%p.RowUnit != 0 && p.RowUnit%seq != 0 {
		return fault(p, i, "give whole sequences or a slice of one, in whole row units", "sequences of %d rows with row unit %d", seq, p.RowUnit)
	}
	ly.dims = ly.dims[:0]
	for j := range in.Op.Info().Args {
		ly.dims = append(ly.dims, dimOf(p, in.Arg(j)))
	}
	if m := in.Op.CheckOperands(&in.Attr, ly.dims); m != nil {
		if m.Arg >= 0 {
			return operandFault(p, i, m.Arg, m.Hint, "%s", m.Why)
		}
		return fault(p, i, m.Hint, "%s", m.Why)
	}
	if in.Op.Info().Alike {
		for j, r := range in.Args {
			if oneRow := in.Op.Info().Args[j].Shape.Rows.Letter == 0; !oneRow && !r.Absent() && !correspond(p, r, in.Args[0]) {
				return operandFault(p, i, j, "cut both buffers at the same places", "is cut at other places than operand %s", in.Op.Info().Args[0].Name)
			}
		}
	}
	return nil
}

// correspond reports whether an operand's atoms are those of the first. Packed moments, of one row, are cut as weights are, where
// blocks begin.
func correspond(p *program.Program, r, first program.Region) bool {
	b, c := &p.Buffers[r.Buf], &p.Buffers[first.Buf]
	if b.DType != graph.U8 || c.DType == graph.U8 {
		return cutAlike(p, r, p, first)
	}
	if b.RowUnit > 0 || c.RowUnit > 0 || first.Rows != 1 {
		return false
	}
	x, y := cutsIn(b, r.Off, r.Cols), cutsIn(c, first.Off, first.Cols)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if e := y[i] - first.Off; e%graph.MomentBlock != 0 || x[i]-r.Off != graph.PackedMoments(e) {
			return false
		}
	}
	return true
}

// cutsIn lists the cuts of a buffer strictly within so many elements from one on.
func cutsIn(b *program.Buffer, at, width int) []int {
	lo, _ := slices.BinarySearch(b.Cuts, at+1)
	hi, _ := slices.BinarySearch(b.Cuts, at+width)
	return b.Cuts[lo:hi]
}

// dimOf returns a region's type and extents.
func dimOf(p *program.Program, r program.Region) graph.Dim {
	if r.Absent() {
		return graph.Dim{}
	}
	return graph.Dim{DType: p.Buffers[r.Buf].DType, Rows: r.Rows, Cols: r.Cols}
}

// cutAlike reports whether region r of p and region s of q, of equal extents, have
// corresponding atoms.
func cutAlike(p *program.Program, r program.Region, q *program.Program, s program.Region) bool {
	b, c := &p.Buffers[r.Buf], &q.Buffers[s.Buf]
	if b.RowUnit != c.RowUnit {
		return false
	}
	width, at, to := r.Cols, r.Off, s.Off
	if b.RowUnit > 0 {
		at, to = at%b.Cols, to%c.Cols
	} else {
		width *= r.Rows
	}
	x, y := cutsIn(b, at, width), cutsIn(c, to, width)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if x[i]-at != y[i]-to {
			return false
		}
	}
	return true
}
