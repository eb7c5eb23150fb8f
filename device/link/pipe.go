package link

import (
	"errors"
	"fmt"
	"net"
	"sync"
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
	mu     sync.RWMutex
	socket *socket // nil: not connected yet
	closed bool
	out    [][]byte // to be sent; part of the first may have been sent
}

// connect gives the pipe its connection, which it owns from now on.
func (p *Pipe) connect(c net.Conn) error {
	s, err := newSocket(c)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		err = errors.New("link: the connection came after the link was closed")
	case p.socket != nil:
		err = errors.New("link: there is already a connection for this pipe")
	default:
		p.socket = s
		return nil
	}
	return errors.Join(err, s.Close())
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
	if len(p.out) == 0 {
		return 0, false, nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for p.socket != nil && !p.closed && len(p.out) > 0 {
		k, err := p.socket.write(p.out[0])
		n += k
		if err != nil {
			return n, true, err
		}
		if p.out[0] = p.out[0][k:]; len(p.out[0]) > 0 {
			return n, true, nil
		}
		p.out = p.out[:copy(p.out, p.out[1:])]
	}
	if p.closed {
		return n, true, errClosed
	}
	return n, len(p.out) > 0, nil
}

// Receive reads into b what has arrived, perhaps nothing, and returns how much.
func (p *Pipe) Receive(b []byte) (n int, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	switch {
	case p.closed:
		return 0, errClosed
	case p.socket == nil || len(b) == 0:
		return 0, nil
	}
	return p.socket.read(b)
}

// close ends the pipe. It may be called at any time; nothing is sent afterwards.
func (p *Pipe) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if p.socket == nil {
		return nil
	}
	return p.socket.Close()
}
