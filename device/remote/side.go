package remote

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/device/sealed"
)

// The leader's end of side.
//
// Its reader is always there, so that a host's death is noticed whatever the device is doing. While a
// look is late, the previous one remains in place: to an engine's watchdog, a host that cannot be asked
// makes no progress. A host that leaves several looks unanswered is lost, before the ranks that wait
// for it are blamed, and also between rounds, when there is no watchdog. At most one look is under way.
//
// A look knows its round. If that is not the device's current one, it says nothing about calls: they
// are not done.

const (
	lookEvery  = time.Second
	lookMisses = 4               // in a row
	lookLimit  = time.Second     // for the answer to a look
	rest       = 3 * time.Second // for an aborted round to end
)

type side struct {
	conn  *sealed.Conn
	write sync.Mutex // held to write; messages stay whole

	ask   sync.Mutex // held to look
	sent  bool       // a look is under way
	timer *time.Timer
	fresh chan struct{} // a look has arrived

	mu   sync.Mutex
	look look // the latest
}

// look is what is seen of a round.
type look struct {
	progress, round uint64
	done            []byte // one bit per call
}

// start adopts the connection of a device and reads it until it ends.
func (s *side) start(conn *sealed.Conn, d *Device) {
	s.conn, s.fresh = conn, make(chan struct{}, 1)
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	endure(conn)
	go d.attend()
	go func() {
		r, seen := bufio.NewReader(conn), new(look)
		for {
			if err := s.read(r, seen); err != nil {
				d.missing(err)
				return
			}
			select {
			case s.fresh <- struct{}{}:
			default:
			}
		}
	}()
}

// close may be called before start.
func (s *side) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// read reads the answer to a look. It waits without the lock.
func (s *side) read(r io.Reader, seen *look) error {
	var head [lookBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	le := binary.LittleEndian
	seen.progress, seen.round = le.Uint64(head[:]), le.Uint64(head[8:])
	calls := le.Uint32(head[16:])
	if calls > maxCalls {
		return fmt.Errorf("it reports on %d calls, but %d is the limit", calls, maxCalls)
	}
	seen.done = slices.Grow(seen.done[:0], int(calls+7)/8)[:(calls+7)/8]
	if _, err := io.ReadFull(r, seen.done); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look.progress, s.look.round, s.look.done = seen.progress, seen.round, append(s.look.done[:0], seen.done...)
	return nil
}

// send writes one frame.
func (s *side) send(frame []byte) error {
	s.write.Lock()
	defer s.write.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(lookLimit)); err != nil {
		return err
	}
	_, err := s.conn.Write(frame)
	return err
}

// attend looks at the host as long as the device is open, and gives the device up when the host does
// not answer. It counts looks, not time, so that a leader that was suspended does not take its hosts
// for dead.
func (d *Device) attend() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for missed := 0; ; {
		select {
		case <-d.gone:
			return
		case <-tick.C:
		}
		if missed++; d.look() {
			missed = 0
		}
		if missed == lookMisses {
			d.missing(errors.New("it does not answer"))
		}
	}
}

// missing gives the device up, unless it is being closed: then side may end before the answer to that
// arrives on control.
func (d *Device) missing(why error) {
	if !d.leaving.Load() {
		_ = d.lose(why)
	}
}

// Progress looks at the round. Any goroutine may call it.
func (d *Device) Progress() uint64 {
	d.look()
	s := &d.side
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.look.progress
}

// look looks at the host, and reports whether it has answered.
func (d *Device) look() (answered bool) {
	s := &d.side
	s.ask.Lock()
	defer s.ask.Unlock()
	if !s.sent {
		if err := s.send([]byte{byte(doLook)}); err != nil {
			d.missing(err)
		}
		s.sent = true
	}
	s.timer.Reset(lookLimit)
	defer s.timer.Stop()
	select {
	case <-s.fresh:
		s.sent = false
		return true
	case <-d.gone:
	case <-s.timer.C:
	}
	return false
}

// Done reports whether call n had completed in this round when Progress last looked.
func (d *Device) Done(n int) bool {
	s := &d.side
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.look.round == d.round.Load() && n >= 0 && n/8 < len(s.look.done) && s.look.done[n/8]>>(n%8)&1 == 1
}

// Abort fails the round. A host that does not end it soon is given up, so that Sync
// returns in any case.
func (d *Device) Abort(err error) {
	if failed := d.side.send(appendFault([]byte{byte(doAbort)}, err)); failed != nil {
		_ = d.lose(failed)
		return
	}
	round := d.round.Load()
	if !d.under.Load() {
		return
	}
	time.AfterFunc(rest, func() {
		if d.under.Load() && d.round.Load() == round {
			_ = d.lose(fmt.Errorf("it did not end the round within %v after: %w", rest, err))
		}
	})
}
