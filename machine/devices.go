package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// Open opens a device for each rank's program. The caller closes them.
func (m *Machine) Open(ps []*program.Program) ([]device.Device, error) {
	for _, p := range ps {
		if p.Height[device.DiskTier] > 0 {
			if err := os.MkdirAll(filepath.Dir(m.options.DiskPath), 0o755); err != nil {
				return nil, fmt.Errorf("the disk tier: %w; hint: set limits.disk_path to a folder that can be written", err)
			}
		}
	}
	if m.backend == "cuda" {
		return openGPUs(m.cuda, len(ps), m.options.DiskPath)
	}
	return cpu.OpenRanks(m.options, len(ps)), nil
}

// openGPUs opens one GPU per rank, connected if there are several. Rank r's spill
// file is disk followed by r.
func openGPUs(options cuda.Options, n int, disk string) ([]device.Device, error) {
	var list []device.Device
	if n > 1 {
		options.Fabric = cuda.NewFabric(n)
	}
	for r := range n {
		o := options
		o.Index, o.Rank, o.Workers = r, r, besideGPU(workers(n))
		o.DiskPath = fmt.Sprint(disk, r)
		d, err := cuda.Open(o)
		if err != nil {
			return nil, errors.Join(err, session.CloseAll(list))
		}
		list = append(list, d)
	}
	return list, nil
}

// besideGPU reserves one of a rank's cores, if it has several, for the goroutines
// that feed its GPU and its disk. They block in system calls. Kernels that occupy
// all of Go's processors would delay their return until the scheduler preempts,
// after 10 ms, in which the GPU may run out of work.
func besideGPU(cores int) int {
	if cores > 2 {
		cores--
	}
	return cores
}

// OpenAlone opens a device by name, without a configuration.
func OpenAlone(name string) (device.Device, error) {
	if name != "cuda" {
		return cpu.New(cpu.Options{}), nil
	}
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	return cuda.Open(cuda.Options{CacheDir: kernelsIn(dir)})
}

// kernelsIn returns the cache folder of compiled kernels.
func kernelsIn(dir string) string { return filepath.Join(dir, "kernels") }
