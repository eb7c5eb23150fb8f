package machine

import (
	"slices"

	"github.com/athanor-llm/athanor/hardware"
)

// Deal returns this machine with ranks dealt out to its hosts for a plan in which so many consecutive ones share each
// sequence or each matrix, in pipelines of so many stages (see hardware.Network).
func (m *Machine) Deal(sharing, stages int) *Machine {
	hosts, remote := m.backend.(*hostsBackend)
	if m.Hardware.Network == nil && !remote {
		return m
	}
	dealt, h := *m, *m.Hardware
	h.Network = h.Network.Deal(max(sharing, 1), stages)
	dealt.Hardware = &h
	if remote {
		b := *hosts
		b.grid = b.grid.Deal(max(sharing, 1), stages)
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

// gridOf returns how ranks are dealt out to hosts that have so many each.
func gridOf(counts []int) *hardware.Network {
	n := &hardware.Network{Hosts: len(counts), PerHost: slices.Max(counts)}
	if slices.Min(counts) < n.PerHost {
		n.Counts = counts
	}
	return n
}
