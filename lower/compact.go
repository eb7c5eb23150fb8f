package lower

import (
	"fmt"
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Compact chunks. Where weights that are 0 stay so, weights, gradients that wait for the update, and state exist only of the
// elements that a mask keeps, parameter by parameter, in the order of the chunk:
//
//	elements of the chunk   [ wqkv ................ | wo ......... | bqkv, bo ]
//	stored                  [ wqkv ...... | wo ... | bqkv, bo ]
//	masks, in words         [ wqkv . | wo ]
//
// Operators read and add to all elements, as ever: the device expands weights into the cache just before they are used, and
// compresses a gradient once it is complete and its squares are summed. An update treats each element by itself, so it
// updates what is stored, and has the bits that it would have among the others.
//
//	link      | mask, weights |
//	compute                   | expand | layer ... backward | squares | compress |
//	link                                                                        | gradient |
//
// Known weakness: a gradient whose sum goes to the host and comes back between micro-batches does so with all of its elements,
// since all count in the norm.

// compact reports whether only what a mask keeps of a chunk is stored.
func (geo *geometry) compact(c int) bool { return geo.pl.Chunks[c].Compact }

// compressed reports whether only what a mask keeps of a parameter is stored.
func (geo *geometry) compressed(i int) bool {
	_, less := graph.Kept(geo.g, i)
	return less && geo.compact(geo.chunkOf[i])
}

// storedElems returns how many elements of a parameter are stored.
func (geo *geometry) storedElems(i int) int {
	if !geo.compressed(i) {
		return int(geo.g.Stored(i).Elems())
	}
	room, _ := graph.Kept(geo.g, i)
	return int(room)
}

// rangeOf returns the range of a parameter in its chunk, or in what is stored of it.
func (geo *geometry) rangeOf(i int, kept bool) (lo, hi int) {
	if kept {
		return geo.keptAt[i], geo.keptAt[i] + geo.storedElems(i)
	}
	return geo.offsetOf[i], geo.offsetOf[i] + int(geo.g.Stored(i).Elems())
}

// homed returns the range of a chunk's weights or state that this rank stores.
func (geo *geometry) homed(c int, what string) piece {
	if !geo.compact(c) {
		return geo.held(c, what)
	}
	_, end := geo.rangeOf(geo.pl.Chunks[c].Last-1, true)
	return piece{0, end, true}
}

// keptAtoms returns the atoms of what is stored of a chunk: its parameters.
func (geo *geometry) keptAtoms(c int) []int {
	list := []int{0}
	for i := geo.pl.Chunks[c].First; i < geo.pl.Chunks[c].Last; i++ {
		_, end := geo.rangeOf(i, true)
		list = append(list, end)
	}
	return list
}

// keptName names the content of a parameter of a compact chunk, which begins at an element of what is stored.
func (geo *geometry) keptName(c, e int) string {
	i := geo.pl.Chunks[c].First
	for geo.keptAt[i] != e {
		i++
	}
	if !geo.compressed(i) {
		return geo.g.Params[i].Name
	}
	return fmt.Sprintf("%s%s%d", geo.g.Params[i].Name, program.KeptOf, geo.g.Stored(i).Elems())
}

// masks lists the parameters of a chunk that are compressed, each with the range of its mask among theirs, in words.
func (geo *geometry) masks(c int) (list []part) {
	end := 0
	for i := geo.pl.Chunks[c].First; i < geo.pl.Chunks[c].Last; i++ {
		if geo.compressed(i) {
			n := graph.MaskWords(int(geo.g.Stored(i).Elems()))
			list = append(list, part{i, end, end + n})
			end += n
		}
	}
	return list
}

// maskHome allocates the masks of a chunk, where its weights are.
func (b *builder) maskHome(c int) store {
	list := b.st.masks(c)
	last := len(list) - 1
	buf := program.Buffer{Name: optimizer.Mask.String() + ".c" + strconv.Itoa(c), Tier: b.st.pl.Chunks[c].Weights, Class: program.ClassWeights,
		DType: graph.I32, Rows: 1, Cols: list[last].hi, Persistent: true}
	for k, m := range list {
		if k < last {
			buf.Cuts = append(buf.Cuts, m.hi)
		}
		buf.Init = append(buf.Init, optimizer.Mask.String()+":"+b.st.g.Params[m.param].Name)
	}
	at := store{b.buffer(buf), 0}
	for _, m := range list {
		whole, _ := b.st.g.Vocabulary.WholeOf(m.param)
		b.p.Homes = append(b.p.Homes, program.Home{Param: whole, Kind: optimizer.Mask, Region: at.region(m.lo, m.hi)})
	}
	return at
}

// bringCompact lists what fills a copy of a compact chunk for the n-th load, n > 0: copies to the device before unit send, unless weights are
// there, and there the expansion just before unit u.
func bringCompact(b *builder, send, u *unit, c int, home *weightHome, copied store, n int) {
	work := store{b.bring(send, c, u.key(c), home.work.buf, n), home.work.at}
	mask := store{b.bring(send, c, u.key(c), home.mask.buf, n), home.mask.at}
	u.before = append(u.before, b.st.moveKept(graph.Expand, c, u.key(c), copied, work, mask)...)
}

// bring copies a buffer of a chunk from the host to the device before a unit, and returns the copy; the buffer itself, if it is there.
func (b *builder) bring(u *unit, c int, key program.Key, buf, n int) int {
	if b.p.Buffers[buf].Tier == device.DeviceTier {
		return buf
	}
	stage := b.stageBuffer(buf, device.DeviceTier)
	b.p.Buffers[stage].Name = numbered(b.p.Buffers[stage].Name, n)
	u.before = append(u.before, copyOp(device.HostToDev, key, b.p.BufferRegion(stage), b.p.BufferRegion(buf)))
	return stage
}

// moveKept lists the instructions that compress or expand a chunk on the device. What is not compressed is copied.
func (st *step) moveKept(o graph.Op, c int, key program.Key, to, from, mask store) (list []*op) {
	masks := st.masks(c)
	for i := st.pl.Chunks[c].First; i < st.pl.Chunks[c].Last; i++ {
		dst, src := to.region(st.rangeOf(i, o == graph.Compress)), from.region(st.rangeOf(i, o == graph.Expand))
		one := copyOp(device.Compute, key, dst, src)
		if st.compressed(i) {
			one.in.Op, one.in.Args = o, []program.Region{dst, src, mask.region(masks[0].lo, masks[0].hi)}
			masks = masks[1:]
		}
		list = append(list, one)
	}
	return list
}

// compress lists what leaves of a chunk's complete gradient what its mask keeps, and returns where that is.
func (up *updater) compress(c int) store {
	b, u := up.b, &up.units[up.complete[c].unit]
	key := u.key(c)
	key.Dir = program.Optimizer
	kept := b.chunkBuffer("grad.kept", c, up.st.homed(c, "state"), device.DeviceTier, program.ClassGrads, graph.F32)
	mask := store{b.bring(u, c, key, up.weights[c].mask.buf, 0), 0}
	u.after = append(u.after, up.st.moveKept(graph.Compress, c, key, kept, up.grads[c], mask)...)
	return kept
}
