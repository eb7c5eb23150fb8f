package ptx

// Memory, and the detection of races in it.
//
// For every two bytes of shared memory, a mark records which thread wrote them last
// and which have read them since, and when: the number of barriers that the block
// had passed, and of synchronisations of the warp's lanes. Two accesses by different
// threads, one of them a write, need a barrier of the block between them, or of the
// warp if both are in it. A copy (cp.async) is a write in flight until its thread
// has waited for it, and then counts as that thread's.
//
// For example, thread 0 writes a word and thread 40 reads it: an error unless the
// block passed a barrier in between.
//
// Known weakness: of several readers in one warp only the last time is kept, which
// suffices to detect that a later write races, but not with which thread.

import "unsafe"

// mark records accesses. Threads count from 1; 0 is none.
type mark struct {
	writer, reader         int16 // reader: a thread; see several and readers
	wrote, wroteWarp       int32 // epochs of block and warp
	read, readWarp         int32
	readers                int16 // the warp of all readers, or many
	underWay, several, any bool
	fences                 int32 // number of proxy fences that the writer had executed
}

const many = -1

// pending is a copy in flight.
type pending struct {
	group       int
	to, from    uint64
	size, bytes int
}

// locate returns the host address of a lane's access and checks the access.
func (w *warp) locate(s space, at uint64, size int, lane int, write bool) unsafe.Pointer {
	if s == shared {
		at = uint64(uint32(at))
	}
	if at&uint64(size-1) != 0 { // sizes are powers of two
		w.fail("thread %d: address %#x is not on %d bytes", w.first+lane, at, size)
	}
	if s == shared {
		if at > uint64(len(w.shared)) || uint64(len(w.shared))-at < uint64(size) {
			w.fail("thread %d: bytes %d to %d of %d of shared memory", w.first+lane, at, at+uint64(size), len(w.shared))
		}
		marks := w.marks[at/2 : (at+uint64(size)+1)/2]
		if !write {
			for i := range marks {
				if m := &marks[i]; !w.known(m, lane) {
					w.reads(m, lane, at&^1+uint64(2*i))
				}
			}
			return unsafe.Pointer(&w.shared[at])
		}
		for i := range marks {
			w.wrote(&marks[i], lane, at&^1+uint64(2*i))
		}
		if w.taken != nil {
			w.untaken(at, size, lane)
		}
		return unsafe.Pointer(&w.shared[at])
	}
	return w.global(uintptr(at), uintptr(size), lane)
}

// global checks an address in the card's memory, which is memory of this process.
func (w *warp) global(at, size uintptr, lane int) unsafe.Pointer {
	if s := w.span; at < s.At || size > s.Bytes || at-s.At > s.Bytes-size {
		found := false
		for _, s := range w.launch.Memory {
			if at >= s.At && size <= s.Bytes && at-s.At <= s.Bytes-size {
				w.span, found = s, true
				break
			}
		}
		if !found {
			w.fail("thread %d: %d bytes at %#x are outside of all allocations", w.first+lane, size, at)
		}
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&at))
}

// orderedBefore reports whether an earlier access, by thread u at the given epochs, is
// ordered before one that a lane makes now.
func (w *warp) orderedBefore(u int, epoch, warpEpoch int32, lane int) bool {
	return epoch != w.block.epoch || u == w.first+lane || u/32 == w.first/32 && warpEpoch != w.epoch
}

func (w *warp) wrote(m *mark, lane int, at uint64) {
	t := w.first + lane
	switch {
	case m.underWay:
		w.fail("thread %d writes byte %d of shared memory, to which a copy of thread %d is under way", t, at, m.writer-1)
	case m.writer != 0 && !w.orderedBefore(int(m.writer-1), m.wrote, m.wroteWarp, lane):
		w.fail("threads %d and %d write byte %d of shared memory without a barrier between", m.writer-1, t, at)
	case m.any && m.read == w.block.epoch && !w.mayFollow(m, lane):
		w.fail("thread %d writes byte %d of shared memory, which others have read since the last barrier (thread %d)", t, at, m.reader-1)
	}
	*m = w.writes(lane)
}

// writes returns the mark for memory that a lane writes now.
func (w *warp) writes(lane int) mark {
	return mark{writer: int16(w.first + lane + 1), wrote: w.block.epoch, wroteWarp: w.epoch, fences: int32(len(w.proxies[lane]))}
}

// mayFollow reports whether a lane may write what was read: the readers since the
// last barrier were this thread, or this warp before its lanes last synchronised.
func (w *warp) mayFollow(m *mark, lane int) bool {
	if !m.several {
		return w.orderedBefore(int(m.reader-1), m.read, m.readWarp, lane)
	}
	return m.readers != many && int(m.readers) == w.first/32 && m.readWarp != w.epoch
}

// known reports whether a read is certainly no error and already in the mark. It may return false for
// other such reads.
func (w *warp) known(m *mark, lane int) bool {
	return m.any && m.read == w.block.epoch && m.readWarp == w.epoch && m.wrote != m.read && !m.underWay && m.writer != 0 &&
		(int(m.reader) == w.first+lane+1 || m.several && (m.readers == many || int(m.readers) == w.first/32))
}

func (w *warp) reads(m *mark, lane int, at uint64) {
	t := w.first + lane
	switch {
	case m.underWay:
		w.fail("thread %d reads byte %d of shared memory, to which a copy of thread %d is under way", t, at, m.writer-1)
	case m.writer == 0:
		w.fail("thread %d reads byte %d of shared memory, which nobody has written", t, at)
	case !w.orderedBefore(int(m.writer-1), m.wrote, m.wroteWarp, lane):
		w.fail("thread %d reads byte %d of shared memory, which thread %d wrote without a barrier between", t, at, m.writer-1)
	}
	first := !m.any || m.read != w.block.epoch
	switch {
	case first:
		m.reader, m.readers, m.several = int16(t+1), int16(w.first/32), false
	case int(m.reader) != t+1:
		m.several = true
		if int(m.readers) != w.first/32 {
			m.readers = many
		}
	}
	m.any, m.read, m.readWarp = true, w.block.epoch, w.epoch
}

// publish makes visible to other blocks what the block has stored to global memory, so there must have
// been a barrier after the latest stores.
func (w *warp) publish() {
	for _, v := range w.warps {
		if v.stored == w.block.epoch {
			w.fail("what thread %d and its neighbours stored is published without a barrier after it", v.first)
		}
	}
}

// issue starts a copy to shared memory: bytes of size are copied, the rest becomes
// 0.
func (w *warp) issue(to, from uint64, size, bytes, lane int) {
	p := w.locate(shared, to, size, lane, true)
	for i := range size {
		*(*byte)(unsafe.Add(p, i)) = 0xff
	}
	for i := to / 2; i < (to+uint64(size))/2; i++ {
		w.marks[i].underWay = true
	}
	if from&uint64(size-1) != 0 || bytes < 0 || bytes > size {
		w.fail("thread %d copies %d bytes of %d from %#x", w.first+lane, bytes, size, from)
	}
	if bytes > 0 {
		w.global(uintptr(from), uintptr(bytes), lane)
	}
	t := w.first + lane
	w.copies[t] = append(w.copies[t], pending{w.groups[t], to, from, size, bytes})
}

// land completes all but the latest n groups of a thread's copies.
func (w *warp) land(n, lane int) {
	t := w.first + lane
	landed := 0
	for ; landed < len(w.copies[t]) && w.copies[t][landed].group < w.groups[t]-n; landed++ {
		c := w.copies[t][landed]
		dst := w.shared[c.to : c.to+uint64(c.size)]
		clear(dst)
		if c.bytes > 0 {
			copy(dst, unsafe.Slice((*byte)(w.global(uintptr(c.from), uintptr(c.bytes), lane)), c.bytes))
		}
		for i := c.to / 2; i < (c.to+uint64(c.size))/2; i++ {
			w.marks[i] = w.writes(lane)
		}
	}
	w.copies[t] = append(w.copies[t][:0], w.copies[t][landed:]...)
}

// element loads the i-th element of size bytes at p.
func element(p unsafe.Pointer, i, size int) uint64 {
	p = unsafe.Add(p, i*size)
	switch size {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

func setElement(p unsafe.Pointer, i, size int, v uint64) {
	p = unsafe.Add(p, i*size)
	switch size {
	case 1:
		*(*uint8)(p) = uint8(v)
	case 2:
		*(*uint16)(p) = uint16(v)
	case 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}
