package ptx

// Execution of a block's threads.
//
// Each lane has its own program counter. The lanes at a warp's earliest instruction run
// together until they diverge or reach another lane's instruction. So diverged lanes
// reconverge where their paths join, since code is mostly laid out in that order.
// Correctness does not depend on that: a warp-wide instruction makes lanes wait for all
// lanes of the warp, and a barrier for all threads of the block. If lanes wait for each
// other at different instructions, the launch fails.
//
// For example, in `if (lane < 4) x = a; else x = b; y = shuffle(x)` lanes 0 to 3 run their
// branch, then the others theirs, and all meet at the shuffle.
//
// Blocks run one after the other. If one sleeps (nanosleep), which is how blocks wait for
// others, the next one runs meanwhile, so in descending order a block may have to wait for all
// that it depends on.
//
// Known weakness: warps run one after the other from barrier to barrier, so they are never
// interleaved in between. The bookkeeping in memory.go checks that the contents of shared
// memory do not depend on that.

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Span is a range of memory that a launch may access.
type Span struct {
	At, Bytes uintptr
}

// Launch has the arguments of cuLaunchKernel. Memory lists all allocations that the card
// can access.
type Launch struct {
	Grid, Block [3]uint32
	Shared      uint32
	Args        []byte
	Memory      []Span
	// Descending runs blocks, and a block's warps, from the last to the first.
	Descending bool
	// Traffic enables counting of memory accesses, which takes a third of the time.
	Traffic bool
}

// most limits the warp instructions of a block, so that infinite loops end.
const most = 1 << 28

// patience is how often a block may sleep when no other block is left to run.
const patience = 1000

// grid is a launch under way.
type grid struct {
	kernel *kernel
	launch *Launch
	counts *Counts
	begun  int      // number of blocks that have begun
	now    *block   // the one that runs
	spare  []*block // blocks that have ended, whose memory the next ones use
}

// block is the state that the warps of a block share.
type block struct {
	*grid
	index  [3]uint32
	shared []byte
	// marks has the last accesses to every two bytes of shared memory.
	marks  []mark
	epoch  int32 // barriers so far
	warps  []*warp
	copies [][]pending // of each thread, in flight
	groups []int       // number of groups of copies that each thread has committed
	// taken has, for every 16 bytes of shared memory and each warp, the warp's latest
	// product that read them; nil in a kernel without products. joint has the steps that
	// each group of four warps executed together.
	taken []int32
	joint [][]step
	at    *instruction
	left  int
	slept int  // number of times that it slept in vain
	span  Span // the latest one used
}

// warp is 32 lanes. Sets of lanes are bit masks.
type warp struct {
	*block
	first     int // number of its first thread
	registers [][32]uint64
	flags     []uint32
	place     [32]int
	all       uint32 // lanes that have not exited
	parked    uint32 // lanes that wait for the other lanes
	resting   uint32 // lanes that wait for the other warps
	epoch     int32  // number of times that the warp's lanes synchronised
	stored    int32  // the block's epoch when a lane last stored to global memory
	products
}

// fault stops a launch.
type fault struct{ error }

func (b *block) fail(format string, args ...any) { panic(fault{fmt.Errorf(format, args...)}) }

// Run executes a launch and returns its costs.
func (m *Module) Run(name string, l Launch) (counts Counts, err error) {
	k := m.kernels[name]
	threads := int(l.Block[0])
	switch {
	case k == nil:
		return counts, fmt.Errorf("no kernel %s", name)
	case len(l.Args) != k.params:
		return counts, fmt.Errorf("kernel %s takes %d bytes of arguments, not %d", name, k.params, len(l.Args))
	case threads == 0 || l.Block[1] != 1 || l.Block[2] != 1 || threads > 1024 || k.threads > 0 && threads > k.threads:
		return counts, fmt.Errorf("kernel %s cannot have blocks of %v threads (at most %d)", name, l.Block, k.threads)
	}
	g := &grid{kernel: k, launch: &l, counts: &counts}
	counts.hits = make([]int64, len(k.code))
	counts.code = k.code
	counts.Blocks, counts.Threads = int64(l.Grid[0])*int64(l.Grid[1])*int64(l.Grid[2]), threads
	defer func() {
		if r := recover(); r != nil {
			where := fmt.Sprintf("kernel %s, block %v", name, g.now.index)
			if g.now.at != nil {
				where += ", " + g.now.at.text
			}
			err = fmt.Errorf("%s: %v", where, r)
		}
	}()
	for g.next() {
	}
	return counts, nil
}

// next runs the next block and reports whether there was one.
func (g *grid) next() bool {
	i, x, y := g.begun, int(g.launch.Grid[0]), int(g.launch.Grid[1])
	if i == int(g.counts.Blocks) {
		return false
	}
	g.begun++
	if g.launch.Descending {
		i = int(g.counts.Blocks) - 1 - i
	}
	if len(g.spare) == 0 {
		g.spare = append(g.spare, g.block())
	}
	b, last := g.spare[len(g.spare)-1], g.now
	g.spare = g.spare[:len(g.spare)-1]
	b.index = [3]uint32{uint32(i % x), uint32(i / x % y), uint32(i / x / y)}
	g.now = b
	b.run(int(g.launch.Block[0]))
	g.spare = append(g.spare, b)
	if last != nil {
		g.now = last
	}
	return true
}

// block returns a block's memory.
func (g *grid) block() *block {
	k, threads := g.kernel, int(g.launch.Block[0])
	b := &block{grid: g, shared: make([]byte, (k.static+15)&^15+int(g.launch.Shared))}
	b.marks, b.groups, b.copies = make([]mark, (len(b.shared)+1)/2), make([]int, threads), make([][]pending, threads)
	for t := 0; t < threads; t += 32 {
		b.warps = append(b.warps, &warp{block: b, first: t, registers: make([][32]uint64, k.registers), flags: make([]uint32, k.flags)})
	}
	if len(k.fragments) > 0 {
		b.taken = make([]int32, (len(b.shared)+15)/16*len(b.warps))
		for _, w := range b.warps {
			w.holds = make([]hold, k.registers)
		}
	}
	return b
}

// sleep runs another block.
func (b *block) sleep() {
	if b.next() {
		return
	}
	if b.slept++; b.slept > patience {
		b.fail("it waits for another block, and none is left to run")
	}
}

// run runs one block.
func (b *block) run(threads int) {
	for i := range b.shared {
		b.shared[i] = 0xff // NaN in every type
	}
	clear(b.marks)
	clear(b.groups)
	clear(b.taken)
	b.joint = make([][]step, (len(b.warps)+3)/4)
	b.epoch, b.left, b.slept = 1, most, 0
	for _, w := range b.warps {
		w.start(min(32, threads-w.first))
	}
	for {
		for i := range b.warps {
			if b.launch.Descending {
				i = len(b.warps) - 1 - i
			}
			b.warps[i].run()
		}
		if !b.release() {
			break
		}
	}
	for t, list := range b.copies {
		if len(list) > 0 {
			b.fail("thread %d does not wait for its copies", t)
		}
	}
	b.awaited()
}

// release resumes the warps that wait for the block and reports whether there were any.
// Before that it evaluates the barrier's vote, if any, once.
func (b *block) release() bool {
	var waiting []*warp
	for _, w := range b.warps {
		if w.resting != 0 {
			waiting = append(waiting, w)
		}
	}
	if len(waiting) == 0 {
		return false
	}
	b.epoch++
	b.vote(waiting)
	for _, w := range waiting {
		for l := range lanes(w.resting) {
			w.place[l]++
		}
		w.resting = 0
		w.epoch++
	}
	return true
}

// start sets n lanes to the first instruction.
func (w *warp) start(n int) {
	w.all, w.parked, w.resting, w.epoch, w.stored = uint32(1<<n-1), 0, 0, 1, 0
	clear(w.place[:])
	clear(w.holds)
	w.products = products{holds: w.holds}
	for r, v := range w.kernel.constants {
		for l := range w.registers[r] {
			w.registers[r][l] = v
		}
	}
	if f, ok := w.kernel.names["true"]; ok {
		w.flags[f] = ^uint32(0)
	}
	b, g := w.launch.Block, w.launch.Grid
	for r, name := range w.kernel.specials {
		v, ok := map[string]uint32{"%ctaid.x": w.index[0], "%ctaid.y": w.index[1], "%ctaid.z": w.index[2],
			"%nctaid.x": g[0], "%nctaid.y": g[1], "%nctaid.z": g[2], "%ntid.x": b[0], "%ntid.y": 1, "%ntid.z": 1,
			"%tid.x": uint32(w.first), "%tid.y": 0, "%tid.z": 0, "%warpid": uint32(w.first / 32), "%laneid": 0}[name]
		if !ok {
			w.fail("unknown register %s", name)
		}
		for l := range w.registers[r] {
			w.registers[r][l] = uint64(v)
			if name == "%tid.x" || name == "%laneid" {
				w.registers[r][l] += uint64(l)
			}
		}
	}
}

// run executes the warp until every lane has exited or waits for the block.
func (w *warp) run() {
	for {
		ready := w.all &^ w.parked &^ w.resting
		if ready == 0 {
			if w.parked == 0 {
				return
			}
			w.meet()
			continue
		}
		w.advance(ready)
	}
}

// earliest returns the earliest place of the ready lanes, the lanes there, and the next
// place of the others (the end of the code if there are none).
func (w *warp) earliest(ready uint32) (place int, group uint32, next int) {
	place, next = len(w.kernel.code), len(w.kernel.code)
	for l := range lanes(ready) {
		switch p := w.place[l]; {
		case p < place:
			place, next, group = p, place, 1<<l
		case p == place:
			group |= 1 << l
		default:
			next = min(next, p)
		}
	}
	return place, group, next
}

// fetch returns the instruction at place, and counts it.
func (w *warp) fetch(place int) *instruction {
	if place >= len(w.kernel.code) {
		w.fail("the code ends without a return")
	}
	w.at = &w.kernel.code[place]
	if w.left--; w.left < 0 {
		w.fail("more than %d instructions", most)
	}
	w.counts.hits[place]++
	return w.at
}

// selected returns the lanes of group that an instruction's guard selects.
func (w *warp) selected(in *instruction, group uint32) uint32 {
	switch {
	case in.guard < 0:
		return group
	case in.unless:
		return group &^ w.flags[in.guard]
	}
	return group & w.flags[in.guard]
}

// advance runs the lanes at the earliest instruction until they diverge, reach the
// instruction of others, or wait.
func (w *warp) advance(ready uint32) {
	place, group, next := w.earliest(ready)
	for done := false; !done; done = done || place >= next {
		in := w.fetch(place)
		sel := w.selected(in, group)
		switch in.kind {
		case plain:
			if sel != 0 {
				in.execute(w, sel)
			}
			place++
		case branch:
			if sel == group {
				place = in.target
				done = next < len(w.kernel.code) // another lane may be at an earlier instruction
				break
			}
			if sel != 0 {
				w.settle(group, place+1)
				w.settle(sel, in.target)
				return
			}
			place++
		case exit:
			w.all &^= sel
			group &^= sel
			place++
			done = group == 0
		case together:
			w.requireAllLanes(in, sel, group)
			if group != w.all {
				w.parked |= group
				w.settle(group, place)
				return
			}
			in.execute(w, group)
			place++
		case barrier:
			w.requireAllLanes(in, sel, group)
			w.resting |= group
			w.settle(group, place)
			return
		}
	}
	w.settle(group, place)
}

// execute runs the instruction; see touch for its fragments.
func (in *instruction) execute(w *warp, set uint32) {
	if len(in.fragments) > 0 {
		w.touch(in.fragments)
	}
	in.run(w, set)
}

// requireAllLanes fails if an instruction at which threads wait is predicated off for some lanes.
func (w *warp) requireAllLanes(in *instruction, sel, group uint32) {
	if sel != group {
		w.fail("only some of the lanes that are here take part")
	}
}

func (w *warp) settle(group uint32, place int) {
	for l := range lanes(group) {
		w.place[l] = place
	}
}

// meet executes the instruction that all lanes wait at.
func (w *warp) meet() {
	place := w.place[bits.TrailingZeros32(w.parked)]
	in := &w.kernel.code[place]
	w.at = in
	for l := range lanes(w.parked) {
		if w.place[l] != place {
			w.fail("other lanes wait for the warp at %s", w.kernel.code[w.place[l]].text)
		}
	}
	if w.parked != w.all {
		w.fail("lanes %#x wait for lanes that wait at a barrier", w.parked)
	}
	in.execute(w, w.parked)
	w.settle(w.parked, place+1)
	w.parked = 0
}

// lanes iterates over a set.
func lanes(set uint32) func(func(int) bool) {
	return func(yield func(int) bool) {
		for ; set != 0; set &= set - 1 {
			if !yield(bits.TrailingZeros32(set)) {
				return
			}
		}
	}
}

// arguments returns an element of the kernel's arguments.
func (b *block) arguments(at uint64, size int) uint64 {
	if at+uint64(size) > uint64(len(b.launch.Args)) || at%uint64(size) != 0 {
		b.fail("argument at byte %d", at)
	}
	var x [8]byte
	copy(x[:], b.launch.Args[at:at+uint64(size)])
	return binary.LittleEndian.Uint64(x[:])
}
