// Package loopback joins hubs of one process over the loopback interface, for tests of
// what goes over them.
package loopback

import (
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/sealed"
)

// Hubs returns the hubs of so many hosts. hosts has the host of every rank.
func Hubs(hosts []int, n int) []*link.Hub {
	hubs := make([]*link.Hub, n)
	for i := range hubs {
		hubs[i] = link.NewHub(hosts, i, func(from, to int, k link.Kind) (*sealed.Conn, error) {
			a, b, err := sealed.Loopback()
			if err != nil {
				return nil, err
			}
			return a, hubs[hosts[to]].Accept(from, to, k, b)
		})
	}
	return hubs
}
