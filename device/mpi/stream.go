package mpi

import (
	"encoding/binary"
	"fmt"
)

const (
	pieceBytes = 256 << 10 // of a stream that one message carries at most
	headBytes  = 8         // of a message, which say how many follow; the rest of its buffer is aligned
	window     = 4         // messages of a direction that are on their way at once
)

// end is a stream as this process sees it.
type end struct{ process, out, in int }

// Stream is a sequence of bytes to another process, and one from there. Neither Write nor Read ever waits. One
// goroutine may write while another reads.
type Stream struct {
	world *World
	end
	sending, arriving direction
	rest              []byte // of the oldest message that has arrived: what was not read yet
}

// direction is the messages that are on their way.
type direction struct {
	parcels     [window]parcel
	first, next uint64 // of those on their way: the oldest, and the one after the newest
}

// parcel is a message.
type parcel struct {
	buffer  []byte
	request uintptr // MPI_Request, of which some libraries use the first half
}

// Stream returns the stream to a process whose messages have tag out, and those from there tag in: the same one each time.
func (w *World) Stream(process, out, in int) *Stream {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := end{process, out, in}
	s, ok := w.streams[e]
	if !ok {
		s = &Stream{world: w, end: e}
		w.streams[e] = s
	}
	return s
}

// take returns the next parcel's room, nil if all are on their way.
func (d *direction) take() *parcel {
	if d.next-d.first == window {
		return nil
	}
	p := &d.parcels[d.next%window]
	if p.buffer == nil {
		p.buffer = make([]byte, headBytes+pieceBytes)
	}
	return p
}

// Write takes as much of p as there is room for.
func (s *Stream) Write(p []byte) (n int, err error) {
	d := &s.sending
	if err := s.reap(); err != nil {
		return 0, err
	}
	for len(p) > 0 {
		e := d.take()
		if e == nil {
			break
		}
		k := copy(e.buffer[headBytes:], p)
		binary.LittleEndian.PutUint64(e.buffer, uint64(k))
		if err := s.send(e, headBytes+k); err != nil {
			return n, err
		}
		d.next++
		n, p = n+k, p[k:]
	}
	return n, nil
}

// Pending reports whether some of what Write took is still on its way. Another Write, even of nothing, helps it on.
func (s *Stream) Pending() bool { return s.sending.first != s.sending.next }

func (s *Stream) send(e *parcel, n int) error {
	w := s.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over != nil {
		return w.over
	}
	l := w.lib
	return failed("MPI_Isend", l.call.isend(addr(&e.buffer[0]), uintptr(n), l.bytes, uintptr(s.process), uintptr(s.out), l.comm, addr(&e.request)))
}

// reap counts the messages that have left.
func (s *Stream) reap() error {
	for d := &s.sending; d.first != d.next; d.first++ {
		done, err := s.done(&d.parcels[d.first%window])
		if err != nil || !done {
			return err
		}
	}
	return nil
}

// done reports whether a message has left, or has arrived.
func (s *Stream) done(e *parcel) (bool, error) {
	w := s.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over != nil {
		return false, w.over
	}
	w.flag = 0
	err := failed("MPI_Test", w.lib.call.test(addr(&e.request), addr(&w.flag), addr(&w.status)))
	return w.flag != 0, err
}

// Read reads what has arrived, perhaps nothing, of one message at most.
func (s *Stream) Read(b []byte) (n int, err error) {
	d := &s.arriving
	if len(s.rest) == 0 {
		if err := s.accept(); err != nil || d.first == d.next {
			return 0, err
		}
		e := &d.parcels[d.first%window]
		if done, err := s.done(e); err != nil || !done {
			return 0, err
		}
		k := binary.LittleEndian.Uint64(e.buffer)
		if k == 0 || k > pieceBytes {
			return 0, fmt.Errorf("mpi: process %d has sent a message of impossible length %d", s.process, k)
		}
		s.rest = e.buffer[headBytes:][:k]
	}
	n = copy(b, s.rest)
	if s.rest = s.rest[n:]; len(s.rest) == 0 {
		d.first++
	}
	return n, nil
}

// accept begins to receive the messages that are there. None is awaited: what a run that failed has not received
// would else go to a later one.
func (s *Stream) accept() error {
	w := s.world
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := w.lib; ; s.arriving.next++ {
		e := s.arriving.take()
		if e == nil {
			return nil
		}
		if w.over != nil {
			return w.over
		}
		w.flag = 0
		if err := failed("MPI_Iprobe", l.call.iprobe(uintptr(s.process), uintptr(s.in), l.comm, addr(&w.flag), addr(&w.status))); err != nil || w.flag == 0 {
			return err
		}
		if err := failed("MPI_Irecv", l.call.irecv(addr(&e.buffer[0]), uintptr(len(e.buffer)), l.bytes, uintptr(s.process), uintptr(s.in), l.comm, addr(&e.request))); err != nil {
			return err
		}
	}
}

// Close does nothing: what is on its way stays the library's.
func (s *Stream) Close() error { return nil }
