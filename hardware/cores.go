package hardware

import "github.com/athanor-llm/athanor/device"

// How streams share cores.
//
// Approach: if the device is the host's own cores, a copy or a sum over ranks takes
// a core that kernels of any rank could use. Each busy stream demands cores: kernels
// all cores of their rank; any other stream one, for the fraction of its time in
// which it does not sleep (Duty). If the demand on a host exceeds its cores, two sides divide
// them: the kernels of compute streams, and everything else, which goes first since
// kernels yield between tasks (device/cpu/turns.go). The division is max-min fair: a
// side gets its demand, or what the other leaves, but at least half.
//
//	2 cores   demand      gets        relative speed
//	          kernels 2   1           1/2
//	          a copy  1   1           1
//
// Work is conserved, which matters if four ranks on two cores are busy all the
// time. Known weakness: the loss of cached data when another rank takes a core is
// not modelled.

// Duty is the fraction of a stream's busy time that occupies a core: 1 for a copy
// by a core, little for one that sleeps while a slow link transfers.
type Duty struct {
	Stream device.Stream `json:"stream"`
	Part   float64       `json:"part"`
}

// duty returns the fraction of its busy time in which a stream occupies a core.
func (h *Hardware) duty(s device.Stream) float64 {
	for _, d := range h.Duties {
		if d.Stream == s {
			return d.Part
		}
	}
	return 0
}

// Demand returns how many cores a call keeps busy. Between hosts it sleeps for most of the time, or computes with what
// it has received.
func (h *Hardware) Demand(c *device.Call) float64 {
	if h.Network != nil && c.Op.Info().Between {
		if hosts, _, _ := h.Network.spread(c); hosts > 1 {
			return h.Network.Duty
		}
	}
	return h.demand(c.Stream)
}

// demand returns how many cores a call of a stream keeps busy.
func (h *Hardware) demand(s device.Stream) float64 {
	if s == device.Compute || s == device.HostCompute {
		return h.duty(s) * float64(h.Cores)
	}
	return h.duty(s)
}

// Host returns the host of a rank.
func (h *Hardware) Host(rank int) int { return h.Network.Host(rank) }

// Crowd computes the factor by which calls of each stream take longer while calls that demand so many cores, by stream, run on
// a host. It reports false, leaving slower as it is, if streams do not share cores.
func (h *Hardware) Crowd(active, slower *[device.NumStreams]float64) bool {
	cores := float64(h.AtOnce * h.Cores)
	if h.Network != nil {
		cores /= float64(h.Network.Hosts)
	}
	if cores == 0 || len(h.Duties) == 0 {
		return false
	}
	kernels, others := active[device.Compute], 0.0 // cores demanded
	for s, n := range active {
		if device.Stream(s) != device.Compute {
			others += n
		}
	}
	left := max(cores-others, cores/2) // for kernels
	rest := cores - min(kernels, left)
	late := 0.0
	if others > rest { // rest is not 0 then
		late = others/rest - 1
	}
	for s := range slower {
		slower[s] = 1
	}
	for _, d := range h.Duties {
		if d.Stream == device.Compute {
			slower[d.Stream] = max(kernels/left, 1)
		} else {
			slower[d.Stream] += d.Part * late
		}
	}
	return true
}
