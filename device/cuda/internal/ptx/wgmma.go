package ptx

// Products of warpgroups.
//
// Four warps start a product together (wgmma.mma_async) and continue while tensor cores read its operands from shared
// memory and add to registers. Its sums may be used after a wait for the group that it was committed with. Here it is
// computed at once, and what it uses is protected as long as it could be in flight:
//
//   - A register of a product that has not been awaited may be used only by products of the same shape. After another
//     instruction has used a register, a wgmma.fence is needed before a product uses it.
//   - For every 16 bytes of shared memory, the latest product of each warp that read them is recorded. They may be
//     written once that warp has awaited it and passed a barrier since.
//   - Tensor cores access shared memory through a different proxy from threads'. Between a write (for a copy, its wait)
//     and a product that reads it there must be a barrier and a fence.proxy.async: before the barrier in the thread
//     that wrote, or after it in all lanes of the warp that starts the product. NVIDIA's memory model allows it
//     anywhere between the two; compilers put it at either place.
//   - Only texts for sm_90a may have these instructions.
//   - The four warps must execute the same instructions with the same descriptors. They do not wait for each other,
//     so each orders its own accesses only.
//
// For example, warp 0 awaits its product and overwrites an operand: an error unless all warps passed a barrier, since
// the other warps' products may still run.
//
// Known weakness: Traffic does not count what tensor cores read.

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// products is the state of a warp's products.
type products struct {
	begun   int32
	ended   int32       // number that have been awaited
	ends    []int32     // the block's epoch at which each of these was awaited
	commits []int32     // number of products started before each commit
	fences  int32       // number of wgmma.fence so far
	steps   int         // number of warpgroup instructions so far
	holds   []hold      // per register; empty in a kernel without products
	proxies [32][]int32 // per lane: the epochs in which it executed fence.proxy.async
}

// hold records the use of a register.
type hold struct {
	product int32 // the latest product, counted from 1
	began   int32 // number of wgmma.fence before that product
	touched int32 // number of wgmma.fence before another instruction last used the register
	role    int   // in the product: the shape's columns and the index among the sums
}

// step is an executed warpgroup instruction. The first warp to reach it sets the values that the others must match.
type step struct {
	at      *instruction
	a, b    uint64
	add     bool
	columns [][16]float64 // of b, until all warps have used them
	warps   int
}

// product is one instruction's operands.
type product struct {
	n            int // columns
	d, a         []int
	descA, descB int
	add          int // a flag
	turnA, turnB bool
	sign         float64
}

var productShape = regexp.MustCompile(`^wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.bf16\.bf16$`)

// buildProduct: wgmma.mma_async d, a, b, add, signs of a and b, transposition of a (unless in registers) and b; and
// its fence, commit and wait.
func buildProduct(b *builder, in *instruction) {
	in.kind = together
	if b.k.arch != "sm_90a" { // later architectures do not have it either
		b.fail(fmt.Errorf("%s is an instruction of sm_90a, and the text is for %s", b.opcode, b.k.arch))
	}
	switch b.opcode {
	case "wgmma.fence.sync.aligned":
		in.run = func(w *warp, set uint32) { w.step(set, 0, 0, false); w.fences++ }
	case "wgmma.commit_group.sync.aligned":
		in.run = func(w *warp, set uint32) { w.step(set, 0, 0, false); w.commits = append(w.commits, w.begun) }
	case "wgmma.wait_group.sync.aligned":
		n := b.literal(0)
		in.run = func(w *warp, set uint32) { w.step(set, 0, 0, false); w.await(n) }
	default:
		p := b.product()
		in.run = func(w *warp, set uint32) { w.product(p, set) }
	}
}

// product parses the operands.
func (b *builder) product() *product {
	p := &product{descA: -1}
	shape := productShape.FindStringSubmatch(b.opcode)
	if shape == nil {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
		return p
	}
	p.n, _ = strconv.Atoi(shape[1])
	p.d, p.descB, p.add = b.list(0), b.register(2), b.flag(3)
	signA, signB, turn := b.literal(4), b.literal(5), 6
	if b.operand(1)[0] == '{' {
		p.a = b.list(1)
	} else {
		p.descA, p.turnA = b.register(1), b.bit(turn)
		turn++
	}
	p.turnB, p.sign = b.bit(turn), float64(signA*signB)
	sorted := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(p.d), p.a...))))
	if p.n < 8 || p.n > 256 || p.n%8 != 0 || len(p.d) != p.n/2 || p.descA < 0 && len(p.a) != 4 || len(sorted) != len(p.d)+len(p.a) ||
		len(b.operands) != turn+1 || signA*signA != 1 || signB*signB != 1 {
		b.fail(fmt.Errorf("operands that do not fit %s", b.opcode))
	}
	for name, r := range b.k.names {
		if _, ok := slices.BinarySearch(sorted, r); ok && name[0] == '%' {
			b.k.fragments[r] = name
		}
	}
	return p
}

// bit returns an operand that must be 0 or 1.
func (b *builder) bit(i int) bool {
	n := b.literal(i)
	if n != 0 && n != 1 {
		b.fail(fmt.Errorf("%s is neither 0 nor 1", b.operand(i)))
	}
	return n == 1
}

// buildFence: fence.proxy.async, which makes the thread's writes visible to tensor cores, and fence.acq_rel.gpu,
// which orders accesses to global memory, as they are here.
func buildFence(b *builder, in *instruction) {
	if b.opcode == "fence.acq_rel.gpu" {
		in.run = func(*warp, uint32) {}
		return
	}
	if b.opcode != "fence.proxy.async" && b.opcode != "fence.proxy.async.shared::cta" {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
	}
	in.run = func(w *warp, set uint32) {
		for l := range lanes(set) {
			w.proxies[l] = append(w.proxies[l], w.block.epoch)
		}
	}
}

// step checks that the warps of a group execute the same instruction with the same values, and returns the shared
// record.
func (w *warp) step(set uint32, a, b uint64, add bool) *step {
	w.complete(set)
	group := w.first / 128
	if len(w.warps) < 4*group+4 {
		w.fail("warp %d is not in a group of four", w.first/32)
	}
	list := &w.joint[group]
	if w.steps == len(*list) {
		*list = append(*list, step{at: w.at, a: a, b: b, add: add})
	}
	s := &(*list)[w.steps]
	if s.at != w.at || s.a != a || s.b != b || s.add != add {
		w.fail("warp %d is not where the others of its group were (%s, descriptors %#x and %#x, not %#x and %#x)", w.first/32, s.at.text, s.a, s.b, a, b)
	}
	w.steps++
	return s
}

// await waits until all but the latest n groups have ended.
func (w *warp) await(n int) {
	if i := len(w.commits) - n; i > 0 {
		for ; w.ended < w.commits[i-1]; w.ended++ {
			w.ends = append(w.ends, w.block.epoch)
		}
	}
}

// product executes a product.
func (w *warp) product(p *product, set uint32) {
	var a uint64
	if p.descA >= 0 {
		a = w.same(p.descA)
	}
	b, add := w.same(p.descB), w.flags[p.add]
	if add != 0 && add != ^uint32(0) {
		w.fail("lanes differ in whether they add")
	}
	s := w.step(set, a, b, add != 0)
	w.begun++
	for i, r := range p.d {
		w.hold(r, p.n<<8|i)
	}
	var rows [][16]float64
	if p.descA >= 0 {
		d := w.descriptorOf(a, p.turnA, 64)
		w.take(&d, 64)
		rows = w.lines(&d, w.first/32%4*16, 16)
	} else {
		rows = w.fragment(p.a)
	}
	d := w.descriptorOf(b, p.turnB, p.n)
	w.take(&d, p.n)
	if s.columns == nil {
		s.columns = w.lines(&d, 0, p.n)
	}
	w.multiply(p, rows, s.columns, add != 0)
	if s.warps++; s.warps == 4 {
		s.columns = nil
	}
}

// same returns the value of a register, which must be the same in all lanes.
func (w *warp) same(r int) uint64 {
	v := &w.registers[r]
	for _, x := range v {
		if x != v[0] {
			w.fail("lanes have different descriptors (%#x and %#x)", v[0], x)
		}
	}
	return v[0]
}

// hold assigns a register to the product that starts.
func (w *warp) hold(r, role int) {
	h := &w.holds[r]
	used := h.touched
	if h.product > 0 && h.role != role {
		if h.product > w.ended {
			w.fail("%s has another place in a product that was not waited for", w.kernel.fragments[r])
		}
		used = max(used, h.began)
	}
	if used >= w.fences {
		w.fail("%s was used, and no wgmma.fence executed since", w.kernel.fragments[r])
	}
	h.product, h.began, h.role = w.begun, w.fences, role
}

// touch records and checks that another instruction uses registers of products.
func (w *warp) touch(registers []int) {
	for _, r := range registers {
		h := &w.holds[r]
		if h.product > w.ended {
			w.fail("%s belongs to a product that was not waited for", w.kernel.fragments[r])
		}
		h.touched = w.fences
	}
}

// fragment returns 16 rows of a from registers, in the layout of mma.m16n8k16.
func (w *warp) fragment(a []int) [][16]float64 {
	rows := make([][16]float64, 16)
	for i, r := range a {
		w.hold(r, -1)
		for l, v := range w.registers[r] {
			for e := range 2 {
				rows[l/4+8*(i%2)][l%4*2+e+8*(i/2)] = half(v, e)
			}
		}
	}
	return rows
}

// multiply computes d. Register i of a lane is row lane/4, or 8 below it if i/2 is odd, and column 8(i/4) + 2(lane%4)
// + i%2 of the warp's 16 rows of d. Products are exact; their sum with d is rounded toward zero, once.
func (w *warp) multiply(p *product, rows, columns [][16]float64, add bool) {
	for i, r := range p.d {
		d := &w.registers[r]
		for l := range d {
			row, column := &rows[l/4+8*(i/2%2)], &columns[8*(i/4)+l%4*2+i%2]
			var sum float64
			for k, x := range row {
				sum += x * column[k]
			}
			sum *= p.sign
			if add {
				sum += float64(f32(d[l]))
			}
			d[l] = bits32(towardZero(sum))
		}
	}
}

// take records and checks that the product that starts reads a matrix of n rows or columns.
func (w *warp) take(d *descriptor, n int) {
	for _, at := range d.pieces(0, n) {
		if at+16 > uint64(len(w.shared)) {
			w.fail("a product reads bytes %d to %d of %d of shared memory", at, at+16, len(w.shared))
		}
		for i := at / 2; i < at/2+8; i++ {
			if m := &w.marks[i]; i == at/2 || *m != w.marks[i-1] {
				w.takes(m, i*2)
			}
		}
		w.taken[int(at/16)*len(w.warps)+w.first/32] = w.begun
	}
}

func (w *warp) takes(m *mark, at uint64) {
	u := int(m.writer) - 1
	switch {
	case m.underWay:
		w.fail("a product reads byte %d of shared memory, to which a copy of thread %d is under way", at, u)
	case m.writer == 0:
		w.fail("a product reads byte %d of shared memory, which nobody has written", at)
	case m.wrote == w.block.epoch:
		w.fail("a product reads byte %d of shared memory, which thread %d wrote without a barrier between", at, u)
	}
	if fences := w.warps[u/32].proxies[u%32]; int(m.fences) < len(fences) && fences[m.fences] < w.block.epoch {
		return
	}
	if w.fencedSince(m.wrote) {
		return
	}
	w.fail("a product reads byte %d of shared memory, and after thread %d wrote it neither that one executed fence.proxy.async before the barrier nor warp %d behind it", at, u, w.first/32)
}

// fencedSince reports whether all lanes have executed fence.proxy.async in a later epoch.
func (w *warp) fencedSince(epoch int32) bool {
	for _, list := range w.proxies {
		if len(list) == 0 || list[len(list)-1] <= epoch {
			return false
		}
	}
	return true
}

// untaken fails if products may still read the bytes that a lane writes.
func (w *warp) untaken(at uint64, size, lane int) {
	for c := at / 16; c <= (at+uint64(size)-1)/16; c++ {
		for i, product := range w.taken[int(c)*len(w.warps):][:len(w.warps)] {
			switch v := w.warps[i]; {
			case product == 0:
			case product > v.ended:
				w.fail("thread %d writes byte %d of shared memory, which a product reads that warp %d did not wait for", w.first+lane, at, i)
			case v.ends[product-1] == w.block.epoch:
				w.fail("thread %d writes byte %d of shared memory, which a product of warp %d has read since the last barrier", w.first+lane, at, i)
			}
		}
	}
}

// awaited fails if a block ends before its products.
func (b *block) awaited() {
	for _, w := range b.warps {
		if w.begun > w.ended {
			b.fail("warp %d does not wait for its products", w.first/32)
		}
		if n := len(b.joint[w.first/128]); w.steps != n {
			b.fail("warp %d ends after %d instructions of its group, others after %d", w.first/32, w.steps, n)
		}
	}
}
