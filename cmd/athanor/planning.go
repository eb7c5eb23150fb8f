package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/train"
)

// target is a configuration that is to be planned.
type target struct{ cli.Target }

// planned holds everything up to the plan.
type planned struct {
	setup    *train.Setup
	machine  *machine.Machine
	result   *search.Result
	report   *search.Report
	busy     string             // how other work changed what was measured; "": not much
	expected search.Expectation // of a step
	end      func()             // ends the processes on hosts that are named; nil: there are none
	lift     func()             // ends the limit on the heap; nil: there is none
	trials   bool               // what is trained may be found by training
	chosen   *train.Chosen      // what is trained, if there is only so much memory for it
	enough   <-chan struct{}    // closed when the user has had enough of planning; nil: never
	early    func(*search.Candidate)
}

func (p *planned) close() {
	if p.setup != nil {
		p.setup.Close()
	}
	if p.machine != nil {
		_ = p.machine.Close() // the process ends
	}
	if p.end != nil {
		p.end()
	}
	p.liftLimit()
}

// liftLimit ends the limit on the heap, once no device has arenas.
func (p *planned) liftLimit() {
	if p.lift != nil {
		p.lift()
	}
	p.lift = nil
}

// spec returns what is to be done.
func (p *planned) spec() *job.Spec { return p.setup.Spec }

// finder returns the machine to plan for: machine.Find if the plan will run, and
// machine.Describe if it will only be shown.
type finder func(*machine.Request, func(string)) (*machine.Machine, error)

// A run's folder has these, by which it is planned as it was.
const runConfig, runPlan = "config.yaml", "plan.json"

// isRun reports whether a path is the folder of a run.
func isRun(path string) bool {
	return paths.Exists(filepath.Join(path, runConfig)) && paths.Exists(filepath.Join(path, runPlan))
}

// ofRun makes a run's folder its configuration, with the plan that it has.
func (t *target) ofRun() {
	if to := &t.Target; isRun(to.Config) {
		to.Overrides = append([]string{"plan=" + filepath.Join(to.Config, runPlan)}, to.Overrides...)
		to.Config = filepath.Join(to.Config, runConfig)
	}
}

// readFor reads the configuration for a purpose, and what prepare reads.
func (t *target) readFor(ctx stdctx.Context, c *cli.Context, to config.Purpose) (*planned, error) {
	t.ofRun()
	spec, err := t.Load(c, to)
	if err != nil {
		return nil, err
	}
	return prepare(ctx, c, spec)
}

// prepare reads the text, if the job has one, and the model.
func prepare(ctx stdctx.Context, c *cli.Context, spec *job.Spec) (p *planned, err error) {
	p = new(planned)
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	if p.setup, err = train.Prepare(ctx, spec, show.Progress); err != nil {
		return nil, err
	}
	show.Done()
	if !p.setup.Empty() {
		c.Tellf("%s\n", p.setup.Reading())
	}
	for _, n := range p.setup.Notes {
		c.Note(n)
	}
	return p, nil
}

// findMachine finds the machine.
func (p *planned) findMachine(c *cli.Context, find finder) error {
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	request, end, err := request(p.spec())
	if err != nil {
		return err
	}
	p.end = end
	request.Process = session.ProcessBytes(p.setup.Graph)
	debug.FreeOSMemory() // what was garbage after the text was read would be counted as taken
	if p.machine, err = find(request, show.Say); err != nil {
		return err
	}
	p.lift = cli.LimitHeap(p.machine.Hardware.Memory.Process)
	if n := p.machine.Hardware.Network; n != nil && p.spec().Hardware.Name != "" && p.spec().Hardware.Network == 0 {
		show.Done()
		c.Tellf("note: %d ranks are taken as %d hosts of %d, each joined to the others at %.0f Gbit/s; hint: hardware.hosts and hardware.network say what there is\n", p.spec().Ranks, n.Hosts, n.PerHost, n.Link.Bandwidth*8/1e9)
	}
	if n := p.machine.Idle(); n > 0 {
		show.Done()
		c.Tellf("note: unused GPUs of this machine: %d; hint: set ranks: auto, and a global_batch that can be divided among all GPUs\n", n)
	}
	return nil
}

// search finds the machine and the plan.
func (p *planned) search(ctx stdctx.Context, c *cli.Context, find finder) error {
	if err := p.findMachine(c, find); err != nil {
		return err
	}
	if err := p.chooseTrained(ctx, c); err != nil {
		return err
	}
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	if err := p.makePlan(ctx, searching(show.Say)); err != nil {
		return err
	}
	show.Done()
	p.sayBusy(c)
	return nil
}

// untilInterrupt returns a channel that the first interrupt closes, until it is stopped. The second one ends the process,
// as usual.
func untilInterrupt() (interrupted <-chan struct{}, stop func()) {
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt)
	stdctx.AfterFunc(ctx, stop)
	return ctx.Done(), stop
}

// sayBusy tells what other work on this machine did to the timings.
func (p *planned) sayBusy(c *cli.Context) {
	if p.busy != "" {
		c.Note(p.busy)
	}
}

// sayCrowded tells what else needs memory of a described machine's host, where the plan takes nearly all of a limit that
// may be all that the host has.
func (p *planned) sayCrowded(c *cli.Context) {
	if limit := p.spec().Limits.Host; p.spec().Hardware.Name != "" && limit != config.Unlimited {
		need := p.result.Best.Needs()[device.HostTier] * int64(p.machine.Ranks())
		if text := crowded(need, int64(limit), session.ProcessBytes(p.setup.Graph)); text != "" {
			c.Note(text)
		}
	}
}

// crowded says that a host with no more memory than the limit has too little for the process and the system besides what a
// plan takes; "" if it has enough, or a limit is no size of a computer's memory, such as the one that is advised.
func crowded(need, limit, process int64) string {
	const system = 16 // the system's share is one in so many
	free := (limit - limit/system - process) / 1e6 * 1e6
	if !computerHas(limit) || need <= free {
		return ""
	}
	if computerHas(free) {
		free -= 1e6
	}
	return fmt.Sprintf("the plan takes %s of the host, and the process %s besides; if the host has no more than limits.host, say limits.host=%d, which leaves room for it and the system",
		size.Format(need), size.Format(process), free)
}

// computerHas reports whether computers have so much memory.
func computerHas(bytes int64) bool {
	const gb, gib = 4e9, 4 << 30
	return bytes > 0 && (bytes%gb == 0 || bytes%gib == 0)
}

// makePlan reads the configuration and searches.
func (t *target) makePlan(ctx stdctx.Context, c *cli.Context, find finder) (*planned, error) {
	p, err := t.readFor(ctx, c, config.ToPlan)
	if err != nil {
		return nil, err
	}
	if err := p.search(ctx, c, find); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// searching returns a planner that searches.
func searching(note func(string)) planner.Planner {
	return func(ctx stdctx.Context, t *planner.Task) (*search.Result, error) { return t.PlanAny(ctx, note) }
}

// task returns what is planned for.
func (p *planned) task() *planner.Task {
	return &planner.Task{Machine: p.machine, Graph: p.setup.Graph, Spec: p.spec(), Enough: p.enough, Early: p.early}
}

// soFar describes a plan that is not the last word.
func (p *planned) soFar(best *search.Candidate) string {
	text, sep := fmt.Sprintf("first plan: %.4g s a step, %.0f tokens/s", best.Seconds(), float64(p.spec().GlobalBatch*p.spec().SequenceLength)/best.Seconds()), ", with "
	for t, n := range best.Needs() {
		if n >= 1<<20 {
			text += fmt.Sprintf("%s%s of %v memory", sep, size.Format(n), device.Tier(t))
			sep = ", "
		}
	}
	return text + "; faster ones are looked for, an interrupt (Ctrl-C) takes the best so far"
}

// makePlan plans the prepared run by the given planner, and builds the report.
func (p *planned) makePlan(ctx stdctx.Context, find planner.Planner) (err error) {
	if p.result, err = find(ctx, p.task()); err != nil {
		return err
	}
	if err := p.setup.Follow(p.result.Best.Plan); err != nil {
		return err
	}
	p.busy = p.machine.Busy()
	p.machine = planner.Deal(p.machine, p.result.Best.Plan)
	spec := p.spec()
	f, b := p.setup.Graph.FLOPs()
	p.report = search.NewReport(p.setup.Graph, p.result, spec.GlobalBatch*spec.SequenceLength, float64(f+b)*float64(spec.GlobalBatch*spec.PerSequence()), p.peak())
	req := &search.Request{Graph: p.setup.Graph, GlobalBatch: spec.GlobalBatch * spec.PerSequence() / spec.Ranks, Options: planner.StepOptions(spec), Optimizer: spec.Optimizer, State: p.result.Best.Plan.State}
	p.report.Process = p.machine.Hardware.Memory.Process
	p.expected = p.result.Best.Expected(planner.Hour(p.machine))
	if e := &p.expected; e.High > 0 {
		p.report.Expected = e
	}
	if r := p.report.Seconds / p.expected.Seconds; r != 1 {
		p.report.TokenRate, p.report.MFU = p.report.TokenRate*r, p.report.MFU*r
	}
	p.report.Wear = p.task().Wear(p.report.Bytes.DiskWrite, p.expected.Seconds)
	p.report.Plain, err = search.PlainBytes(ctx, req)
	return err
}

// utilisation says what share of the peak a step's FLOPs are, of a GPU also of what its products reach.
func (p *planned) utilisation() string {
	text := fmt.Sprintf("%.1f %% of %s", 100*p.report.MFU, stat.FLOPs(p.peak()))
	if machine.OnGPU(p.spec().Machine()) {
		text += fmt.Sprintf(", %.1f %% of the %s that products reach", 100*p.report.MFU/p.machine.Products(), stat.FLOPs(p.peak()*p.machine.Products()))
	}
	return text
}

// peak returns the peak FLOP/s of all ranks together.
func (p *planned) peak() float64 { return p.machine.Peak(p.setup.Graph) }

// plannedOrExplained plans. If nothing fits, it prints the JSON object for a
// misfit.
func (t *target) plannedOrExplained(c *cli.Context) (*planned, error) {
	p, err := t.makePlan(stdctx.Background(), c, machine.Describe)
	return p, explained(c, err)
}

// explained returns the error of a verb. If nothing fits and --json is given, it prints the JSON object that says so.
func explained(c *cli.Context, err error) error {
	var misfit *search.Misfit
	if errors.As(err, &misfit) && c.JSON {
		return errors.Join(c.Print(search.MisfitReport(misfit)), err)
	}
	return err
}
