package cuda

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
)

// Calls over wires. Nothing but bytes goes over them: what is to be summed is sent whole to whoever sums it, piece by piece,
// and added by our own kernel in the group's order, so the bits are those of ranks in one process.
//
//	all_gather      every part to everybody
//	reduce_scatter  round by round: a piece of every part to whoever has it; then its sum
//	all_reduce      a reduce_scatter of equal parts in place, and an all_gather of them
//	all_to_all      round by round: some rows of a block for everybody, packed
//	send, recv      the matrix; rows with gaps between them, packed
//
// A round is one group of NCCL, so within it nobody waits for another's order. All members make the same rounds, which
// follow from the calls' operands that all of them know. NCCL makes a call's members meet, so they need no flags.
//
// Known weakness: a call's span begins when its stream comes to it, not when all members have arrived.

const (
	roundBytes = stagingBytes / 2 // of staging memory, for sums
	packBytes  = stagingBytes / 4 // for messages with gaps, each way
)

// throughWire runs a call over its wire.
func (w *worker) throughWire(c *call) error {
	e, f := c.exchange, w.d.options.Fabric
	e.wire.using.Lock()
	defer e.wire.using.Unlock()
	if f.down.Load() || e.wire.cut.Load() {
		return f.lostRank()
	}
	if w.times(c) {
		if err := w.ask("cuEventRecord", w.d.driver.EventRecord, c.start, w.streams[c.stream]); err != nil {
			return err
		}
	}
	if err := w.take(e.phases[0].steps); err != nil {
		return err
	}
	w.stats.Network[c.op] += e.received
	return nil
}

// lostRank returns the loss of a rank.
func (f *Fabric) lostRank() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost == nil {
		return errCut
	}
	return f.lost
}

// resolveOver builds the steps of a call over a wire, on the worker.
func (e *exchange) resolveOver(parts []*exchange) error {
	if err := e.device.awaitWires(); err != nil {
		return err
	}
	var list []step
	var err error
	switch e.call.Op {
	case graph.AllGather:
		at := make([]int64, len(parts)+1)
		for i, p := range parts {
			at[i+1] = at[i] + p.sourceBytes()
		}
		list = e.spread(e.src, at)
	case graph.ReduceScatter:
		at := make([]int64, len(parts)+1)
		for i, p := range parts {
			at[i+1] = at[i] + p.call.Args[graph.ReduceScatterDst].Bytes()
		}
		list, err = e.sumOver(e.dst, at, e.call.Attr.Acc)
	case graph.AllReduce:
		at := make([]int64, len(parts)+1)
		for i := range parts {
			lo, n := e.partOf(i, len(parts))
			at[i], at[i+1] = lo, lo+n
		}
		if list, err = e.sumOver(e.dst+uintptr(at[e.member]), at, false); err == nil {
			list = append(list, e.spread(e.dst+uintptr(at[e.member]), at)...)
		}
	case graph.AllToAll:
		list = e.swap()
	case graph.Send:
		list = e.post(parts[1].call.Args[graph.RecvDst], 1)
	case graph.Recv:
		list = e.post(parts[0].call.Args[graph.SendSrc], 0)
	default:
		err = fmt.Errorf("%s does not go over NCCL; hint: set %s=none", e.call.Op, nv.NCCLVariable)
	}
	e.phases = []phase{{steps: list}}
	return err
}

// spread brings every member's part to all. Member i's is from byte at[i] to at[i+1] of the result; this one's is at src.
func (e *exchange) spread(src uintptr, at []int64) []step {
	w, n := e.wire, at[e.member+1]-at[e.member]
	own := e.dst + uintptr(at[e.member])
	equal := true
	for i := range w.ranks {
		equal = equal && at[i+1]-at[i] == n
	}
	if n > 0 && equal && w.shared { // the library sends between hosts only once what several GPUs need
		return []step{w.gather(src, e.dst, n, e.stream)}
	}
	var ops []step
	for i := range w.ranks {
		if i == e.member {
			continue
		}
		if n > 0 {
			ops = append(ops, w.send(i, src, n, e.stream))
		}
		if m := at[i+1] - at[i]; m > 0 {
			ops = append(ops, w.recv(i, e.dst+uintptr(at[i]), m, e.stream))
		}
	}
	return append(w.group(ops), e.fetch(own, e, src, n)...)
}

// sumOver sets dst to the sum of this member's part of all sources, or adds it. Member i's part is from byte at[i] to
// at[i+1].
func (e *exchange) sumOver(dst uintptr, at []int64, acc bool) (list []step, err error) {
	w, members := e.wire, len(e.wire.ranks)
	staging := e.device.peers.staging
	piece := int64(roundBytes/(members+1)) &^ 255 // the partial sum, then one of each member
	longest := int64(0)
	for i := range members {
		longest = max(longest, at[i+1]-at[i])
	}
	mine := at[e.member+1] - at[e.member]
	for lo := int64(0); lo < longest; lo += piece {
		var ops []step
		sources := make([]uintptr, members)
		m := max(0, min(piece, mine-lo))
		for i := range members {
			if i == e.member {
				sources[i] = e.src + uintptr(at[i]+lo)
				continue
			}
			if n := min(piece, at[i+1]-at[i]-lo); n > 0 {
				ops = append(ops, w.send(i, e.src+uintptr(at[i]+lo), n, e.stream))
			}
			if sources[i] = staging + uintptr(piece*int64(1+i)); m > 0 {
				ops = append(ops, w.recv(i, sources[i], m, e.stream))
			}
		}
		list = append(list, w.group(ops)...)
		for m > 0 && len(sources) > 0 {
			k := min(mostSources, len(sources))
			out, last := staging, k == len(sources)
			if last {
				out = dst + uintptr(lo)
			}
			s, err := e.add(out, sources[:k], m, acc && last)
			if err != nil {
				return nil, err
			}
			list = append(list, s)
			if sources = sources[k:]; !last { // at least one is left, and one place for the partial sum
				sources = slices.Concat([]uintptr{staging}, sources)
			}
		}
	}
	return list, nil
}

// post sends a message to a member or receives it, whose operand there is other. Both cut it alike: into as many rows as
// can be packed, or parts of one; without gaps on both sides, not at all.
func (e *exchange) post(other device.Operand, member int) (list []step) {
	w, own := e.wire, e.call.Args[0]
	size := own.DType.Size()
	move := w.recv
	if e.call.Op == graph.Send {
		move = w.send
	}
	if own.Contiguous() && other.Contiguous() {
		if own.Bytes() == 0 {
			return nil
		}
		return w.group([]step{move(member, e.dst, own.Bytes(), e.stream)})
	}
	pack := e.device.peers.staging + roundBytes
	if e.call.Op == graph.Recv {
		pack += packBytes
	}
	width, pitch := int64(own.Cols)*size, int64(own.Stride)*size
	high := max(1, packBytes/max(width, 1))
	for r := int64(0); r < int64(own.Rows); r += high {
		n := min(high, int64(own.Rows)-r)
		for c := int64(0); c < width; c += packBytes {
			m := min(packBytes, width-c)
			at := e.dst + uintptr(r*pitch+c)
			if n == 1 || own.Contiguous() {
				list = append(list, w.group([]step{move(member, at, n*m, e.stream)})...)
				continue
			}
			whole := w.group([]step{move(member, pack, n*m, e.stream)})
			if e.call.Op == graph.Send {
				list = append(append(list, e.rows(pack, at, m, pitch, m, n)), whole...)
			} else {
				list = append(append(list, whole...), e.rows(at, pack, pitch, m, m, n))
			}
		}
	}
	return list
}

// rows copies n rows of a width within this GPU.
func (e *exchange) rows(dst, src uintptr, dstPitch, srcPitch, width, n int64) step {
	return copyRows(e.device.driver, nv.NewCopy2D(dst, src, dstPitch, srcPitch, width, n), e.stream)
}

// swap gives every member its blocks of this one's source, and takes those of the others: round by round some rows of a block
// for each, or a part of one, packed. Blocks have one extent, so all members make the same rounds.
func (e *exchange) swap() (list []step) {
	members := len(e.wire.ranks)
	to, from := &e.call.Args[graph.AllToAllDst], &e.call.Args[graph.AllToAllSrc]
	size, piece := to.DType.Size(), int64(roundBytes/(2*members))&^255
	for k := range 2 {
		src, dst := device.Crossings(&e.call, e.member, e.member)
		width, rows := int64(dst[k].Cols)*size, int64(dst[k].Rows)
		at, pitch := placeOf(to, e.dst, dst[k])
		own, other := placeOf(from, e.src, src[k])
		list = append(list, e.fetchRows(at, e, own, rows, width, pitch, other)...)
		high := max(1, piece/max(width, 1))
		for r := int64(0); r < rows; r += high {
			n := min(high, rows-r)
			for c := int64(0); c < width; c += piece {
				list = append(list, e.swapRound(k, r, c, n, min(piece, width-c), piece)...)
			}
		}
	}
	return list
}

// swapRound exchanges n rows from row r of every member's k-th block, of each m bytes from byte c.
func (e *exchange) swapRound(k int, r, c, n, m, piece int64) []step {
	w := e.wire
	to, from := &e.call.Args[graph.AllToAllDst], &e.call.Args[graph.AllToAllSrc]
	var pack, ops, unpack []step
	for i := range w.ranks {
		if i == e.member {
			continue
		}
		src, _ := device.Crossings(&e.call, e.member, i)
		_, dst := device.Crossings(&e.call, i, e.member)
		out := e.device.peers.staging + uintptr(int64(2*i)*piece)
		in := out + uintptr(piece)
		at, pitch := placeOf(from, e.src, src[k])
		pack = append(pack, e.rows(out, at+uintptr(r*pitch+c), m, pitch, m, n))
		ops = append(ops, w.send(i, out, n*m, e.stream), w.recv(i, in, n*m, e.stream))
		at, pitch = placeOf(to, e.dst, dst[k])
		unpack = append(unpack, e.rows(at+uintptr(r*pitch+c), in, pitch, m, m, n))
	}
	return slices.Concat(pack, w.group(ops), unpack)
}
