package machine

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
)

// backend is what the ranks compute on. All that differs between CPU and GPUs is
// behind it; probing, limits and planning are the same.
type backend interface {
	// id distinguishes devices that may have different rates.
	id() string
	// memory returns what is available now for arenas; for the device tier, the least of any rank's. dir is on the
	// disk that runs spill to; process is what the process takes besides, 0 if that is not known.
	memory(dir string, process int64) (hardware.Memory, error)
	// probed is the number of ranks that are probed at the same time.
	probed() int
	// atOnce is the number of ranks that have cores at the same time; 0: they need none.
	atOnce() int
	// alone opens the device of one rank, not joined to the others'. Its spill file
	// is disk.
	alone(rank int, disk string) (device.Device, error)
	// open opens the devices of n ranks, joined if there are several. The spill file
	// of rank r is disk followed by r.
	open(n int, disk string) ([]device.Device, error)
	// oneAtATime returns a backend for timing calls one by one, on which none shares its cores.
	oneAtATime() backend
	// headUnit is the number of tokens at multiples of which sums over tokens may be cut, for sequences of seq
	// tokens; 0: anywhere.
	headUnit(seq int) int
	// idle is the number of GPUs that no rank has.
	idle() int
	// close releases what closed devices have left for later ones.
	close() error
}

// newBackend returns the backend that a request needs. dir is the cache folder.
func newBackend(r *Request, dir string) (backend, error) {
	switch {
	case len(r.Hosts) > 0:
		return newHosts(r, dir)
	case r.Device == "cuda":
		return newCUDA(r, dir)
	}
	return newCPU(r), nil
}
