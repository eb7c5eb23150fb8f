package ptx

import (
	"fmt"
	"math/bits"
)

// builders set an instruction's run function, by the first part of its opcode.
var builders = table()

// arithmetic holds the result of scalars.
var arithmetic = scalars()

func table() map[string]func(*builder, *instruction) {
	t := map[string]func(*builder, *instruction){
		"bra": buildBranch, "ret": func(_ *builder, in *instruction) { in.kind = exit },
		"setp": buildSetp, "selp": buildSelp, "mov": buildMov, "cvta": buildCvta, "bfi": buildBfi,
		"ld": buildLoad, "st": buildStore, "cp": buildCopy, "ldmatrix": buildLdmatrix, "mma": buildMma,
		"shfl": buildShuffle, "vote": buildBallot, "bar": buildBar, "wgmma": buildProduct, "fence": buildFence, "setmaxnreg": buildMaxRegisters, "nanosleep": buildSleep,
	}
	for _, name := range []string{"add", "sub", "mul", "mad", "div", "rem", "min", "max", "neg", "abs", "fma", "shl", "shr",
		"and", "or", "xor", "not", "popc", "bfe", "prmt", "cvt", "ex2", "rcp", "rsqrt", "sqrt", "copysign"} {
		t[name] = buildScalar
	}
	return t
}

func buildBranch(b *builder, in *instruction) {
	in.kind, in.label = branch, b.operand(0)
}

// buildScalar: d = f(a, b, c), on registers or flags.
func buildScalar(b *builder, in *instruction) {
	if b.last() == "pred" {
		buildFlags(b, in)
		return
	}
	o, ok := arithmetic[b.opcode]
	if !ok || len(b.operands) != 1+o.operands {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
		return
	}
	var r [4]int
	for i := range 1 + o.operands {
		r[i] = b.register(i)
	}
	for i := 1 + o.operands; i < 4; i++ {
		r[i] = r[0]
	}
	run := o.run
	in.run = func(w *warp, set uint32) {
		run(&w.registers[r[0]], &w.registers[r[1]], &w.registers[r[2]], &w.registers[r[3]], set)
	}
}

// buildFlags: operations on predicates.
func buildFlags(b *builder, in *instruction) {
	f, ok := map[string]func(x, y uint32) uint32{
		"and": func(x, y uint32) uint32 { return x & y }, "or": func(x, y uint32) uint32 { return x | y },
		"xor": func(x, y uint32) uint32 { return x ^ y }, "not": func(x, _ uint32) uint32 { return ^x },
		"mov": func(x, _ uint32) uint32 { return x },
	}[b.parts[0]]
	if !ok {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
		return
	}
	d, x := b.flag(0), b.flag(1)
	y := x
	if len(b.operands) > 2 {
		y = b.flag(2)
	}
	in.run = func(w *warp, set uint32) { w.flags[d] = w.flags[d]&^set | f(w.flags[x], w.flags[y])&set }
}

// buildSetp: setp.cmp.type p, a, b.
func buildSetp(b *builder, in *instruction) {
	f := compare(b.parts[1], b.last())
	if f == nil || len(b.parts) != 3 || len(b.operands) != 3 {
		b.fail(fmt.Errorf("unknown comparison %s", b.opcode))
		return
	}
	p, x, y := b.flag(0), b.register(1), b.register(2)
	in.run = func(w *warp, set uint32) {
		var r uint32
		for l := range lanes(set) {
			if f(w.registers[x][l], w.registers[y][l]) {
				r |= 1 << l
			}
		}
		w.flags[p] = w.flags[p]&^set | r
	}
}

// buildSelp: d = p ? a : b.
func buildSelp(b *builder, in *instruction) {
	d, x, y, p := b.register(0), b.register(1), b.register(2), b.flag(3)
	in.run = func(w *warp, set uint32) {
		for l := range lanes(set) {
			v := w.registers[y][l]
			if w.flags[p]>>l&1 != 0 {
				v = w.registers[x][l]
			}
			w.registers[d][l] = v
		}
	}
}

// buildMov: moves a register or a flag, or packs or unpacks a pair.
func buildMov(b *builder, in *instruction) {
	size := sizeOf(b.last())
	to, from := b.operand(0), b.operand(1)
	switch {
	case b.last() == "pred":
		buildFlags(b, in)
	case to[0] == '{':
		d, x := b.list(0), b.register(1)
		width := 8 * size / len(d)
		in.run = func(w *warp, set uint32) {
			for l := range lanes(set) {
				v := w.registers[x][l]
				for i, r := range d {
					w.registers[r][l] = v >> (i * width) & (1<<width - 1)
				}
			}
		}
	case from[0] == '{':
		d, x := b.register(0), b.list(1)
		width := 8 * size / len(x)
		in.run = func(w *warp, set uint32) {
			for l := range lanes(set) {
				var v uint64
				for i, r := range x {
					v |= w.registers[r][l] & (1<<width - 1) << (i * width)
				}
				w.registers[d][l] = v
			}
		}
	default:
		buildScalar(b, in)
	}
}

// buildCvta: addresses of global memory are the same in both forms.
func buildCvta(b *builder, in *instruction) {
	if b.opcode != "cvta.to.global.u64" && b.opcode != "cvta.global.u64" {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
	}
	d, x := b.register(0), b.register(1)
	in.run = func(w *warp, set uint32) {
		for l := range lanes(set) {
			w.registers[d][l] = w.registers[x][l]
		}
	}
}

// buildBfi: inserts the low n bits of a into b at a position, in words of 32 or 64 bits.
func buildBfi(b *builder, in *instruction) {
	d, x, y, at, n := b.register(0), b.register(1), b.register(2), b.register(3), b.register(4)
	whole := ^uint64(0) >> (64 - 8*sizeOf(b.last()))
	in.run = func(w *warp, set uint32) {
		for l := range lanes(set) {
			at, n := w.registers[at][l]&255, w.registers[n][l]&255
			mask := (uint64(1)<<n - 1) << at // 1<<64 is 0: then all bits
			w.registers[d][l] = (w.registers[y][l]&^mask | w.registers[x][l]<<at&mask) & whole
		}
	}
}

// access returns the space, the size of an element and its signedness, for loads and
// stores.
func (b *builder) access() (s space, size int, signed bool) {
	switch {
	case b.has("global"), len(b.parts) == 2 || b.parts[1][0] == 'v': // generic; nothing here makes generic addresses of shared memory
		s = global
	case b.has("shared"):
		s = shared
	case b.has("param"):
		s = param
	default:
		b.fail(fmt.Errorf("%s has no space that is known", b.opcode))
	}
	size = sizeOf(b.last())
	if size == 0 {
		b.fail(fmt.Errorf("%s has no type that is known", b.opcode))
	}
	return s, size, b.last()[0] == 's'
}

// buildLoad: ld.space{.vN}.type d, [a].
func buildLoad(b *builder, in *instruction) {
	s, size, signed := b.access()
	d, a := b.list(0), b.address(1)
	shift := 64 - 8*size
	value := func(v uint64) uint64 {
		if signed {
			return uint64(int64(v<<shift) >> shift)
		}
		return v
	}
	in.run = func(w *warp, set uint32) {
		base := &w.registers[a.base]
		if s == param {
			for l := range lanes(set) {
				for i, r := range d {
					w.registers[r][l] = value(w.arguments(base[l]+a.offset+uint64(i*size), size))
				}
			}
			return
		}
		w.counts.access(w, s, base, a.offset, size*len(d), set)
		for l := range lanes(set) {
			p := w.locate(s, base[l]+a.offset, size*len(d), l, false)
			for i, r := range d {
				w.registers[r][l] = value(element(p, i, size))
			}
		}
	}
}

// buildStore: st.space{.vN}.type [a], x.
func buildStore(b *builder, in *instruction) {
	s, size, _ := b.access()
	a, x := b.address(0), b.list(1)
	if s == param {
		b.fail(fmt.Errorf("arguments are not written"))
	}
	release := b.has("release")
	in.run = func(w *warp, set uint32) {
		base := &w.registers[a.base]
		w.counts.access(w, s, base, a.offset, size*len(x), set)
		switch {
		case release:
			w.publish()
		case s == global:
			w.stored = w.block.epoch
		}
		for l := range lanes(set) {
			p := w.locate(s, base[l]+a.offset, size*len(x), l, true)
			for i, r := range x {
				setElement(p, i, size, w.registers[r][l])
			}
		}
	}
}

// buildSleep: nanosleep.u32 t.
func buildSleep(b *builder, in *instruction) {
	b.register(0)
	in.run = func(w *warp, set uint32) { w.sleep() }
}

// buildCopy: cp.async.{ca,cg}.shared.global [to], [from], size{, bytes}, and its waits.
func buildCopy(b *builder, in *instruction) {
	switch b.opcode {
	case "cp.async.commit_group":
		in.run = func(w *warp, set uint32) {
			for l := range lanes(set) {
				w.groups[w.first+l]++
			}
		}
	case "cp.async.wait_group", "cp.async.wait_all":
		n := 0
		if len(b.operands) > 0 {
			n = b.literal(0)
		}
		in.run = func(w *warp, set uint32) {
			for l := range lanes(set) {
				w.land(n, l)
			}
		}
	case "cp.async.ca.shared.global", "cp.async.cg.shared.global":
		to, from := b.address(0), b.address(1)
		size := b.literal(2)
		if size != 4 && size != 8 && size != 16 || b.parts[2] == "cg" && size != 16 {
			b.fail(fmt.Errorf("%s of %d bytes", b.opcode, size))
		}
		bytes := b.register(2)
		if len(b.operands) > 3 {
			bytes = b.register(3)
		}
		in.run = func(w *warp, set uint32) {
			w.counts.access(w, shared, &w.registers[to.base], to.offset, size, set)
			var there uint32
			for l := range lanes(set) {
				n := int(int32(w.registers[bytes][l]))
				w.issue(w.registers[to.base][l]+to.offset, w.registers[from.base][l]+from.offset, size, n, l)
				if n > 0 {
					there |= 1 << l
				}
			}
			w.counts.access(w, global, &w.registers[from.base], from.offset, size, there)
		}
	default:
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
	}
}

// buildMaxRegisters: setmaxnreg.inc.sync.aligned.u32 n, .dec: the number of registers does not matter
// here.
func buildMaxRegisters(b *builder, in *instruction) {
	b.literal(0)
	in.kind = together
	in.run = func(*warp, uint32) {}
}

// buildBar: bar.sync 0, bar.red.or.pred p, 0, q, bar.warp.sync.
func buildBar(b *builder, in *instruction) {
	switch b.opcode {
	case "bar.sync":
		in.kind = barrier
	case "bar.red.or.pred":
		in.kind, in.vote = barrier, &vote{from: b.flag(2), to: b.flag(0)}
	case "bar.warp.sync":
		in.kind = together
		member := b.register(0)
		in.run = func(w *warp, set uint32) {
			w.members(member, set)
			w.epoch++
		}
	default:
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
	}
}

// vote gives the threads that wait at a barrier the result of their vote.
func (b *block) vote(waiting []*warp) {
	any, voters, threads := false, 0, 0
	each := func(f func(w *warp, l int, v *vote)) {
		for _, w := range waiting {
			for l := range lanes(w.resting) {
				f(w, l, w.kernel.code[w.place[l]].vote)
			}
		}
	}
	each(func(w *warp, l int, v *vote) {
		threads++
		if v != nil {
			voters++
			any = any || w.flags[v.from]>>l&1 != 0
		}
	})
	if voters != 0 && voters != threads {
		b.fail("%d of %d threads vote at a barrier", voters, threads)
	}
	if voters == 0 {
		return
	}
	each(func(w *warp, l int, v *vote) {
		w.flags[v.to] &^= 1 << l
		if any {
			w.flags[v.to] |= 1 << l
		}
	})
}

// members checks that the member mask in register r matches the lanes in set.
func (w *warp) members(r int, set uint32) {
	for l := range lanes(set) {
		if m := uint32(w.registers[r][l]); m&w.all != set || m&^w.all != 0 && m != 0xffffffff {
			w.fail("lanes %#x are meant, %#x are there", m, set)
		}
	}
}

// buildBallot: vote.sync.ballot.b32 d, p, members.
func buildBallot(b *builder, in *instruction) {
	if b.opcode != "vote.sync.ballot.b32" {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
	}
	in.kind = together
	d, p, member := b.register(0), b.flag(1), b.register(2)
	in.run = func(w *warp, set uint32) {
		w.members(member, set)
		for l := range lanes(set) {
			w.registers[d][l] = uint64(w.flags[p] & set)
		}
	}
}

// buildShuffle: shfl.sync.{bfly,idx}.b32 d|p, a, b, c, members.
func buildShuffle(b *builder, in *instruction) {
	source, ok := map[string]func(lane, b uint32) uint32{
		"shfl.sync.bfly.b32": func(lane, b uint32) uint32 { return lane ^ b },
		"shfl.sync.idx.b32":  func(_, b uint32) uint32 { return b },
	}[b.opcode]
	if !ok {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
		return
	}
	in.kind = together
	to, there := b.pair(0)
	x, y, clamp, member := b.register(1), b.register(2), b.register(3), b.register(4)
	in.run = func(w *warp, set uint32) {
		w.members(member, set)
		from := w.registers[x]
		for l := range lanes(set) {
			if c := w.registers[clamp][l]; c != 31 {
				w.fail("a shuffle within parts of a warp (%d)", c)
			}
			at := source(uint32(l), uint32(w.registers[y][l])&31)
			if set>>at&1 == 0 {
				w.fail("thread %d shuffles with lane %d, which is not there", w.first+l, at)
			}
			w.registers[to][l] = from[at]
			if there >= 0 {
				w.flags[there] |= 1 << l
			}
		}
	}
}

// pair returns the operand d|p; p is -1 if absent.
func (b *builder) pair(i int) (register, flag int) {
	s := b.operand(i)
	for j := range s {
		if s[j] == '|' {
			r, err := b.k.register(s[:j])
			b.fail(err)
			f, err := b.k.flag(s[j+1:])
			b.fail(err)
			return r, f
		}
	}
	return b.register(i), -1
}

// buildLdmatrix: four 8 x 8 tiles of 16-bit elements. Lanes 8i to 8i+7 give the
// addresses of the rows of tile i; lane l gets elements 2(l%4) and 2(l%4)+1 of row
// l/4 of each, or with .trans of its column l/4.
func buildLdmatrix(b *builder, in *instruction) {
	turned := b.opcode == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
	if !turned && b.opcode != "ldmatrix.sync.aligned.m8n8.x4.shared.b16" {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
	}
	in.kind = together
	d, a := b.list(0), b.address(1)
	in.run = func(w *warp, set uint32) {
		w.complete(set)
		base := &w.registers[a.base]
		w.counts.access(w, shared, base, a.offset, 16, set)
		var tile [4][8][8]uint64
		for l := range 32 {
			p := w.locate(shared, uint64(uint32(base[l]))+a.offset, 16, l, false)
			for e := range 8 {
				tile[l/8][l%8][e] = element(p, e, 2)
			}
		}
		for l := range 32 {
			row, col := l/4, l%4*2
			for i, r := range d {
				if turned {
					w.registers[r][l] = tile[i][col][row] | tile[i][col+1][row]<<16
				} else {
					w.registers[r][l] = tile[i][row][col] | tile[i][row][col+1]<<16
				}
			}
		}
	}
}

// buildMma: d = a b + c with a of 16 x 16 and b of 16 x 8 elements in bf16, sums in fp32.
// The fragments are those of the PTX ISA, "Matrix fragments for mma.m16n8k16 with floating
// point type": with g = lane/4 and t = lane%4, element i of a lane is
//
//	a: row g (+8 where i is 2, 3, 6, 7), column 2t + i%2 (+8 from i = 4 on)
//	b: row 2t + i%2 (+8 from i = 2 on), column g
//	c: row g (+8 from i = 2 on), column 2t + i%2
//
// Products are exact; their sum with c is rounded toward zero, once.
func buildMma(b *builder, in *instruction) {
	if b.opcode != "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" {
		b.fail(fmt.Errorf("unknown instruction %s", b.opcode))
	}
	in.kind = together
	d, fa, fb, fc := b.list(0), b.list(1), b.list(2), b.list(3)
	in.run = func(w *warp, set uint32) {
		w.complete(set)
		var x [16][16]float64
		var y [8][16]float64 // transposed
		for l := range 32 {
			g, t := l/4, l%4
			for i := range 8 {
				x[g+8*(i/2%2)][2*t+i%2+8*(i/4)] = half(w.registers[fa[i/2]][l], i%2)
			}
			for i := range 4 {
				y[g][2*t+i%2+8*(i/2)] = half(w.registers[fb[i/2]][l], i%2)
			}
		}
		for l := range 32 {
			g, t := l/4, l%4
			var sums [4]uint64
			for i := range 4 {
				row, col := &x[g+8*(i/2)], &y[2*t+i%2]
				sum := float64(f32(w.registers[fc[i]][l]))
				for k := range 16 {
					sum += row[k] * col[k]
				}
				sums[i] = bits32(towardZero(sum))
			}
			for i, r := range d {
				w.registers[r][l] = sums[i]
			}
		}
	}
}

// half returns the lower or upper bf16 of a word.
func half(word uint64, upper int) float64 {
	if upper == 1 {
		return float64(f32(word & 0xffff0000))
	}
	return float64(f32(word << 16 & 0xffff0000))
}

// complete fails unless the whole warp takes part.
func (w *warp) complete(set uint32) {
	if set != 0xffffffff {
		w.fail("only %d lanes are there", bits.OnesCount32(set))
	}
}
