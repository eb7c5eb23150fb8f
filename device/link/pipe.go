package link

import (
	"errors"
	"fmt"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/graph"
)

// Pipe is the connection of one kind between two ranks.
//
// It never blocks. Kernels keep all cores busy: a goroutine that sleeps until the network has something
// is woken 10 ms late, when Go's scheduler looks there, and a thread that sleeps in a system call keeps
// kernels from its core for as long, until the scheduler takes the core back. So whoever exchanges
// bytes polls, and yields in between.
//
// At most one goroutine may send, and one receive.
type Pipe struct {
	mu      sync.RWMutex
	conn    Carrier // nil: not connected yet
	closed  bool
	out     [][]byte // to be sent; part of the first may have been sent
	pending bool     // conn has taken bytes that it has not sent
}

// connect gives the pipe its connection, which it owns from now on.
func (p *Pipe) connect(c *sealed.Conn) error {
	s, err := newSocket(c.Conn)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	c.Conn = s
	return p.carry(c)
}

// carry gives the pipe what carries it, which it owns from now on.
func (p *Pipe) carry(c Carrier) error {
	var err error
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		err = errors.New("link: the connection came after the link was closed")
	case p.conn != nil:
		err = errors.New("link: there is already a connection for this pipe")
	default:
		p.conn = c
		return nil
	}
	return errors.Join(err, c.Close())
}

var errClosed = errors.New("the link is closed")

// Send queues bytes, which must not change while Pump reports that some are left.
func (p *Pipe) Send(b []byte) {
	if len(b) > 0 {
		p.out = append(p.out, b)
	}
}

// Pump sends as much of what is queued as the network takes now. It reports how many bytes that is, and
// whether some are left.
func (p *Pipe) Pump() (n int, left bool, err error) {
	if len(p.out) == 0 && !p.pending {
		return 0, false, nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	switch {
	case p.closed:
		return 0, true, errClosed
	case p.conn == nil:
		return 0, true, nil
	}
	for len(p.out) > 0 {
		k, err := p.conn.Write(p.out[0])
		n, p.pending = n+k, p.conn.Pending()
		if err != nil {
			return n, true, err
		}
		if p.out[0] = p.out[0][k:]; len(p.out[0]) > 0 {
			return n, true, nil
		}
		p.out = p.out[:copy(p.out, p.out[1:])]
	}
	if p.pending {
		_, err = p.conn.Write(nil)
		p.pending = p.conn.Pending()
	}
	return n, p.pending, err
}

// Receive reads into b what has arrived, perhaps nothing, and returns how much.
func (p *Pipe) Receive(b []byte) (n int, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	switch {
	case p.closed:
		return 0, errClosed
	case p.conn == nil || len(b) == 0:
		return 0, nil
	}
	return p.conn.Read(b)
}

// Lost returns what the error of a pipe between two ranks means: the other is lost. If bytes were changed
// on the way, that is nobody's fault, so it is this rank, which noticed it, that is lost to all others, and
// that says why.
func Lost(own, other int, op graph.Op, err error) *device.PeerError {
	lost := &device.PeerError{Rank: other, Call: -1, Op: op, Why: err.Error()}
	var damaged *sealed.DamagedError
	if errors.As(err, &damaged) {
		lost.Rank = own
	}
	return lost
}

// close ends the pipe. It may be called at any time; nothing is sent afterwards.
func (p *Pipe) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if p.conn == nil {
		return nil
	}
	return p.conn.Close()
}
