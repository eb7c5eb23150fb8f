// Package machine is what a run runs on: what is here, or described.
//
//	Find(request)      --> Machine    the one at hand, measured once
//	Describe(request)  --> Machine    or one that is only described
//	Machine.Open(programs) --> devices, one per rank
//	Machine.Suppose, WithMemory, Quicker --> Machine   another with some numbers changed
//
// Ownership. A Machine owns no devices: it is a description, with the capacity of each rank. Open opens devices
// for given programs; they are the caller's. For GPUs it keeps the pinned host memory of closed devices for
// those opened next, until Close, which must come after the devices' own. Measurements are kept in the user's
// cache folder (CacheDir) under a key of all that changes them. Free memory changes, so it is read when a
// machine is found, before this machine keeps more than the probe's few MB: close a machine before finding
// another.
//
// Invariants. A machine knows of no plan and no configuration: package planner asks it for numbers and devices. Ranks compute
// on cores or on GPUs of their own, here or on other hosts; all that differs between
// these is behind the interface backend.
//
// Where to look:
//
//	request.go                           what a run needs
//	machine.go, described.go, cache.go   finding and describing machines
//	suppose.go, alone.go                 other machines; one device by itself
//	probe.go, backend*.go                measuring; CPU and CUDA
//	backend_hosts.go, serve.go           ranks on other hosts, ranks for others' runs
package machine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/program"
)

// Machine describes the hardware of a run, with the capacity of each rank, and
// opens devices on it.
type Machine struct {
	Hardware *hardware.Hardware
	Capacity [device.NumTiers]int64 // bytes per rank
	// A described machine is planned for, but neither measured nor run on. A
	// supposed machine is another one with some numbers changed, see Suppose.
	described, supposed bool
	ranks               int
	jobs                int          // that share the cores and the host, at least 1
	backend             backend      // nil: described
	spill               string       // folder of the disk tier
	endurance           config.Bytes // of a host's disk, as the configuration says; config.Unlimited: it does not
	file                string       // cache file of the description
	pace                float64      // the least of the cores while operators were timed, see Pace; 0: none were
	timed               float64      // the pace of which the times then taken are: outliers are not in them
	seen                float64      // the cores' pace when it was last looked at
	looked              time.Time    // when that was
}

// Find returns this machine's description, from the cache or by probing, with the
// request's limits applied.
func Find(r *Request, note func(string)) (*Machine, error) {
	if r.Hardware.Name != "" {
		return nil, r.Fault("hardware.name", "this command runs on this machine, not on a described one; hint: leave hardware.name out, or use plan, simulate or draw")
	}
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	if r.Ranks > MaxRanks {
		return nil, r.Fault("ranks", fmt.Sprintf("%d is too many; hint: at most %d ranks run on one machine", r.Ranks, MaxRanks))
	}
	m := &Machine{spill: r.Spill, ranks: r.Ranks, jobs: max(r.Jobs, 1), endurance: r.Limits.DiskEndurance}
	if m.backend, err = newBackend(r, dir, note); err != nil {
		return nil, err
	}
	m.file = filepath.Join(dir, m.cacheName(r))
	err = m.measured(r.Process, note)
	var bad unusable
	if errors.As(err, &bad) {
		return nil, r.Fault("device", bad.Error())
	}
	if err != nil {
		return nil, err
	}
	if err := m.limit(r); err != nil {
		return nil, err
	}
	return m.Deal(r.Sharing, 1), nil
}

// measured sets the description: rates from the cache or by probing, memory as it is
// now, since that changes.
func (m *Machine) measured(process int64, note func(string)) (err error) {
	dir := existing(m.spill)
	if m.Hardware = m.cached(); m.Hardware == nil {
		note("probing the machine (once)")
		if m.Hardware, err = probe(m.backend, m.ranks, dir); err != nil {
			return err
		}
		m.save()
		debug.FreeOSMemory() // the garbage of the probe would be counted as taken
	}
	m.Hardware.Memory, err = m.backend.memory(dir, process)
	if !m.diskMeasured() {
		m.Hardware.Memory.Disk = 0
	}
	return err
}

// Open opens a device for each rank's program. The caller closes them.
func (m *Machine) Open(ps []*program.Program) ([]device.Device, error) {
	for _, p := range ps {
		if p.Height[device.DiskTier] > 0 {
			if err := os.MkdirAll(m.spill, 0o755); err != nil {
				return nil, fmt.Errorf("the disk tier: %w; hint: set limits.disk_path to a folder that can be written", err)
			}
		}
	}
	return m.backend.open(len(ps), filepath.Join(m.spill, "rank"))
}

// Close frees the memory that is kept for devices, all of which must be closed. The machine can still be used.
func (m *Machine) Close() error {
	if m.backend == nil {
		return nil
	}
	return m.backend.close()
}

// AtHand reports whether this is the machine that the process runs on, unchanged:
// then plans can be measured on it, else only predicted.
func (m *Machine) AtHand() bool { return !m.described && !m.supposed }

// Idle returns the number of GPUs here that no rank has.
func (m *Machine) Idle() int {
	if m.backend == nil {
		return 0
	}
	return m.backend.idle()
}

// limit sets each rank's capacity of each tier to the request's limit or to
// what the machine has. The device limit applies to each rank; the limits of host
// and disk apply to all ranks together, which share them evenly.
func (m *Machine) limit(r *Request) error {
	n := int64(m.ranks * m.Jobs())
	m.Capacity = m.Hardware.Memory.Tiers()
	if !m.described { // a description is already one rank's share
		if m.Hardware.Memory.Shared {
			m.Capacity[device.DeviceTier] /= n
		}
		m.Capacity[device.HostTier] /= n
		m.Capacity[device.DiskTier] /= n
	}
	limits := [device.NumTiers]config.Bytes{device.DeviceTier: r.Limits.Device, device.HostTier: r.Limits.Host, device.DiskTier: r.Limits.Disk}
	for t := range device.NumTiers {
		l := limits[t]
		if l == config.Unlimited {
			continue
		}
		have, all := m.Capacity[t], int64(m.ranks)
		if t == device.DeviceTier {
			all = 1
		}
		if m.Capacity[t] = int64(l) / all; m.Capacity[t] > have {
			return r.Fault("limits."+t.String(), fmt.Sprintf("%s, but this machine has %s; hint: leave it out to use what there is", size.Exact(int64(l)), size.Exact(have*all)))
		}
	}
	return nil
}

// enduranceOfSize is how often a disk can be written over as a whole, by what makers state for consumers' NVMe disks:
// 600 TBW for 1 TB and 1200 for 2 TB (Samsung 980 and 990 Pro, WD Black SN850X, Crucial T500).
const enduranceOfSize = 600

// Endurance returns how many bytes may be written to a host's disk in its life; 0: it does not wear.
func (m *Machine) Endurance() int64 {
	if m.endurance != config.Unlimited {
		return int64(m.endurance)
	}
	whole := m.Hardware.Memory.WholeDisk
	if whole == 0 { // described by an older version: at least what was free
		whole = m.Hardware.Memory.Disk
	}
	return enduranceOfSize * min(whole, math.MaxInt64/enduranceOfSize)
}

// Ranks returns the number of ranks.
func (m *Machine) Ranks() int { return m.ranks }

// Jobs returns the number of jobs that share the host, this one too.
func (m *Machine) Jobs() int { return max(m.jobs, 1) }

// HeadUnit returns the number of tokens at multiples of which sums over tokens may be cut, for sequences of seq
// tokens; 0: anywhere.
func (m *Machine) HeadUnit(seq int) int {
	if m.backend == nil {
		return 0
	}
	return m.backend.headUnit(seq)
}

// OneAtATime returns this machine for timing calls one by one, on which none shares its cores.
func (m *Machine) OneAtATime() *Machine {
	own := *m
	own.backend = m.backend.oneAtATime()
	return &own
}

// Shared returns the memory that device and host tiers of all ranks draw on
// together, in bytes; 0 if each tier has its own.
func (m *Machine) Shared() int64 {
	switch {
	case !m.Hardware.Memory.Shared:
		return 0
	case m.described: // memory is one rank's share
		return m.Hardware.Memory.Host * int64(m.ranks)
	}
	return m.Hardware.Memory.Host
}

// Products returns the share of Peak that large products reach, as measured or, of a described machine, as published: a
// step's MFU over it says what is lost besides.
func (m *Machine) Products() float64 { return m.Hardware.Engine(device.Compute).Matmul }

// Peak returns the peak FLOP/s of all ranks together in the graph's precision, the
// denominator of model FLOPs utilisation (MFU): of a known GPU what its maker states, dense, else what was measured.
func (m *Machine) Peak(g *graph.Graph) float64 {
	e := m.Hardware.Engine(device.Compute)
	n := m.ranks
	if m.Hardware.AtOnce > 0 { // the other ranks wait for cores
		n = min(n, m.Hardware.AtOnce)
	}
	if g.DType == graph.BF16 {
		return e.Peak.BF16 * float64(n)
	}
	return e.Peak.F32 * float64(n)
}
