package machine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// MaxRanks bounds the ranks of one process: each has its own streams and arenas,
// and a share of the cores.
const MaxRanks = 64

// mostProbed bounds the ranks that are probed at the same time. More would not
// change the contention seen, and each needs some hundred MiB.
const mostProbed = 8

// profileBudget bounds the time spent on timing the operators of a candidate.
const profileBudget = 3 * time.Second

// workers returns the cores per rank.
func workers(ranks int) int { return max(1, runtime.GOMAXPROCS(0)/ranks) }

// Machine describes the hardware of a run, with the capacity of each rank, and
// opens devices on it.
type Machine struct {
	Hardware *hardware.Hardware
	Capacity [device.NumTiers]int64
	// A described machine is planned for, but neither measured nor run on. A
	// supposed machine is another one with some numbers changed, see WhatIfs.
	described, supposed bool
	ranks               int
	backend             string   // cpu or cuda
	gpus                []string // name of each rank's GPU
	options             cpu.Options
	cuda                cuda.Options
	file                string // cache file of the description
}

// Find returns this machine's description, from the cache or by probing,
// with the configuration's limits applied.
func Find(c *config.Config, note func(string)) (*Machine, error) {
	if c.Hardware.Name != "" {
		return nil, c.Fault("hardware.name", "this verb runs on the machine that is here; hint: leave it out, or use plan, simulate or draw")
	}
	m := &Machine{backend: "cpu", ranks: max(c.Ranks, 1)} // also for device auto, until the CUDA backend has run on a GPU
	if c.Device == "cuda" {
		m.backend = "cuda"
		names, err := cuda.Names()
		if n := len(names); err == nil && n < m.ranks {
			return nil, c.Fault("ranks", fmt.Sprintf("%d, each on a GPU of its own, but this machine shows %d; hint: ranks %d, look at CUDA_VISIBLE_DEVICES, or device cpu", m.ranks, n, max(n, 1)))
		}
		if err != nil {
			return nil, c.Fault("device", err.Error())
		}
		m.gpus = names[:m.ranks]
	}
	if m.ranks > MaxRanks {
		return nil, c.Fault("ranks", fmt.Sprintf("%d; hint: at most %d run on one machine", m.ranks, MaxRanks))
	}
	m.options.DiskPath = filepath.Join(c.Spill(), "rank") // followed by the rank
	m.options.Workers = workers(m.ranks)
	m.options.Rate[device.HostToDev] = float64(c.Hardware.H2D)
	m.options.Rate[device.DevToHost] = float64(c.Hardware.D2H)
	for _, s := range []device.Stream{device.Collective, device.Send, device.Recv} {
		m.options.Rate[s] = float64(c.Hardware.Peers)
	}
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	m.cuda = cuda.Options{CacheDir: kernelsIn(dir), SumRows: cuda.SumRows(c.SequenceLength)}
	// The cache key covers all that changes the measured rates: throttled links,
	// the disk, the GPUs, the number of cores and the ranks that share them.
	key := sha256.Sum256(fmt.Appendf(nil, "duties %s %q %v %v %s %d %d", m.backend, m.gpus, c.Hardware, hostID(), diskOf(c.Spill()), m.ranks, runtime.GOMAXPROCS(0)))
	m.file = filepath.Join(dir, fmt.Sprintf("hardware-%x.json", key[:6]))
	if text, err := bounded.ReadFile(m.file, maxHardware); err == nil {
		if h, err := hardware.Parse(text); err == nil {
			m.Hardware = h
		}
	}
	if m.Hardware == nil {
		note("probing the machine (once)")
		if err := m.probe(c); err != nil {
			return nil, err
		}
		m.save()
	}
	// Rates are cached; free memory is not, since it changes.
	if m.Hardware.Memory, err = m.memory(existing(c.Spill())); err != nil {
		return nil, err
	}
	if !m.diskMeasured() {
		m.Hardware.Memory.Disk = 0
	}
	return m, m.limit(c)
}

// diskMeasured reports whether the description has a disk tier.
func (m *Machine) diskMeasured() bool {
	return m.Hardware.Link(device.DiskTier, device.HostTier) != nil
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

// probe measures the machine with the backend that the run will use.
func (m *Machine) probe(c *config.Config) (err error) {
	dir := existing(c.Spill())
	if m.backend == "cpu" {
		m.Hardware, err = Probe(m.options, dir, m.ranks)
		return err
	}
	memory, err := m.memory(dir)
	if err != nil {
		return c.Fault("device", err.Error())
	}
	memory = withoutFullDisk(memory, m.ranks)
	// Each measurement opens fresh devices of all ranks together: GPUs share links
	// and host memory.
	fresh := func(measure func(devices []device.Device) error) error {
		devices, err := openGPUs(m.cuda, m.ranks, probeFile(dir)+"-")
		if err != nil {
			return c.Fault("device", err.Error())
		}
		return errors.Join(measure(devices), session.CloseAll(devices))
	}
	err = fresh(func(devices []device.Device) error {
		found, errs := make([]*hardware.Hardware, m.ranks), make([]error, m.ranks)
		var all sync.WaitGroup
		for r, d := range devices {
			all.Go(func() { found[r], errs[r] = hardware.Probe(d, memory) })
		}
		all.Wait()
		m.Hardware = found[0]
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	err = fresh(func(devices []device.Device) error { return hardware.ProbeContention(devices[0], m.Hardware) })
	if err != nil || m.ranks < 2 {
		return err
	}
	return fresh(func(devices []device.Device) error { return probePeers(devices, m.Hardware) })
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

// memory returns the memory of each tier that is available now, in bytes; of the
// device, the least of any rank's.
func (m *Machine) memory(dir string) (hardware.Memory, error) {
	mem, err := hardware.LocalMemory(dir)
	if err != nil || m.backend == "cpu" {
		return mem, err
	}
	mem.Shared = false
	for r := range m.ranks {
		o := m.cuda
		o.Index = r
		d, err := cuda.Open(o)
		if err != nil {
			return mem, err
		}
		free, _, err := d.Memory()
		if err = errors.Join(err, d.Close()); err != nil {
			return mem, err
		}
		if free = (free - cuda.Overhead) / 100 * 97; r == 0 || free < mem.Device { // the driver needs 3 % for code and stacks
			mem.Device = free
		}
	}
	return mem, nil
}

// probeFile returns the file on which the disk is measured.
func probeFile(dir string) string {
	return filepath.Join(dir, fmt.Sprintf(".athanor-probe-%d", os.Getpid()))
}

// Probe measures this machine, its disk in folder dir and, for several ranks, the
// link between them. options describe one device. If options.Workers is 0, the
// device is measured alone with all cores. Otherwise it is measured while other
// ranks do the same, as many as find cores at a time.
func Probe(options cpu.Options, dir string, ranks int) (h *hardware.Hardware, err error) {
	memory, err := hardware.LocalMemory(dir)
	if err != nil {
		return nil, err
	}
	together := 1
	if options.Workers > 0 {
		together = min(atOnce(ranks, options.Workers), mostProbed)
	}
	memory = withoutFullDisk(memory, together)
	found := make([]*hardware.Hardware, together)
	errs := make([]error, together)
	var all sync.WaitGroup
	for r := range together {
		all.Go(func() {
			o := options
			o.DiskPath = fmt.Sprintf("%s-%d", probeFile(dir), r)
			d := cpu.New(o)
			found[r], errs[r] = hardware.Probe(d, memory)
			errs[r] = errors.Join(errs[r], d.Close())
		})
	}
	all.Wait()
	if err = errors.Join(errs...); err != nil {
		return nil, err
	}
	h = found[0]
	if h.AtOnce = 1; options.Workers > 0 {
		h.AtOnce = atOnce(ranks, options.Workers)
	}
	o := options
	o.DiskPath = probeFile(dir)
	d := cpu.New(o)
	err = errors.Join(hardware.ProbeContention(d, h), d.Close())
	if err != nil || ranks < 2 {
		return h, err
	}
	if options.Workers == 0 {
		options.Workers = workers(ranks)
	}
	devices := cpu.OpenRanks(options, ranks)
	return h, errors.Join(probePeers(devices, h), session.CloseAll(devices))
}

// hostID distinguishes machines that share a home folder. It includes the processor
// and its kernels, since a virtual machine may move to other hardware.
func hostID() string {
	name, err := os.Hostname()
	if err != nil {
		name = ""
	}
	return fmt.Sprintf("%s %s %s", name, hardware.Processor(), gemm.Kernels())
}

// existing returns the nearest ancestor folder that exists, where a disk can be
// measured.
func existing(path string) string {
	for path != "" && path != filepath.Dir(path) {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return path
		}
		path = filepath.Dir(path)
	}
	if path == "" {
		return "."
	}
	return path
}

// save writes the description to the cache, unless it lacks the disk: a disk that
// is full now may have room later. An unwritable cache is no error.
func (m *Machine) save() {
	if !m.diskMeasured() {
		return
	}
	tmp := m.file + fmt.Sprintf(".%d", os.Getpid())
	f, err := os.Create(tmp)
	if err != nil {
		return
	}
	err = errors.Join(m.Hardware.Print(f), f.Close())
	if err == nil {
		err = os.Rename(tmp, m.file)
	}
	if err != nil {
		os.Remove(tmp)
	}
}

// Forget removes all descriptions from the cache.
func Forget() error {
	dir, err := CacheDir()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "hardware-*.json"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// AtHand reports whether this is the machine that the process runs on, unchanged:
// then plans can be measured on it, else only predicted.
func (m *Machine) AtHand() bool { return !m.described && !m.supposed }

// limit sets each rank's capacity of each tier to the configuration's limit or to
// what the machine has. The device limit applies to each rank; the limits of host
// and disk apply to all ranks together, which share them evenly.
func (m *Machine) limit(c *config.Config) error {
	n := int64(m.ranks)
	m.Capacity = m.Hardware.Memory.Tiers()
	if !m.described { // a description is already one rank's share
		if m.Hardware.Memory.Shared {
			m.Capacity[device.DeviceTier] /= n
		}
		m.Capacity[device.HostTier] /= n
		m.Capacity[device.DiskTier] /= n
	}
	limits := [device.NumTiers]config.Bytes{device.DeviceTier: c.Limits.Device, device.HostTier: c.Limits.Host, device.DiskTier: c.Limits.Disk}
	for t := range device.NumTiers {
		l := limits[t]
		if l == config.Unlimited {
			continue
		}
		have, all := m.Capacity[t], n
		if t == device.DeviceTier {
			all = 1
		}
		if m.Capacity[t] = int64(l) / all; m.Capacity[t] > have {
			return c.Fault("limits."+t.String(), fmt.Sprintf("%s, but this machine has %s; hint: leave it out to use what there is", size.Exact(int64(l)), size.Exact(have*all)))
		}
	}
	return nil
}

// shared returns the memory that device and host tiers of all ranks draw on
// together, in bytes; 0 if each tier has its own.
func (m *Machine) shared() int64 {
	switch {
	case !m.Hardware.Memory.Shared:
		return 0
	case m.described: // memory is one rank's share
		return m.Hardware.Memory.Host * int64(m.ranks)
	}
	return m.Hardware.Memory.Host
}

// Plan searches for the fastest plan that fits this machine, or evaluates the
// plan.json that the configuration names. The error is a *plan.Misfit if nothing
// fits.
func (m *Machine) Plan(ctx context.Context, g *graph.Graph, c *config.Config, note func(string)) (*plan.Result, error) {
	req := m.Request(g, c)
	mach := m.Planning()
	if c.Plan.File != "" {
		return m.given(ctx, req, mach, c)
	}
	if mach.Measure != nil {
		mach.Trial = m.trial(g, c)
	}
	var err error
	if req.Pins, err = m.pins(g, c); err != nil {
		return nil, err
	}
	if req.Pins.Open() && c.GlobalBatch%m.ranks == 0 {
		// Without measurements for the policies, the model has no rivals of theirs.
		if r := m.policies(req); r.Measure(ctx, req.Options) == nil {
			req.Rivals = rivals(r, req.State)
		}
		req.Rivals = append(req.Rivals, former(c)...)
	}
	r, err := plan.Search(ctx, req, mach, note)
	if errors.Is(err, plan.ErrBatch) {
		return nil, c.Fault("ranks", err.Error()+"; hint: a divisor of global_batch")
	}
	if errors.Is(err, plan.ErrPins) || errors.Is(err, plan.ErrPipeline) {
		return nil, c.Fault("plan", err.Error())
	}
	return r, m.advise(err)
}

// trial lets the finalists run on this machine before the run. They share memory if
// together they take at most half of the host's memory and the device tier is part
// of it.
func (m *Machine) trial(g *graph.Graph, c *config.Config) *plan.Trial {
	return &plan.Trial{
		Open: func(ctx context.Context, list []*plan.Candidate) (plan.Trials, error) {
			var all int64
			for _, cand := range list {
				for _, p := range cand.Ranks {
					all += p.Height[device.DeviceTier] + p.Height[device.HostTier]
				}
			}
			return m.TakeTurns(ctx, g, c, list, all <= m.shared()/2)
		},
		Steps: c.MaxSteps, Time: time.Duration(c.MaxTime),
	}
}

// Programs returns a candidate's programs for all ranks, lowering those that are
// absent.
func (m *Machine) Programs(ctx context.Context, g *graph.Graph, c *config.Config, best *plan.Candidate) ([]*program.Program, error) {
	_, err := best.Complete(ctx, m.Request(g, c))
	return best.Ranks, err
}

// advise replaces the hint of a misfit that no limit can cure because the machine
// itself has too little memory.
func (m *Machine) advise(err error) error {
	var e *plan.Misfit
	if !errors.As(err, &e) {
		return err
	}
	need, have := e.Frugal.Program.Height, m.Hardware.Memory.Tiers()
	const help = "more memory, or a smaller model, sequence_length or precision"
	for t := range need {
		if need[t] > have[t] {
			e.Tier, e.Need, e.Have = device.Tier(t), need[t], m.Capacity[t]
			e.Hint = fmt.Sprintf("this machine has %s of it; %s", size.Exact(have[t]), help)
			return e
		}
	}
	if both := need[device.DeviceTier] + need[device.HostTier]; m.shared() > 0 && both > m.shared() {
		e.Tier, e.Need, e.Have = device.HostTier, both, m.shared()
		e.Hint = "device and host memory are the same here, and that is what both need together; " + help
	}
	return e
}

// given evaluates a plan.json instead of searching.
func (m *Machine) given(ctx context.Context, req *plan.Request, mach *plan.Machine, c *config.Config) (*plan.Result, error) {
	text, err := bounded.ReadFile(c.Plan.File, maxPlan)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%q does not exist; hint: auto, a plan.json written by `athanor plan --out`, or single decisions", c.Plan.File)
		}
		return nil, c.Fault("plan", err.Error())
	}
	pl, err := program.ParsePlan(text)
	if err == nil {
		err = pl.Validate(req.Graph)
	}
	if err == nil && c.OptimizerState != "auto" && pl.State != req.State {
		err = fmt.Errorf("plan: it stores the optimizer's state as %q, the run as %s; hint: make a new plan, or set optimizer_state", pl.State, c.OptimizerState)
	}
	if err == nil && pl.Ranks != m.ranks {
		err = fmt.Errorf("plan: it is for %d ranks, the run has %d; hint: make a new plan, or set ranks", pl.Ranks, m.ranks)
	}
	if err == nil && pl.MicroBatch*pl.MicroBatches*pl.Replicas() != c.GlobalBatch {
		err = fmt.Errorf("plan: micro_batch %d times micro_batches %d times %d replicas is not the global_batch %d; hint: make a new plan", pl.MicroBatch, pl.MicroBatches, pl.Replicas(), c.GlobalBatch)
	}
	if err == nil && !req.HeadFits(pl.HeadRows) {
		err = fmt.Errorf("plan: head_rows %d, but a GPU's sums are cut at multiples of %d tokens; hint: a multiple, or make a new plan", pl.HeadRows, req.HeadUnit)
	}
	if err != nil {
		return nil, &config.Error{File: c.Plan.File, Msg: err.Error()}
	}
	cand, err := plan.Evaluate(ctx, req, pl, mach, "the given plan")
	if err != nil {
		return nil, &config.Error{File: c.Plan.File, Msg: err.Error()}
	}
	return m.only(ctx, req, mach, cand)
}

// only returns a single candidate as the result of a search. Its operators are
// timed as the fastest candidate's would be, so that its time is comparable.
func (m *Machine) only(ctx context.Context, req *plan.Request, mach *plan.Machine, cand *plan.Candidate) (*plan.Result, error) {
	if fits, err := cand.Complete(ctx, req); err != nil {
		return nil, err
	} else if !fits {
		e := plan.NewMisfit(cand)
		e.Only = true
		return nil, m.advise(e)
	}
	if mach.Measure != nil {
		if err := mach.Measure(cand); err != nil {
			return nil, err
		}
	}
	return &plan.Result{Best: cand, Evaluated: 1}, cand.Time(mach)
}

// measure times those operators of a candidate that the description lacks, in
// arenas of the candidate's size and on all ranks at once, since ranks share cores
// and memory.
func (m *Machine) measure(c *plan.Candidate) error {
	known := true
	for _, p := range c.Programs {
		for i := range p.Instrs {
			call := p.Call(i)
			if _, ok := m.Hardware.Times[hardware.Key(&call)]; !ok && !call.Op.Info().Between {
				known = false
				break
			}
		}
	}
	if known {
		return nil
	}
	programs := make([]*program.Program, m.ranks)
	for r := range programs {
		programs[r] = c.Programs[r%len(c.Programs)]
	}
	apart := *m
	apart.options.Apart = true
	devices, err := apart.Open(programs)
	if err != nil {
		return err
	}
	defer session.CloseAll(devices)
	for r, d := range devices {
		if err := exec.Reserve(d, programs[r]); err != nil {
			return err
		}
	}
	times := make([][]hardware.Measurement, m.ranks)
	errs := make([]error, m.ranks)
	var all sync.WaitGroup
	for r, d := range devices {
		all.Go(func() { times[r], errs[r] = hardware.Profile(programs[r].Calls(), d, profileBudget) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	list := slices.Concat(times[:len(c.Programs)]...)
	if m.Hardware.AtOnce > 0 && m.Hardware.AtOnce < m.ranks {
		for i := range list {
			list[i].Gap = 0 // it includes waiting for other ranks' turns
		}
	}
	m.Hardware.Add(list)
	m.save()
	return nil
}

// ForgetTimes drops operator times, so that they are measured again: the load of a
// shared machine changes within minutes.
func (m *Machine) ForgetTimes() {
	if !m.described {
		m.Hardware.Times = nil
	}
}

// atOnce returns how many of the ranks can have cores of their own at the same
// time.
func atOnce(ranks, workers int) int {
	return min(max(ranks, 1), max(1, runtime.GOMAXPROCS(0)/max(workers, 1)))
}

// Peak returns the peak FLOP/s of all ranks together in the graph's precision, the
// denominator of model FLOPs utilisation (MFU).
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
