package machine

import (
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
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
	// allCores returns a backend of which one rank by itself has all cores.
	allCores() backend
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
	// network says which host each rank is on; nil: all are on one.
	network() *hardware.Network
	// idle is the number of GPUs that no rank has.
	idle() int
	// close releases what closed devices have left for later ones.
	close() error
}

// localBackend is a backend whose ranks are on this host. They can be part of a larger fabric.
type localBackend interface {
	backend
	// openShared returns a function that opens this host's ranks of a fabric of n, given their numbers in the
	// fabric and on this host, and the origin of their spans' clock. Ranks elsewhere are reached through hub.
	// If nccl, these are reached over NCCL.
	openShared(n int, hub *link.Hub, nccl bool) (open func(rank, own int, disk string) (device.Device, error), origin time.Time)
	// openOne opens the first rank's device for somebody who has no other, and returns the memory that is available
	// there.
	openOne() (device.Device, hardware.Memory, error)
	// led returns the backend for a run that another host leads, and says what is the same for all devices.
	led(p remote.Place) localBackend
	// cards returns the names of the GPUs.
	cards() []string
	// boards tells the GPUs apart from all others, also from those of other hosts. nccl is the version of NCCL over which
	// they can be reached; "": none.
	boards() (ids []string, nccl string)
}

// newBackend returns the backend that a request needs. dir is the cache folder. note is told what the user did not decide.
func newBackend(r *Request, dir string, note func(string)) (backend, error) {
	if len(r.Hosts) > 0 {
		return newHosts(r, dir, note)
	}
	return newLocal(r, dir)
}

// newLocal returns the backend of ranks that are all on this host.
func newLocal(r *Request, dir string) (localBackend, error) {
	if !device.IsGPU(r.Device) {
		return newCPU(r), nil
	}
	b, err := newCUDA(r, dir)
	if err != nil {
		return nil, err
	}
	return b, nil
}
