package machine

import "github.com/athanor-llm/athanor/hardware"

// Deal returns this machine with ranks dealt out to its hosts for a plan in which so many consecutive ones share each
// sequence or each matrix: as many of them as possible are on one host, since they send each other what every layer
// computes. Without them, neighbours are on different hosts.
func (m *Machine) Deal(sharing int) *Machine {
	hosts, remote := m.backend.(*hostsBackend)
	if m.Hardware.Network == nil && !remote {
		return m
	}
	dealt, h := *m, *m.Hardware
	h.Network = h.Network.Deal(max(sharing, 1))
	dealt.Hardware = &h
	if remote {
		b := *hosts
		b.grid = b.grid.Deal(max(sharing, 1))
		dealt.backend = &b
	}
	return &dealt
}

// Host returns the host of a rank, counted from 0.
func (m *Machine) Host(rank int) int {
	if b, remote := m.backend.(*hostsBackend); remote {
		return b.grid.Host(rank)
	}
	if m.backend != nil {
		return 0
	}
	return m.Hardware.Network.Host(rank)
}

// gridOf returns how ranks are dealt out to hosts, evenly.
func gridOf(hosts, ranks int) *hardware.Network {
	return &hardware.Network{Hosts: hosts, PerHost: ranks / hosts}
}
