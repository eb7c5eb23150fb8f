package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Pipe is the connection of one kind between two ranks. At most one goroutine may send, and
// at most one receive.
type Pipe struct {
	mu     sync.Mutex
	socket *socket
	closed bool
	opened chan struct{} // closed once there is a socket or never will be

	queue chan []byte // what is to be sent; nil: tell when all before has been
	sent  chan error
	done  chan struct{} // closed with the pipe
}

// sendQueue is what may be queued without waiting: a header, two halves of a collective and
// the question whether they have been sent.
const sendQueue = 4

func newPipe() *Pipe {
	p := &Pipe{
		opened: make(chan struct{}), queue: make(chan []byte, sendQueue), sent: make(chan error, 1),
		done: make(chan struct{}),
	}
	go p.run()
	return p
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
		err = errors.New("link: the connection comes too late")
	case p.socket != nil:
		err = errors.New("link: a second connection for the same pipe")
	default:
		p.socket = s
		close(p.opened)
		return nil
	}
	return errors.Join(err, s.close())
}

// wait returns the socket once there is one.
func (p *Pipe) wait() (*socket, error) {
	<-p.opened
	if p.socket == nil {
		return nil, errClosed
	}
	return p.socket, nil
}

var errClosed = errors.New("the link is closed")

// Send queues bytes, which must not change until Flush has returned. It waits only if there
// is more in the queue than a call between ranks sends.
func (p *Pipe) Send(b []byte) {
	if len(b) == 0 {
		return
	}
	select {
	case p.queue <- b:
	case <-p.done:
	}
}

// Flush waits until all that was queued is out of the caller's memory, and returns the first
// error.
func (p *Pipe) Flush() error {
	select {
	case p.queue <- nil:
	case <-p.done:
		return errClosed
	}
	select {
	case err := <-p.sent:
		return err
	case <-p.done:
		return errClosed
	}
}

// run sends what is queued. After an error the rest is dropped.
func (p *Pipe) run() {
	s, err := p.wait()
	for {
		var b []byte
		select {
		case b = <-p.queue:
		case <-p.done:
			return
		}
		switch {
		case b == nil:
			p.sent <- err
		case err == nil:
			err = s.write(b)
		}
	}
}

// Receive fills b. piece is called, if it is not nil, whenever some of it has come.
func (p *Pipe) Receive(b []byte, piece func()) error {
	s, err := p.wait()
	for len(b) > 0 && err == nil {
		var n int
		n, err = s.read(b)
		if n == 0 && err == nil {
			err = io.EOF
		}
		b = b[n:]
		if piece != nil {
			piece()
		}
	}
	if err == io.EOF {
		err = errors.New("the other end has closed the link")
	}
	return err
}

// close ends the pipe. It may be called at any time; nothing is sent afterwards.
func (p *Pipe) close() error {
	p.mu.Lock()
	p.closed = true
	s := p.socket
	if s == nil {
		close(p.opened)
	}
	close(p.done)
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.close()
}
