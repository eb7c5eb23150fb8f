package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/program"
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
		return openGPUs(m.cuda, len(ps), filepath.Join(filepath.Dir(m.options.DiskPath), "rank"))
	}
	return openRanks(m.options, len(ps)), nil
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
			return nil, errors.Join(err, closeAll(list))
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

// openAlone opens a device by name, without a configuration.
func openAlone(name string) (device.Device, error) {
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

// openRanks opens n connected CPU devices.
func openRanks(options cpu.Options, n int) []device.Device {
	if n == 1 {
		return []device.Device{cpu.New(options)}
	}
	var list []device.Device
	fabric := cpu.NewFabric(n)
	dir := filepath.Dir(options.DiskPath)
	for r := range n {
		o := options
		o.Fabric, o.Rank = fabric, r
		o.DiskPath = filepath.Join(dir, fmt.Sprintf("rank%d", r))
		list = append(list, cpu.New(o))
	}
	return list
}

// closeAll closes devices.
func closeAll(devices []device.Device) error {
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
