package hardware

import "github.com/athanor-llm/athanor/device"

// How streams share cores.
//
// Where the device is the host's own cores, a copy or a sum over ranks takes a
// core that kernels could use, whichever rank it is of. Each stream that works
// wants so many cores: kernels all that their rank has, another stream one, for
// the part of its time in which it does more than sleep (Duty). If the machine
// has fewer than are wanted, two sides divide them: the kernels of compute
// streams, and all else, which goes first since kernels step back between tasks
// (device/cpu/turns.go). Max-min fair: a side gets what it wants, or what the
// other leaves, but half at least.
//
//	2 cores   wanted      has         goes on at the rate
//	          kernels 2   1           1/2
//	          a copy  1   1           1
//
// Work is conserved, which is what matters if four ranks on two cores have
// something to do all the time. Known weakness: what a rank that steps in leaves
// of another's caches is not known.

// Duty is the part of its time in which a stream's work keeps a core busy: 1
// for a copy by a core, little for one that sleeps while a slow link is busy.
type Duty struct {
	Stream device.Stream `json:"stream"`
	Part   float64       `json:"part"`
}

// duty is the part of its time in which a stream keeps a core busy.
func (h *Hardware) duty(s device.Stream) float64 {
	for _, d := range h.Duties {
		if d.Stream == s {
			return d.Part
		}
	}
	return 0
}

// Crowd tells how many times as long calls of each stream take while so many of
// each, on all ranks together, execute, and whether they share cores at all.
func (h *Hardware) Crowd(active, slower *[device.NumStreams]float64) bool {
	cores := float64(h.AtOnce * h.Cores)
	if cores == 0 || len(h.Duties) == 0 {
		return false
	}
	var kernels, others float64 // cores that are wanted
	for _, d := range h.Duties {
		switch n := active[d.Stream] * d.Part; d.Stream {
		case device.Compute:
			kernels = n * float64(h.Cores)
		case device.HostCompute:
			others += n * float64(h.Cores)
		default:
			others += n
		}
	}
	left := max(cores-others, cores/2) // for kernels
	rest := cores - min(kernels, left)
	late := 0.0
	if others > rest { // so there are others, and rest is not 0
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
