package machine

import (
	"runtime"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/hardware"
)

// mostProbed bounds the ranks on cores that are probed at the same time. More would
// not change the contention seen, and each needs some hundred MiB.
const mostProbed = 8

// cpuBackend is the backend of ranks that share this machine's cores, or of one rank
// that is measured with all of them.
type cpuBackend struct {
	options cpu.Options // of a device; Workers 0: all cores
	ranks   int
	jobs    int // with as many ranks each, which keep their cores busy
}

// newCPU gives each rank its share of the cores, and links as throttled as the
// request says.
func newCPU(r *Request) *cpuBackend {
	jobs := max(r.Jobs, 1)
	return &cpuBackend{ranks: r.Ranks, jobs: jobs, options: cpu.Options{Workers: workers(r.Ranks * jobs), Rate: rates(r)}}
}

// rates returns the rates to which links are throttled.
func rates(r *Request) (list [device.NumStreams]float64) {
	list[device.HostToDev], list[device.DevToHost] = float64(r.Hardware.H2D), float64(r.Hardware.D2H)
	for _, s := range []device.Stream{device.Collective, device.Send, device.Recv} {
		list[s] = float64(r.Hardware.Peers)
	}
	return list
}

// workers returns the cores per rank.
func workers(ranks int) int { return max(1, runtime.GOMAXPROCS(0)/ranks) }

func (b *cpuBackend) id() string { return "cpu" }

func (b *cpuBackend) memory(dir string, process int64) (hardware.Memory, error) {
	return hardware.LocalMemory(dir, process)
}

func (b *cpuBackend) probed() int { return min(b.atOnce()*b.jobs, mostProbed) }

// atOnce returns how many of the ranks can have cores of their own.
func (b *cpuBackend) atOnce() int {
	if b.options.Workers == 0 {
		return 1
	}
	return min(b.ranks, max(1, runtime.GOMAXPROCS(0)/(b.options.Workers*b.jobs)))
}

func (b *cpuBackend) allCores() backend {
	own := *b
	own.options.Workers = 0
	return &own
}

func (b *cpuBackend) openOne() (device.Device, hardware.Memory, error) {
	m, err := hardware.LocalMemory("", 0)
	if err != nil {
		return nil, m, err
	}
	d, err := b.alone(0, "")
	return d, m, err
}

func (b *cpuBackend) led(p remote.Place) localBackend {
	own := *b
	own.options.Rate, own.options.Apart = p.Rate, p.Apart
	return &own
}

func (b *cpuBackend) cards() []string { return nil }

func (b *cpuBackend) alone(_ int, disk string) (device.Device, error) {
	o := b.options
	o.DiskPath = disk
	return cpu.New(o), nil
}

func (b *cpuBackend) open(n int, disk string) ([]device.Device, error) {
	o := b.options
	o.DiskPath = disk
	if o.Workers == 0 {
		o.Workers = workers(n)
	}
	return cpu.OpenRanks(o, n), nil
}

func (b *cpuBackend) boards() ([]string, string) { return nil, "" }

func (b *cpuBackend) openShared(n int, hub *link.Hub, _ bool) (open func(rank, own int, disk string) (device.Device, error), origin time.Time) {
	f := cpu.NewFabricAcross(n, hub)
	return func(rank, _ int, disk string) (device.Device, error) {
		o := b.options
		o.Fabric, o.Rank, o.DiskPath = f, rank, disk
		return cpu.New(o), nil
	}, f.Opened()
}

func (b *cpuBackend) oneAtATime() backend {
	own := *b
	own.options.Apart = true
	return &own
}

func (b *cpuBackend) headUnit(int) int { return 0 }

func (b *cpuBackend) network() *hardware.Network { return nil }

func (b *cpuBackend) idle() int { return 0 }

func (b *cpuBackend) close() error { return nil }
