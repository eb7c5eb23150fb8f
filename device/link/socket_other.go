//go:build !unix

package link

import "net"

// socket is a connection.
type socket struct{ net.Conn }

func newSocket(c net.Conn) (*socket, error) { return &socket{c}, nil }

func (s *socket) read(b []byte) (int, error) { return s.Read(b) }

func (s *socket) write(b []byte) error {
	_, err := s.Write(b)
	return err
}

func (s *socket) close() error { return s.Close() }
