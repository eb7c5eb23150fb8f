package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/session"
)

// cudaBackend is the backend of ranks that have a GPU each.
type cudaBackend struct {
	options cuda.Options  // of a device
	gpus    []cuda.GPU    // each rank's
	unused  int           // GPUs that no rank has
	pinned  []cuda.Pinned // each rank's host arena, which operator timing, trials and the run use in turn; nil: none is kept
}

// newCUDA finds a GPU for each rank.
func newCUDA(r *Request, dir string) (*cudaBackend, error) {
	gpus, err := cuda.GPUs()
	if err != nil {
		return nil, r.Fault("device", err.Error())
	}
	ranks := r.Ranks
	if len(gpus) == 0 {
		return nil, r.Fault("device", "the driver shows no GPU; hint: check CUDA_VISIBLE_DEVICES, or compute on the cpu")
	}
	if n := len(gpus); n < ranks {
		return nil, r.Fault("ranks", fmt.Sprintf("%d ranks need a GPU each, but this machine shows %d; hint: set ranks: %d, check CUDA_VISIBLE_DEVICES, or set device: cpu", ranks, n, n))
	}
	options := cuda.Options{CacheDir: kernelsIn(dir), SumRows: cuda.SumRows(r.Sequence), Workers: besideGPU(workers(ranks))}
	return &cudaBackend{options: options, gpus: gpus[:ranks], unused: len(gpus) - ranks, pinned: make([]cuda.Pinned, ranks)}, nil
}

// kernelsIn returns the cache folder of compiled kernels.
func kernelsIn(dir string) string { return filepath.Join(dir, "kernels") }

// besideGPU reserves one of a rank's cores, if it has several, for the goroutines that feed its GPU and its
// disk. They block in system calls. Kernels that occupy all of Go's processors would delay their return until
// the scheduler preempts, after 10 ms, during which the GPU may run out of work.
func besideGPU(cores int) int {
	if cores > 2 {
		cores--
	}
	return cores
}

func (b *cudaBackend) id() string { return fmt.Sprintf("cuda %q", b.cards()) }

func (b *cudaBackend) cards() (names []string) {
	for _, g := range b.gpus {
		names = append(names, g.Name)
	}
	return names
}

// boards identifies GPUs by the start of their system and by where they are in it.
func (b *cudaBackend) boards() (ids []string, nccl string) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, ""
	}
	for _, g := range b.gpus {
		ids = append(ids, strings.TrimSpace(string(boot))+" "+g.BusID)
	}
	if lib, err := cuda.FindNCCL(); err == nil && lib != nil { // connections do without
		nccl = lib.Version()
	}
	return ids, nccl
}

func (b *cudaBackend) network() *hardware.Network { return nil }

func (b *cudaBackend) idle() int { return b.unused }

// memory leaves the process a share of the host's memory, since how much the driver takes there is not known.
func (b *cudaBackend) memory(dir string, _ int64) (hardware.Memory, error) {
	mem, err := hardware.LocalMemory(dir, 0)
	if err != nil {
		return mem, err
	}
	mem.Shared = false
	for r := range b.gpus {
		d, err := b.device(r, nil, "")
		if err != nil {
			return mem, err
		}
		free, _, err := d.Memory()
		if err = errors.Join(err, d.Close()); err != nil {
			return mem, err
		}
		if free = forPrograms(free); r == 0 || free < mem.Device {
			mem.Device = free
		}
	}
	return b.unify(mem), nil
}

// unify says which memory is one, of a machine whose GPU has none of its own: what is free of it is free for both tiers together.
func (b *cudaBackend) unify(mem hardware.Memory) hardware.Memory {
	if b.gpus[0].Unified {
		mem.Device, mem.Shared, mem.Unified = min(mem.Device, mem.Host), true, true
	}
	return mem
}

// forPrograms returns the part of a GPU's free memory that programs may take: the driver needs 3 % for code and stacks.
func forPrograms(free int64) int64 { return max(0, free-cuda.Overhead) / 100 * 97 }

// probed returns the number of GPUs: they share links and host memory, so all are measured together.
func (b *cudaBackend) probed() int { return len(b.gpus) }

func (b *cudaBackend) atOnce() int { return 0 }

func (b *cudaBackend) allCores() backend { return b }

func (b *cudaBackend) openOne() (device.Device, hardware.Memory, error) {
	m, err := hardware.LocalMemory("", 0)
	if err != nil {
		return nil, m, err
	}
	m.Shared = false
	own := *b
	own.pinned, own.options.Workers = nil, 0
	d, err := own.device(0, nil, "")
	if err != nil {
		return nil, m, err
	}
	free, _, err := d.Memory()
	if err != nil {
		return nil, m, errors.Join(err, d.Close())
	}
	m.Device = forPrograms(free)
	return d, b.unify(m), nil
}

// led: nothing says when a run that another host leads no longer needs what is pinned, so none of it is kept.
func (b *cudaBackend) led(p remote.Place) localBackend {
	own := *b
	own.options.SumRows, own.pinned = p.SumRows, nil
	return &own
}

func (b *cudaBackend) alone(rank int, disk string) (device.Device, error) {
	return b.device(rank, nil, disk)
}

func (b *cudaBackend) open(n int, disk string) ([]device.Device, error) {
	var list []device.Device
	var fabric *cuda.Fabric
	if n > 1 {
		fabric = cuda.NewFabric(n)
	}
	for r := range n {
		d, err := b.device(r, fabric, fmt.Sprint(disk, r))
		if err != nil {
			return nil, errors.Join(err, session.CloseAll(list))
		}
		list = append(list, d)
	}
	return list, nil
}

func (b *cudaBackend) openShared(n int, hub *link.Hub, nccl bool) (open func(rank, own int, disk string) (device.Device, error), origin time.Time) {
	f := cuda.NewFabricAcross(n, hub)
	if nccl {
		lib, err := cuda.FindNCCL()
		if err != nil {
			return func(int, int, string) (device.Device, error) { return nil, err }, f.Opened()
		}
		f.UseNCCL(lib)
	}
	return func(rank, own int, disk string) (device.Device, error) {
		d, err := b.joined(rank, own, f, disk)
		if err != nil {
			return nil, err
		}
		return d, nil
	}, f.Opened()
}

// device opens one rank's GPU.
func (b *cudaBackend) device(rank int, fabric *cuda.Fabric, disk string) (*cuda.Device, error) {
	return b.joined(rank, rank, fabric, disk)
}

// joined opens the GPU of a rank of a fabric; own is the rank's number on this host.
func (b *cudaBackend) joined(rank, own int, fabric *cuda.Fabric, disk string) (*cuda.Device, error) {
	if own >= len(b.gpus) {
		return nil, fmt.Errorf("rank %d needs GPU number %d of this host, which has only %d", rank, own+1, len(b.gpus))
	}
	o := b.options
	o.Index, o.Rank, o.Fabric, o.DiskPath = b.gpus[own].Index, rank, fabric, disk
	if b.pinned != nil {
		o.Pinned = &b.pinned[own]
	}
	d, err := cuda.Open(o)
	if err != nil {
		return nil, unusable{err}
	}
	return d, nil
}

func (b *cudaBackend) oneAtATime() backend { return b }

func (b *cudaBackend) headUnit(seq int) int { return cuda.SumRows(seq) }

func (b *cudaBackend) close() (err error) {
	for r := range b.pinned {
		err = errors.Join(err, b.pinned[r].Close())
	}
	return err
}

// unusable is the error of a GPU that cannot be opened.
type unusable struct{ error }

func (e unusable) Unwrap() error { return e.error }
