package machine

import (
	"context"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/device/link"
)

// Request says what a run needs of a machine.
type Request struct {
	config.Lines           // errors name the keys of the configuration that asks
	Device       string    // cpu or cuda
	Ranks        int       // at least 1
	Hosts        []string  // addresses of the run's other processes, which have ranks too
	Key          []byte    // that they know; nil: Hosts are only named, and there are no processes yet
	Over         string    // what carries bytes between processes
	Links        link.Open // over which ranks of different processes exchange bytes; nil: over connections
	Together     int       // processes of the run on this host, which share its memory and disk; at most 1: this one
	Sharing      int       // ranks to each sequence or each matrix, which are on one host as far as possible; at most 1: each has its own
	Jobs         int       // that run on this host at the same time, each with an equal share of cores and memory; at most 1: this one
	Limits       config.Limits
	Hardware     config.Hardware // the machine that is only described, and rates of throttled links
	Spill        string          // folder of the disk tier
	Batch        int             // sequences per step
	Sequence     int             // tokens
	Process      int64           // bytes that the process takes besides its arenas; 0: not known
}

// MaxRanks bounds the ranks of one process: each has its own streams and arenas,
// and a share of the cores.
const MaxRanks = 64

// CountRanks returns the number of ranks of a request that may leave it open, as config.AutoRanks: then there is one
// for each GPU among which the batch can be divided, and one for all cores of a host.
func CountRanks(r *Request) (int, error) {
	hosts := len(r.Hosts) + 1
	switch {
	case r.Ranks != config.AutoRanks:
		return max(r.Ranks, 1), nil
	case r.Hardware.Name != "": // a description does not say how many there are on a host
		return max(r.Hardware.Hosts, 1), nil
	case !device.IsGPU(r.Device):
		return hosts, nil
	}
	gpus, err := cuda.GPUs()
	if err != nil {
		return 0, r.Fault("device", err.Error())
	}
	return hosts * ranksFor(len(gpus), max(r.Batch/hosts, 1)), nil
}

// ranksFor returns the most ranks, one per GPU, among which a batch can be divided.
func ranksFor(gpus, batch int) int {
	n := min(max(gpus, 1), MaxRanks)
	for batch%n != 0 {
		n--
	}
	return n
}

// DriverPatience bounds the wait for the GPU driver's answer.
const DriverPatience = 20 * time.Second

// ChooseDevice returns what device auto stands for: cuda if this machine has a GPU that can be used, else
// cpu. If there is a GPU that cannot be used, it notes why. Other values are returned unchanged.
func ChooseDevice(device string, note func(string)) string {
	if device != "auto" {
		return device
	}
	if !cuda.Installed() { // so no child process has to look
		return "cpu"
	}
	return chosenDevice(cuda.Probe(context.Background(), DriverPatience), note)
}

// chosenDevice is what auto stands for, given what was found.
func chosenDevice(found *cuda.Found, note func(string)) string {
	name := "a GPU"
	switch {
	case found.OK:
		if found.Slow != "" {
			note(found.Slow)
		}
		return "cuda"
	case len(found.Cards) > 0:
		name = found.Cards[0].Name
	case !found.Lost: // a driver without a GPU
		return "cpu"
	}
	if len(found.Missing) > 0 {
		note("computing on the CPU, not on " + name + ": " + found.Missing[0])
	}
	return "cpu"
}
