package sealed

import "net"

// Loopback returns both ends of a protected connection over the loopback interface, for tests of what goes
// over it.
func Loopback() (client, server *Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	far, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
	keys, err := NewKeys([]byte("loopback"), nil)
	if err != nil {
		return nil, nil, err
	}
	if client, err = New(near, keys.Client, keys.Server); err != nil {
		return nil, nil, err
	}
	server, err = New(far, keys.Server, keys.Client)
	return client, server, err
}
