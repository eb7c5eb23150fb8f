// Package loopback joins hubs of one process over the loopback interface, for tests of
// what goes over them.
package loopback

import (
	"net"

	"github.com/athanor-llm/athanor/device/link"
)

// Hubs returns the hubs of so many hosts. hosts has the host of every rank.
func Hubs(hosts []int, n int) []*link.Hub {
	hubs := make([]*link.Hub, n)
	for i := range hubs {
		hubs[i] = link.NewHub(hosts, i, func(from, to int, k link.Kind) (net.Conn, error) {
			a, b, err := connected()
			if err != nil {
				return nil, err
			}
			return a, hubs[hosts[to]].Accept(from, to, k, b)
		})
	}
	return hubs
}

// connected returns the ends of a TCP connection.
func connected() (a, b net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	b, err = l.Accept()
	return a, b, err
}
