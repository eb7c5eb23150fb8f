package machine

import "github.com/athanor-llm/athanor/device"

// Suppose returns a copy of this machine that is only planned for.
func (m *Machine) Suppose() *Machine {
	s, h := *m, *m.Hardware
	s.supposed, s.Hardware = true, &h
	return &s
}

// WithMemory returns a copy of this machine with at least the given bytes of a tier per rank. The described memory
// grows if needed.
func (m *Machine) WithMemory(t device.Tier, bytes int64) *Machine {
	s := m.Suppose()
	s.Capacity[t] = max(s.Capacity[t], bytes)
	all, mem := s.Capacity[t], &s.Hardware.Memory
	if !m.described && (t != device.DeviceTier || mem.Shared) {
		all *= int64(m.ranks * m.Jobs()) // a description is one rank's share already
	}
	have := [device.NumTiers]*int64{&mem.Device, &mem.Host, &mem.Disk}
	if beyond := all - *have[t]; beyond > 0 {
		*have[t] += beyond
		if mem.Shared && t != device.DiskTier {
			*have[device.HostTier-t] += beyond
		}
	}
	return s
}

// Quicker returns a copy of this machine with twice the rate on the given streams.
func (m *Machine) Quicker(streams ...device.Stream) *Machine {
	s := m.Suppose()
	s.Hardware = m.Hardware.Quicker(2, streams...)
	return s
}

// QuickerNetwork returns a copy of this machine with twice the rate between its hosts, of which there are several.
func (m *Machine) QuickerNetwork() *Machine {
	s := m.Suppose()
	s.Hardware = m.Hardware.QuickerNetwork(2)
	return s
}
