package remote

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/internal/clock"
)

// Opener is what a host can do. Its methods are called by several goroutines.
type Opener interface {
	// Describe says what the host offers ranks in such a place.
	Describe(p Place) (Description, error)
	// Open opens the device of rank p.Rank; devices of one fabric are joined.
	Open(p Place) (device.Device, error)
	// Script reads a program's text and proves what can be said of it without the other ranks'.
	Script(program string) (Script, error)
	// Folder is the run's folder, in which files may be written; "": nothing may be.
	Folder() string
	// Closed says that a device that was opened is closed.
	Closed(p Place)
	// Link receives a data connection between two ranks of a fabric, the second of which is here. It
	// closes one that it does not want, or returns an error.
	Link(h Hello, c *sealed.Conn) error
	// Join receives the connection of a process that joins the run that this one leads. It closes one that
	// it does not want, and returns an error.
	Join(m Member, c *sealed.Conn) error
	// Start receives the connection of a leader that asks for a process of its run. It closes one that
	// it does not want, and returns an error.
	Start(p Process, c *sealed.Conn) error
}

const restLimit = 10 * time.Second

// server is one Serve.
type server struct {
	key    []byte
	opener Opener
	note   func(string)
	budget *Budget
	guests guests
	all    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
	leases map[string]*lease // by what their side connection says
}

// Serve lets leaders that know the key open devices of o, many at a time, until ctx is
// cancelled; then it hangs up, closes the devices and returns nil. A device whose leader
// hangs up or vanishes is closed. What they take counts on budget. note (nil: nobody) gets short
// lines about who comes and goes, from several goroutines.
func Serve(ctx context.Context, l net.Listener, key []byte, o Opener, budget *Budget, note func(string)) error {
	if len(key) == 0 {
		return fmt.Errorf("remote: %w", errNoKey)
	}
	if note == nil {
		note = func(string) {}
	}
	s := &server{
		key: key, opener: o, note: note, budget: budget,
		conns: map[net.Conn]bool{}, leases: map[string]*lease{},
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	err := s.accept(ctx, l)
	s.close()
	return err
}

// accept serves connections until the listener is closed. It goes on after other errors: having too
// many connections is temporary.
func (s *server) accept(ctx context.Context, l net.Listener) error {
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("remote: %w", err)
		case err != nil:
			s.complain(fmt.Sprintf("a connection could not be accepted: %v", err))
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		if told := s.guests.enter(conn); told != "" {
			s.note(told)
		}
		s.all.Go(func() { s.handle(conn) })
	}
}

// close hangs up and waits for the devices to be closed, but not for one that hangs.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(restLimit):
	}
}

// track keeps a connection so that close can close it.
func (s *server) track(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = true
	}
	return !s.closed
}

func (s *server) untrack(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// handle serves one connection.
func (s *server) handle(conn net.Conn) {
	kept := false
	defer func() {
		if r := recover(); r != nil {
			s.note(fmt.Sprintf("%s: panic: %v\n%s", hostOf(conn), r, debug.Stack()))
		}
		s.untrack(conn)
		if !kept {
			_ = conn.Close()
		}
	}()
	c, o, err := s.receive(conn)
	switch {
	case err == errDisplaced:
	case err != nil:
		s.complain(fmt.Sprintf("%s: %v", hostOf(conn), err))
	default:
		if kept, err = s.do(c, o); err != nil {
			s.note(fmt.Sprintf("%s: %v", hostOf(conn), err))
		}
	}
}

// complain tells the log of a stranger, unless it has been told the like.
func (s *server) complain(text string) {
	if told := s.guests.complain(text); told != "" {
		s.note(told)
	}
}

// errDisplaced ends a connection whose place another has taken; the log is told by who takes places.
var errDisplaced = errors.New("another connection has taken the place of this one")

// receive greets a client and reads what it wants.
func (s *server) receive(conn net.Conn) (c *sealed.Conn, o *opening, err error) {
	defer func() {
		if !s.guests.leave(conn) {
			err = errDisplaced
		}
	}()
	if !s.track(conn) {
		return nil, nil, net.ErrClosed
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(alive)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, nil, err
	}
	keys, err := greetClient(conn, s.key)
	if err != nil {
		return nil, nil, err
	}
	if c, err = sealed.New(conn, keys.Server, keys.Client); err != nil {
		return nil, nil, err
	}
	o = new(opening)
	if err := readMessage(c, o); err != nil {
		return nil, nil, err
	}
	return c, o, c.SetDeadline(time.Time{})
}

// do does what a client wants; kept says that the connection has passed to someone else.
func (s *server) do(conn *sealed.Conn, o *opening) (kept bool, err error) {
	switch o.Purpose {
	case describing:
		about, err := s.opener.Describe(o.Place)
		s.budget.describe(&about, o.Place.onGPU())
		about.Ahead = sinceEpoch() // of a clock that stands at zero, until the answer is there
		return false, result(conn, &about, err)
	case controlling:
		return false, s.open(conn, &o.Place)
	case siding:
		return false, s.join(conn, o.Lease)
	case linking:
		if _, err := conn.Write(appendAnswer(nil, nil)); err != nil {
			return false, err
		}
		if err := s.opener.Link(o.Link, conn); err != nil {
			return false, fmt.Errorf("data from rank %d to rank %d: %w", o.Link.From, o.Link.To, err)
		}
		return true, nil
	case joining, starting:
		if _, err := conn.Write(appendAnswer(nil, nil)); err != nil {
			return false, err
		}
		s.untrack(conn.Conn) // it is the opener's, who may be the one that ends this server
		if o.Purpose == joining {
			err = s.opener.Join(o.Member, conn)
		} else {
			err = s.opener.Start(o.Process, conn)
		}
		return err == nil, err
	}
	return false, refuse(conn, fmt.Errorf("unknown purpose %d", o.Purpose))
}

// result answers with a message, or with an error, which is returned.
func result(conn net.Conn, v any, err error) error {
	if err != nil {
		return refuse(conn, err)
	}
	answer, err := appendMessage(appendAnswer(nil, nil), v)
	if err == nil {
		_, err = conn.Write(answer)
	}
	return err
}

// refuse answers with an error, and returns it.
func refuse(conn net.Conn, err error) error {
	_, _ = conn.Write(appendAnswer(nil, err))
	return err
}

// open opens a device and serves it until its leader hangs up.
func (s *server) open(conn *sealed.Conn, p *Place) error {
	if err := p.check(); err != nil {
		return refuse(conn, err)
	}
	if err := s.budget.takeRank(); err != nil {
		return refuse(conn, err)
	}
	before := clock.Now()
	d, err := s.opener.Open(*p)
	if err != nil {
		s.budget.give(Limits{Ranks: 1})
		return refuse(conn, err)
	}
	e := newLease(conn, d, before, s.budget)
	e.onGPU, e.scripts.parse, e.saving.folder = p.onGPU(), s.opener.Script, s.opener.Folder()
	defer s.opener.Closed(*p)
	defer func() { e.end(s.note) }()
	e.name = fmt.Sprintf("%s: rank %d of %d", hostOf(conn), p.Rank, max(p.Ranks, 1))
	s.note(e.name + " opened")
	token := rand.Text()
	s.mu.Lock()
	s.leases[token] = e
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.leases, token)
		s.mu.Unlock()
	}()
	_, tunes := d.(device.Tuner)
	if err := result(conn, &opened{Lease: token, Info: d.Info(), Tunes: tunes}, nil); err != nil {
		return err
	}
	if err := e.awaitSide(); err != nil {
		return err
	}
	return e.serve()
}

// join is the second connection of a device. It ends with the first, and ends it.
func (s *server) join(conn *sealed.Conn, token string) error {
	s.mu.Lock()
	e := s.leases[token]
	delete(s.leases, token) // only one can join
	s.mu.Unlock()
	if e == nil {
		return refuse(conn, errors.New("there is no such device"))
	}
	e.side = conn
	close(e.joined)
	defer e.hangUp()
	endure(conn)
	if _, err := conn.Write(appendAnswer(nil, nil)); err != nil {
		return err
	}
	return e.watch(bufio.NewReader(conn))
}

// hostOf is the address of a connection's other side, without its port, which says
// nothing.
func hostOf(conn net.Conn) string {
	name := conn.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(name); err == nil {
		return host
	}
	return name
}
