package machine

import (
	"errors"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/hardware"
)

// Alone is one device that is opened without a configuration, and the memory that programs may take there.
type Alone struct {
	device.Device
	Capacity [device.NumTiers]int64
	Shared   int64 // what device and host tier draw on together, in bytes; 0: they are separate
	HeadUnit int   // see search.Request
}

// OpenAlone opens one device, cpu or cuda, for sequences of seq tokens, 0 for generation, which sums nothing over tokens. A limit above 0
// bounds the bytes of device memory that programs may take.
func OpenAlone(name string, seq int, limit int64) (*Alone, error) {
	memory, err := hardware.LocalMemory("", 0)
	if err != nil {
		return nil, err
	}
	a := &Alone{Shared: memory.Host}
	if name == "cuda" {
		a.Shared, a.HeadUnit = 0, cuda.SumRows(seq)
		a.Device, memory.Device, err = openGPU(a.HeadUnit)
	} else {
		a.Device = cpu.New(cpu.Options{})
	}
	if err != nil {
		return nil, err
	}
	a.Capacity = memory.Tiers()
	if limit > 0 {
		a.Capacity[device.DeviceTier] = min(limit, memory.Device)
	}
	return a, nil
}

// openGPU opens the first GPU, and returns the bytes of its memory that programs may take. Sums over tokens are cut at multiples of
// so many.
func openGPU(sumRows int) (device.Device, int64, error) {
	dir, err := CacheDir()
	if err != nil {
		return nil, 0, err
	}
	gpus, err := cuda.GPUs()
	if err != nil {
		return nil, 0, err
	}
	o := cuda.Options{CacheDir: kernelsIn(dir), SumRows: sumRows}
	if len(gpus) > 0 { // else Open says what is amiss
		o.Index = gpus[0].Index
	}
	d, err := cuda.Open(o)
	if err != nil {
		return nil, 0, err
	}
	free, _, err := d.Memory()
	if err != nil {
		return nil, 0, errors.Join(err, d.Close())
	}
	return d, forPrograms(free), nil
}
