package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/session"
)

// Probe measures this machine's processor with all cores or, with device cuda, a GPU, its disk in the folder r.Spill
// and, for several ranks, the link between them. If there are other hosts, it takes the slowest processor. note is told how
// GPUs of several hosts exchange bytes.
func Probe(r *Request, note func(string)) (*hardware.Hardware, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	b, err := newBackend(r, cache, note)
	if err != nil {
		return nil, err
	}
	return probe(b.allCores(), r.Ranks, r.Spill)
}

// probe measures what ranks on a backend have, the disk in folder dir and, for
// several ranks, the link between them. Each measurement opens fresh devices.
func probe(b backend, ranks int, dir string) (*hardware.Hardware, error) {
	if err := roomToProbe(b, ranks, dir); err != nil {
		return nil, err
	}
	memory, err := b.memory(dir, 0)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, fmt.Sprintf(".athanor-probe-%d", os.Getpid()))
	h, err := probeTogether(b, withoutFullDisk(memory, b.probed()), file)
	if err != nil {
		return nil, err
	}
	h.AtOnce = b.atOnce()
	d, err := b.alone(0, file)
	if err != nil {
		return nil, err
	}
	if n := b.network(); n != nil { // what the streams of a rank share are the cores of its host
		h.AtOnce /= n.Hosts
	}
	err = errors.Join(hardware.ProbeContention(d, h), d.Close())
	h.AtOnce = b.atOnce()
	if err != nil || ranks < 2 {
		return h, err
	}
	devices, err := b.open(ranks, file)
	if err != nil {
		return nil, err
	}
	return h, errors.Join(hardware.ProbePeers(devices, b.network(), h), session.CloseAll(devices))
}

// roomToProbe rejects a probe for which there is too little memory beside what a process takes whose model is not
// loaded yet. Each arena by itself would be reserved, and then the process be killed for the rest.
func roomToProbe(b backend, ranks int, dir string) error {
	m, err := b.memory(dir, session.ProcessBytes(&graph.Graph{}))
	if err != nil {
		return err
	}
	need := int64(b.probed()) * hardware.ProbeBytes // of the host tier
	if m.Shared {
		need = max(2*need, int64(ranks)*hardware.PeerBytes)
	}
	if need > m.Host {
		return fmt.Errorf("probe this machine: %w: %s are needed besides what the process takes, but only %s are available; hint: allow it more memory, or end other programs; what is measured is kept, so later starts need less",
			device.ErrMemory, size.Exact(need), size.Exact(m.Host))
	}
	return nil
}

// probeTogether measures one rank's device while other ranks do the same, as many as are probed at the same
// time, and returns the slowest, for which steps wait. Disks are measured on files whose names begin with file.
func probeTogether(b backend, memory hardware.Memory, file string) (h *hardware.Hardware, err error) {
	var devices []device.Device
	defer func() { err = errors.Join(err, session.CloseAll(devices)) }()
	for r := range b.probed() {
		d, err := b.alone(r, fmt.Sprint(file, "-", r))
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	found, errs := make([]*hardware.Hardware, len(devices)), make([]error, len(devices))
	var all sync.WaitGroup
	for r, d := range devices {
		all.Go(func() { found[r], errs[r] = hardware.Probe(d, memory) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	h = found[0]
	for _, other := range found[1:] {
		if products(other) < slower*products(h) {
			h = other
		}
	}
	return h, nil
}

// slower is the fraction of another rank's speed below which a rank is taken for slower hardware, rather than
// for the same measured at a worse moment.
const slower = 0.9

// products returns the rate of fp32 matrix products.
func products(h *hardware.Hardware) float64 {
	e := h.Engine(device.Compute)
	return e.Peak.F32 * e.Matmul
}

// withoutFullDisk drops the disk tier if the disk has no room for the given number
// of simultaneous probes. Little could be spilled there, and a run that does not
// need it should not fail.
func withoutFullDisk(m hardware.Memory, probes int) hardware.Memory {
	if m.Disk < int64(probes)*hardware.ProbeBytes {
		m.Disk = 0
	}
	return m
}
