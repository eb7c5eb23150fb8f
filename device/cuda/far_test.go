//go:build linux

package cuda

import (
	"net"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device/link"
)

// fabricsOn returns the fabrics of hosts that have the given ranks, joined by connections over the
// loopback interface if there are several. They cut what they exchange into small blocks.
func fabricsOn(t *testing.T, hosts []int) []*Fabric {
	t.Helper()
	n := slices.Max(hosts) + 1
	if n == 1 {
		return []*Fabric{NewFabric(len(hosts))}
	}
	hubs, fabrics := make([]*link.Hub, n), make([]*Fabric, n)
	for i := range hubs {
		hubs[i] = link.NewHub(hosts, i, func(from, to int, k link.Kind) (net.Conn, error) {
			a, b, err := connected()
			if err != nil {
				return nil, err
			}
			return a, hubs[hosts[to]].Accept(from, to, k, b)
		})
		fabrics[i] = NewFabricAcross(len(hosts), hubs[i])
		fabrics[i].slot = 256
		t.Cleanup(func() { hubs[i].Close() })
	}
	return fabrics
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
