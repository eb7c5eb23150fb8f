//go:build unix

package link

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a connection that Go's poller does not know of. Its reads and writes never wait.
type socket struct {
	net.Conn // closed; it knows the addresses
	fd       int
}

// newSocket takes over a connection.
func newSocket(c net.Conn) (*socket, error) {
	defer c.Close()
	t, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is not a socket", c)
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: c}
	var failed error
	err = raw.Control(func(fd uintptr) { // it is non-blocking: Go has seen to that
		s.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	return s, errors.Join(err, failed)
}

// Read returns what has arrived.
func (s *socket) Read(b []byte) (int, error) {
	n, err := unix.Read(s.fd, b)
	switch {
	case err == nil && n == 0:
		return 0, errEnd
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, nil
	}
	return max(n, 0), err
}

var errEnd = errors.New("the other end has closed the link")

// Write sends what can be sent.
func (s *socket) Write(b []byte) (int, error) {
	n, err := unix.Write(s.fd, b)
	if err == unix.EAGAIN || err == unix.EINTR {
		return 0, nil
	}
	return max(n, 0), err
}

func (s *socket) Close() error { return unix.Close(s.fd) }
