//go:build !unix

package link

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// socket is a connection whose reads and writes wait for a moment only.
type socket struct{ net.Conn }

const moment = 50 * time.Microsecond

func newSocket(c net.Conn) (*socket, error) { return &socket{c}, nil }

func (s *socket) Read(b []byte) (int, error) {
	if err := s.SetReadDeadline(time.Now().Add(moment)); err != nil {
		return 0, err
	}
	return patient(s.Conn.Read(b))
}

func (s *socket) Write(b []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(moment)); err != nil {
		return 0, err
	}
	return patient(s.Conn.Write(b))
}

// patient makes it no error that nothing has happened.
func patient(n int, err error) (int, error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = nil
	case err == io.EOF:
		err = errors.New("the other end has closed the link")
	}
	return n, err
}
