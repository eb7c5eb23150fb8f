package lower

import (
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// builder makes the program: passes add buffers, instructions and homes through it.
type builder struct {
	st      *step
	p       *program.Program
	scratch *workspace
	regions slab[program.Region] // of the program's instructions
}

// op is an instruction whose operands are still graph values, or already regions.
type op struct {
	in       program.Instr
	refs     []ref // refs[i].value >= 0: a later pass resolves it into in.Args[i]
	deferred bool  // by the previous step, see updatePostponed
}

// ref is an operand as a value of the graph: rows [row, row+rows) and columns [lo, hi)
// of one micro-batch's instance of it. copy numbers the instances of a forward value: 0
// from the forward pass, 1 recomputed for the backward pass; for chunked values, the
// row chunk.
type ref struct {
	value, micro, copy int
	row, rows, lo, hi  int
	run                int  // of gradients, see runOf
	tile               bool // the instance has the rows of a tile, see tiles.go
}

var none = ref{value: -1}

// buffer appends a buffer and returns its number.
func (b *builder) buffer(buf program.Buffer) int {
	if buf.Align == 0 {
		buf.Align = 64
	}
	if buf.Tier == device.DiskTier {
		buf.Align = 4096 // direct I/O; chunks are padded to multiples of it
	}
	buf.Size = int64(buf.Rows) * int64(buf.Cols) * buf.DType.Size()
	buf.Addr = -1
	b.p.Buffers = append(b.p.Buffers, buf)
	return len(b.p.Buffers) - 1
}

// chunkBuffer allocates a flat buffer with one record of a piece of chunk c per kind of
// content ("p", "m", ...), each padded on disk. Without kinds the content does not
// persist between steps.
func (b *builder) chunkBuffer(name string, c int, p piece, tier device.Tier, class program.Class, dt graph.DType, kinds ...optimizer.Kind) store {
	ends := b.st.atomsIn(c, p)
	atoms := make([]atom, len(ends)-1)
	for i, e := range ends[:len(ends)-1] {
		atoms[i] = atom{e - p.lo, e, p.kept}
	}
	buf := program.Buffer{Name: name + ".c" + strconv.Itoa(c), Tier: tier, Class: class, DType: dt, Rows: 1}
	b.layRecords(&buf, c, atoms, p.len(), kinds)
	return store{b.buffer(buf), -p.lo}
}

// atom is where an atom of a chunk begins: in a record, and in the chunk, or in what is kept of it.
type atom struct {
	at, element int
	kept        bool
}

// layRecords lays out a buffer of records of n elements, one per kind of content or one without, and returns how many elements
// each takes.
func (b *builder) layRecords(buf *program.Buffer, c int, atoms []atom, n int, kinds []optimizer.Kind) (length int) {
	length = record(n, buf.Tier, buf.DType)
	records := max(len(kinds), 1)
	buf.Cols = length * records
	if records*len(atoms) > 1 {
		buf.Cuts = make([]int, 0, records*(len(atoms)+1))
	}
	if len(kinds) > 0 {
		buf.Init = make([]string, 0, len(kinds)*(len(atoms)+1))
	}
	for k := range records {
		for _, a := range atoms {
			if at := k*length + a.at; at > 0 {
				buf.Cuts = append(buf.Cuts, at)
			}
			if len(kinds) > 0 {
				buf.Init = append(buf.Init, kinds[k].String()+":"+b.st.elementName(c, a.element, a.kept))
			}
		}
		if length > n {
			buf.Cuts = append(buf.Cuts, k*length+n)
			if len(kinds) > 0 {
				buf.Init = append(buf.Init, "")
			}
		}
	}
	buf.Persistent = len(kinds) > 0
	return length
}

// stageBuffer allocates a buffer in another tier with the same layout as another.
func (b *builder) stageBuffer(like int, tier device.Tier) int {
	buf := b.p.Buffers[like]
	buf.Name, buf.Tier, buf.Persistent, buf.Init = "stage."+buf.Name, tier, false, nil
	return b.buffer(buf)
}

// slotBuffer allocates a buffer of slots with the given cuts.
func (b *builder) slotBuffer(name string, t device.Tier, cuts []int) int {
	buf := program.Buffer{Name: name, Tier: t, Class: program.ClassReductions, DType: graph.F64, Rows: 1, Cols: cuts[len(cuts)-1]}
	if last := len(cuts) - 1; last > 0 {
		buf.Cuts = cuts[:last]
	}
	return b.buffer(buf)
}

// clipBuffer allocates the host's buffer of {clip factor, norm}.
func (b *builder) clipBuffer() int {
	return b.buffer(program.Buffer{Name: program.Clip, Tier: device.HostTier, Class: program.ClassReductions, DType: graph.F32, Rows: 1, Cols: 2,
		Persistent: true, Init: []string{program.ClipBefore}})
}

// recordHomes records where a piece of a chunk lives between steps.
func (b *builder) recordHomes(c int, p piece, kind optimizer.Kind, s store, replica bool) {
	for _, q := range b.st.splitByParam(c, p) {
		whole, first := b.st.g.Vocabulary.WholeOf(q.param)
		h := program.Home{Param: whole, Slab: b.st.slab(c), Kind: kind, Region: s.region(q.lo, q.hi), Replica: replica}
		if from, _ := b.st.rangeOf(q.param, p.kept); !p.kept || !b.st.compressed(q.param) {
			h.At = first + q.lo - from
		} else {
			h.Of = int(b.st.g.Stored(q.param).Elems())
		}
		b.p.Homes = append(b.p.Homes, h)
	}
}

// keepGradient declares the gradient to be a result of the program, or input of the next step's deferred update.
func (b *builder) keepGradient(c int, s store) {
	own := b.st.reduced(c)
	if own.len() == 0 {
		return
	}
	buf := &b.p.Buffers[s.buf]
	buf.Persistent, buf.Init = true, make([]string, len(buf.Cuts)+1)
	starts := append([]int{0}, buf.Cuts...)
	for k, e := range starts {
		if e -= s.at; e >= own.lo && e < own.hi { // the elements outside own are partial sums of other ranks' shards
			buf.Init[k] = "grad.before:" + b.st.elementName(c, e, own.kept)
		}
	}
	b.recordHomes(c, own, optimizer.Gradient, s, false)
}

// nodeOp builds the instruction of a node for rows [row, row+rows) of a micro-batch.
func (b *builder) nodeOp(u *unit, n *graph.Node, dir program.Direction, row, rows, chunk int) *op {
	st := b.st
	o := &b.scratch.ops.take(1)[0]
	o.in.Op, o.in.Attr, o.in.Stream = n.Op, n.Attr, device.Compute
	o.in.Key = program.Key{Segment: u.segment, Micro: u.micro, Chunk: -1, Dir: dir}
	o.in.Args = b.regions.take(len(n.Args))
	o.refs = b.scratch.refs.take(len(n.Args))
	switch n.Op {
	case graph.CrossEntropy:
		o.in.Attr.Grad = n.Attr.Grad && u.backward
		if len(n.Args) > graph.CrossEntropyParts && n.Args[graph.CrossEntropyParts].Value >= 0 {
			o.in.Attr.First += st.firstLogit()
		}
	case graph.Distil:
		o.in.Attr.Grad = n.Attr.Grad && u.backward
	case graph.LossPart:
		o.in.Attr.First += st.firstLogit()
	case graph.Embed:
		o.in.Attr.Row0 = row % st.g.Seq
		o.locate(st, n.Args[graph.EmbedWTE])
	case graph.EmbedBwd:
		o.locate(st, n.Args[graph.EmbedBwdDWTE])
	case graph.RoPE, graph.PosBwd:
		o.in.Attr.Row0 = row % st.g.Seq
	case graph.AttentionBwd: // slices run in descending order, so the one with the last rows starts the sums
		o.in.Attr.Acc = n.Attr.Acc || row+rows < st.rows()
	}
	for i, use := range n.Args {
		o.refs[i] = none
		if use.Value < 0 {
			continue
		}
		v := &st.g.Values[use.Value]
		r := ref{value: use.Value, micro: u.micro, lo: use.Lo, hi: use.Hi, rows: v.Rows}
		if v.Kind == graph.Gradient {
			r.run = u.run
		}
		switch {
		case v.Chunked:
			r.rows, r.copy = rows, chunk
		case n.Op.Info().Args[i].Past:
			r.rows = row + rows
		case v.PerToken:
			r.row, r.rows = row, rows
		}
		o.refs[i] = r
	}
	return o
}

// locate says which rows of the vocabulary a rank's part of an embedding has, if ranks share it.
func (o *op) locate(st *step, wte graph.Use) {
	if first, vocab := st.firstRow(wte); vocab > 0 {
		o.in.Attr.First, o.in.Attr.Vocab = first, vocab
	}
}

// copyOp builds a copy between two regions of equal extents.
func copyOp(stream device.Stream, key program.Key, dst, src program.Region) *op {
	key.Dir = program.Transfer
	return &op{in: program.Instr{Op: graph.Copy, Stream: stream, Key: key, Args: []program.Region{dst, src}}}
}

// moveOp copies a piece between tiers.
func moveOp(stream device.Stream, key program.Key, to, from store, p piece) *op {
	return copyOp(stream, key, to.of(p), from.of(p))
}

// processorOp builds an optimizer instruction on the given tier's processor.
func processorOp(tier device.Tier, c int, o graph.Op, attr graph.Attr, args ...program.Region) *op {
	stream := device.Compute
	if tier == device.HostTier {
		stream = device.HostCompute
	}
	key := program.NoKey
	key.Chunk, key.Dir = c, program.Optimizer
	return &op{in: program.Instr{Op: o, Attr: attr, Stream: stream, Key: key, Args: args}}
}

// subRegion returns the part of a matrix buffer that r refers to.
func subRegion(p *program.Program, buf int, r ref) program.Region {
	cols := p.Buffers[buf].Cols
	return program.Region{Buf: buf, Off: r.row*cols + r.lo, Rows: r.rows, Cols: r.hi - r.lo, Stride: cols}
}
