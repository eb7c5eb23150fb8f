package machine

import (
	"path/filepath"
	"slices"

	"github.com/athanor-llm/athanor/hardware"
)

// Keep puts a description into the cache as what the cores of this machine are for each of so many ranks, where
// no link is throttled and spilled data is on the disk of folder dir. Find then takes it and does not probe.
func Keep(h *hardware.Hardware, ranks int, dir string) error {
	return keep(h, &cpuBackend{ranks: ranks, jobs: 1}, ranks, dir)
}

// KeepLaunched is Keep for ranks in so many processes that a launcher has started on this machine.
func KeepLaunched(h *hardware.Hardware, ranks, processes int, dir string) error {
	return keep(h, &hostsBackend{here: &cpuBackend{ranks: ranks / processes, jobs: 1}, others: make([]string, processes-1), grid: gridOf(slices.Repeat([]int{ranks / processes}, processes)), together: int64(processes), over: "TCP"}, ranks, dir)
}

func keep(h *hardware.Hardware, b backend, ranks int, dir string) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	m := &Machine{Hardware: h, ranks: ranks, backend: b, spill: dir}
	m.file = filepath.Join(cache, m.cacheName(&Request{}))
	m.save()
	return nil
}
