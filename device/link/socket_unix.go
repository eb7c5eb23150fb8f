//go:build unix

package link

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a connection whose reads and writes block a thread, like those of the disk. Go's
// poller would notice what arrives when a core looks for work, or every 10 ms: kernels keep
// all cores busy, and they yield to goroutines that can run, not to the poller.
type socket struct {
	fd     int
	using  sync.RWMutex // held for reading while fd is in use
	closed bool
}

// newSocket takes over a connection.
func newSocket(c net.Conn) (*socket, error) {
	defer c.Close()
	t, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is no socket", c)
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if s.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); failed == nil {
			failed = unix.SetNonblock(s.fd, false)
		}
	})
	return s, errors.Join(err, failed)
}

func (s *socket) read(b []byte) (n int, err error) {
	s.using.RLock()
	defer s.using.RUnlock()
	for !s.closed {
		if n, err = unix.Read(s.fd, b); err != unix.EINTR {
			return max(n, 0), err
		}
	}
	return 0, errClosed
}

func (s *socket) write(b []byte) error {
	s.using.RLock()
	defer s.using.RUnlock()
	for len(b) > 0 {
		if s.closed {
			return errClosed
		}
		n, err := unix.Write(s.fd, b)
		if err != nil && err != unix.EINTR {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

// close wakes whoever reads or writes, and closes.
func (s *socket) close() error {
	err := unix.Shutdown(s.fd, unix.SHUT_RDWR)
	if errors.Is(err, unix.ENOTCONN) { // the other end was first
		err = nil
	}
	s.using.Lock()
	defer s.using.Unlock()
	s.closed = true
	return errors.Join(err, unix.Close(s.fd))
}
