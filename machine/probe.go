package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/session"
)

// Probe measures this machine's processor with all cores or, with device cuda, a GPU, its disk in
// folder dir and, for several ranks, the link between them.
func Probe(device, dir string, ranks int) (*hardware.Hardware, error) {
	if device != "cuda" {
		return probe(&cpuBackend{ranks: ranks}, ranks, dir)
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	b, err := newCUDA(&config.Config{Ranks: ranks}, cache)
	if err != nil {
		return nil, err
	}
	return probe(b, ranks, dir)
}

// probe measures what ranks on a backend have, the disk in folder dir and, for
// several ranks, the link between them. Each measurement opens fresh devices.
func probe(b backend, ranks int, dir string) (*hardware.Hardware, error) {
	memory, err := b.memory(dir)
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
	err = errors.Join(hardware.ProbeContention(d, h), d.Close())
	if err != nil || ranks < 2 {
		return h, err
	}
	devices, err := b.open(ranks, file)
	if err != nil {
		return nil, err
	}
	return h, errors.Join(probePeers(devices, h), session.CloseAll(devices))
}

// probeTogether measures one rank's device while other ranks do the same, as many
// as are probed at a time. Disks are measured on files that begin with file.
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
	return found[0], errors.Join(errs...)
}

// probePeers adds the link between ranks to a description.
func probePeers(devices []device.Device, h *hardware.Hardware) error {
	link, measured, duties, err := hardware.ProbePeers(devices)
	if err != nil {
		return err
	}
	h.Links, h.Duties = append(h.Links, link), append(h.Duties, duties...)
	h.Add(measured)
	return nil
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
