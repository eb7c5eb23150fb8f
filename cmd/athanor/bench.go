package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/sim"
	"github.com/athanor-llm/athanor/train"
)

type benchCmd struct {
	Kernels benchKernelsCmd `cmd:"" default:"withargs" help:"Measure every operator against the peak of this machine."`
	Step    benchStepCmd    `cmd:"" help:"Measure a training step on random text, by operator."`
	Turns   benchTurnsCmd   `cmd:"" hidden:"" help:"Make a step for each line of the input, for compare."`
	Budgets benchBudgetsCmd `cmd:"" help:"Compare predicted and measured time and memory, from all device memory down to the least."`
}

type benchKernelsCmd struct {
	Match string        `help:"Only operators whose line contains this text: linear, bf16, TN." placeholder:"TEXT"`
	Time  time.Duration `help:"Time to spend on each operator." default:"300ms"`
	Cores []int         `help:"Numbers of cores to use in turn." placeholder:"N,..."`
}

type kernelsReport struct {
	Peaks   []bench.Peaks `json:"peaks"`
	Kernels []bench.Rate  `json:"kernels"`
}

func (v *benchKernelsCmd) Run(c *cli.Context) error {
	if v.Time < time.Millisecond || v.Time > time.Minute {
		return cli.UsageError(fmt.Sprintf("bench: --time %v is out of range; hint: use from 1ms to 1m", v.Time))
	}
	cores := v.Cores
	if len(cores) == 0 {
		cores = slices.Compact([]int{1, runtime.GOMAXPROCS(0)})
	}
	if !slices.ContainsFunc(bench.Cases(graph.BF16), func(k bench.Case) bool { return k.Matches(v.Match) }) &&
		!slices.ContainsFunc(bench.Cases(graph.F32), func(k bench.Case) bool { return k.Matches(v.Match) }) {
		return cli.UsageError(fmt.Sprintf("bench: no operator's line contains %q; hint: use a text such as linear, attention, bf16 or NT", v.Match))
	}
	r := kernelsReport{Peaks: []bench.Peaks{}, Kernels: []bench.Rate{}}
	for _, n := range cores {
		if n < 1 || n > runtime.NumCPU() {
			return cli.UsageError(fmt.Sprintf("bench: --cores %d is out of range; hint: use from 1 to %d", n, runtime.NumCPU()))
		}
		if err := v.measure(c, n, &r); err != nil {
			return err
		}
	}
	if c.JSON {
		return c.Print(r)
	}
	return nil
}

// measure benchmarks all operators on a number of cores, printing each as it is
// measured.
func (v *benchKernelsCmd) measure(c *cli.Context, cores int, r *kernelsReport) (err error) {
	b, err := bench.NewOperators(cores)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if !c.JSON {
		printPeaks(c, &b.Peaks)
		c.Textf("%-14s %-24s %-5s %10s %9s %9s %7s\n", "operator", "shape", "type", "seconds", "GFLOP/s", "GB/s", "of peak")
	}
	for _, t := range []graph.DType{graph.F32, graph.BF16} {
		for _, k := range bench.Cases(t) {
			if !k.Matches(v.Match) || t == graph.BF16 && !k.Stores(t) {
				continue
			}
			rate, err := b.Run(&k, v.Time)
			if err != nil {
				return err
			}
			r.Kernels = append(r.Kernels, rate)
			if !c.JSON {
				c.Textf("%-14s %-24s %-5s %10.3g %9s %9.3g %s\n", rate.Op, rate.Shape, rate.Type, rate.Seconds,
					number(rate.GFLOPS), rate.GBS, percent(rate.Fraction))
			}
		}
	}
	r.Peaks = append(r.Peaks, b.Peaks)
	if !c.JSON {
		fmt.Fprintln(c.Stdout)
	}
	return nil
}

func printPeaks(c *cli.Context, p *bench.Peaks) {
	c.Textf("%d cores: multiply-adds fp32 %.4g GFLOP/s, bf16 %.4g; memory read %.3g GB/s, copied %.3g, added to %.3g\n",
		p.Cores, p.F32/1e9, p.BF16/1e9, p.Read/1e9, p.Copy/1e9, p.Moved/1e9)
}

// number formats a number; 0 is a dash.
func number(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.4g", x)
}

func percent(x float64) string {
	if x == 0 {
		return "      -"
	}
	return fmt.Sprintf("%5.1f %%", 100*x)
}

type benchStepCmd struct {
	Model     string   `arg:"" help:"A known model, such as gpt2, or a YAML file that describes a run: then its plan is measured." placeholder:"MODEL|CONFIG"`
	Overrides []string `arg:"" optional:"" help:"Overrides of CONFIG: key=value." placeholder:"KEY=VALUE"`

	Layers      int    `help:"Number of layers, if not that of the known model; likewise the sizes below." placeholder:"N"`
	Width       int    `placeholder:"N"`
	Heads       int    `placeholder:"N"`
	KVHeads     int    `name:"kv-heads" placeholder:"N"`
	FeedForward int    `placeholder:"N"`
	Experts     int    `placeholder:"N"`
	Active      int    `help:"Experts per token." name:"active-experts" placeholder:"N"`
	Vocabulary  int    `placeholder:"N"`
	LoRA        int    `name:"lora" help:"Train adapters of this rank only." placeholder:"RANK"`
	Quantize    string `help:"nf4: hold weights that are not trained in 4 bits." enum:"none,nf4" default:"none"`
	Optimizer   string `help:"As in a configuration." default:"adamw" placeholder:"NAME"`

	Batch     int    `short:"b" help:"Sequences per step." default:"4" placeholder:"N"`
	Sequence  int    `short:"t" help:"Tokens per sequence." default:"256" placeholder:"N"`
	Precision string `help:"fp32 or bf16." enum:"fp32,bf16" default:"fp32"`
	HeadRows  int    `help:"Rows of logits to compute at a time; default: all." placeholder:"N"`
	Steps     int    `help:"Steps to measure." default:"5" placeholder:"N"`
	Warmup    int    `help:"Steps to run before the measured ones." default:"2" placeholder:"N"`
	Calls     bool   `help:"Report by kind of call instead of by operator."`
}

// stepReport is the JSON of bench step.
type stepReport struct {
	Parameters int64          `json:"parameters"`
	Sequences  int            `json:"sequences"`
	Length     int            `json:"sequence_length"`
	Precision  string         `json:"precision"`
	Plan       string         `json:"plan,omitempty"`    // that was chosen; a known model has the plain one
	TokenRate  float64        `json:"tokens_per_second"` // of the median step
	Seconds    float64        `json:"step_seconds"`
	Predicted  float64        `json:"predicted_seconds,omitempty"`
	AllSeconds []float64      `json:"all_seconds"` // fastest first
	MFU        float64        `json:"mfu"`
	Peaks      bench.Peaks    `json:"machine"`
	Arenas     search.PerTier `json:"arena_bytes"`
	RSS        int64          `json:"peak_rss_bytes"`
	Issued     int64          `json:"driver_calls,omitempty"`     // of the median step
	Refused    []string       `json:"refused_products,omitempty"` // by the GPU's matrix library
	Loss       float64        `json:"loss"`
	Operators  []bench.OpTime `json:"operators"` // of the median step
}

// Run measures the plain plan of a known model, or the chosen plan of a run.
func (v *benchStepCmd) Run(c *cli.Context) error {
	if v.Steps < 1 || v.Warmup < 0 || v.Batch < 1 || v.Sequence < 1 {
		return cli.UsageError("bench step: --batch, --sequence, --steps or --warmup is out of range; hint: use 1 or more, and 0 or more for --warmup")
	}
	ctx := stdctx.Background()
	b := &session.StepBench{Sequences: v.Batch, Warmup: v.Warmup, Steps: v.Steps}
	var predicted *sim.Timeline
	var chosen string
	var limit float64 // peak of the device in FLOP/s; 0: use the cores' measured peak
	if st, err := os.Stat(v.Model); err == nil && !st.IsDir() {
		t := target{cli.Target{Config: v.Model, Overrides: v.Overrides}}
		p, err := t.makePlan(ctx, c, machine.Find)
		if err != nil {
			return err
		}
		defer p.close()
		b.Graph, b.Sequences = p.setup.Graph, p.spec().GlobalBatch
		b.Rank, predicted, chosen = p.result.Best.Program.Rank, p.result.Best.Timeline, p.result.Best.Label
		if b.Programs, err = p.task().Programs(ctx, p.result.Best); err != nil {
			return err
		}
		if b.Devices, err = p.machine.Open(b.Programs); err != nil {
			return err
		}
		if device.IsGPU(p.spec().Device) {
			limit = p.machine.Peak(b.Graph)
		}
	} else {
		if err := v.plain(ctx, b); err != nil {
			return err
		}
		b.Devices = []device.Device{cpu.New(cpu.Options{})}
	}
	r, err := v.measure(ctx, b, predicted, limit)
	for _, d := range b.Devices {
		err = errors.Join(err, d.Close())
	}
	if err != nil {
		return err
	}
	r.Plan = chosen
	if c.JSON {
		return c.Print(r)
	}
	r.print(c)
	return nil
}

// plain lowers the plain plan of the known model: everything on the device.
func (v *benchStepCmd) plain(ctx stdctx.Context, b *session.StepBench) error {
	m, err := bench.Model(v.Model, config.Model{Layers: v.Layers, Width: v.Width, Heads: v.Heads, KVHeads: v.KVHeads,
		FeedForward: v.FeedForward, Experts: v.Experts, Active: v.Active, Vocab: v.Vocabulary}, v.Sequence)
	if err != nil {
		return cli.UsageError("bench step: " + err.Error())
	}
	cfg := config.Default()
	cfg.Device, cfg.SequenceLength, cfg.Precision, cfg.LoRA.Rank, cfg.Quantize, cfg.Optimizer = "cpu", v.Sequence, v.Precision, max(v.LoRA, 0), v.Quantize, v.Optimizer
	spec, err := job.Settle(config.ToPlan, &cfg, nil)
	if err != nil {
		return err
	}
	m.Indivisible = !spec.Optimizer.Rule().Elementwise
	if b.Graph, err = planner.BuildGraph(spec, m, nil); err != nil {
		return cli.UsageError("bench step: " + err.Error())
	}
	pl := plan.Plain(b.Graph, v.Batch)
	pl.Optimizer = spec.Optimizer
	if v.HeadRows != 0 {
		pl.HeadRows = v.HeadRows
	}
	p, err := lower.Lower(ctx, b.Graph, pl, planner.StepOptions(spec))
	b.Programs = []*program.Program{p}
	return err
}

func (v *benchStepCmd) measure(ctx stdctx.Context, b *session.StepBench, predicted *sim.Timeline, limit float64) (*stepReport, error) {
	own := bench.Peaks{Cores: runtime.GOMAXPROCS(0)}
	if limit == 0 { // alternate with the steps; not on a GPU, which would idle meanwhile and run faster afterwards
		b.Before = func() error { own.Arithmetic(20 * time.Millisecond); return nil }
	}
	steps, err := b.Run(ctx)
	if err != nil {
		return nil, err
	}
	resident := bench.PeakRSS() // read now: measuring bandwidth takes more memory
	peaks, err := bench.MeasurePeaks(own.Cores)
	if err != nil {
		return nil, err
	}
	peaks.F32, peaks.BF16 = own.F32, own.BF16
	if limit > 0 {
		peaks.F32, peaks.BF16 = limit, limit
	}
	median, g := &steps[len(steps)/2], b.Graph
	forward, backward := g.FLOPs()
	peak := peaks.F32
	if g.DType == graph.BF16 {
		peak = peaks.BF16
	}
	r := &stepReport{
		Parameters: g.Model.ParamCount(), Sequences: b.Sequences, Length: g.Seq, Precision: g.DType.String(),
		Seconds: median.Seconds, TokenRate: float64(b.Sequences*g.Seq) / median.Seconds,
		MFU:   float64(forward+backward) * float64(b.Sequences) / median.Seconds / peak,
		Peaks: peaks, Arenas: search.ByTier(b.Programs[0].Height), RSS: resident, Loss: median.Loss, Issued: median.Issued,
		Operators: bench.Breakdown(b.Programs[b.Rank], median, predicted, &peaks, v.Calls),
	}
	if predicted != nil {
		r.Predicted = predicted.Makespan
	}
	if d, ok := b.Devices[b.Rank].(device.Refuser); ok {
		r.Refused = d.Refused()
	}
	for _, s := range steps {
		r.AllSeconds = append(r.AllSeconds, s.Seconds)
	}
	return r, nil
}

func (r *stepReport) print(c *cli.Context) {
	c.Textf("%.1f M parameters, %d sequences of %d tokens, %s\n", float64(r.Parameters)/1e6, r.Sequences, r.Length, r.Precision)
	printPeaks(c, &r.Peaks)
	if r.Plan != "" {
		c.Textf("plan: %s\n", r.Plan)
	}
	c.Textf("step %.4g s (median of %d; best %.4g s): %.4g tokens/s, MFU %.1f %%; loss %.4f\n",
		r.Seconds, len(r.AllSeconds), r.AllSeconds[0], r.TokenRate, 100*r.MFU, r.Loss)
	c.Textf("memory: arenas %s on the device, %s on the host, %s on disk; peak resident %s\n\n",
		size.Format(r.Arenas.Device[0]), size.Format(r.Arenas.Host[0]), size.Format(r.Arenas.Disk[0]), size.Format(r.RSS))
	if r.Predicted > 0 {
		c.Textf("predicted %.4g s, %+.1f %%\n\n", r.Predicted, 100*(r.Predicted/r.Seconds-1))
	}
	if r.Issued > 0 {
		c.Textf("%d driver calls per step, %.2f us of step time per call\n\n", r.Issued, 1e6*r.Seconds/float64(r.Issued))
	}
	for _, p := range r.Refused {
		c.Textf("slow, since the GPU's matrix library refused this product: %s\n", p)
	}
	wide := 14
	for _, o := range r.Operators {
		wide = max(wide, len(o.Name))
	}
	c.Textf("%-*s %-10s %6s %9s %9s %7s %9s %9s %7s\n", wide, "operator", "stream", "calls", "seconds", "predicted", "share", "GFLOP/s", "GB/s", "of peak")
	for _, o := range r.Operators {
		c.Textf("%-*s %-10s %6d %9.4f %9s %5.1f %% %9s %9s %s\n", wide, o.Name, o.Stream, o.Calls, o.Seconds, number(o.Predicted), 100*o.Share,
			number(o.GFLOPS), number(o.GBS), percent(o.Fraction))
	}
}

type benchBudgetsCmd struct {
	target
	Count int `help:"Number of device budgets." default:"10" placeholder:"N"`
	Steps int `help:"Steps to measure at each budget." default:"6" placeholder:"N"`
}

func (v *benchBudgetsCmd) Run(c *cli.Context) error {
	if v.Count < 2 || v.Count > 1000 || v.Steps < 1 {
		return cli.UsageError("bench budgets: --count or --steps is out of range; hint: use 2 to 1000 for --count, 1 or more for --steps")
	}
	spec, err := v.Load(c, config.ToPlan)
	if err != nil {
		return err
	}
	ctx, show := stdctx.Background(), cli.NewStatus(c.Stderr)
	defer show.Done()
	setup, err := train.Prepare(ctx, spec, show.Progress)
	if err != nil {
		return err
	}
	defer setup.Close()
	need, end, err := request(spec)
	if err != nil {
		return err
	}
	defer end()
	m, err := machine.Find(need, show.Say)
	if err != nil {
		return err
	}
	list := []bench.BudgetRun{}
	fmt.Fprintf(c.Rows(), "%14s %10s %10s %8s  %-42s %s\n", "device bytes", "predicted", "measured", "error", "peaks reached: device, host, disk", "plan")
	show.Parts(v.Count)
	budgets := bench.Budgets{Machine: m, Graph: setup.Graph, Spec: setup.Spec, Count: v.Count, Steps: v.Steps}
	err = budgets.Run(ctx, show.Say, func(r bench.BudgetRun) {
		list = append(list, r)
		show.Next()
		printBudget(c.Rows(), &r)
	})
	if err = errors.Join(err, m.Close()); err != nil {
		return err
	}
	show.Done()
	if c.JSON {
		return c.Print(map[string]any{"budgets": list})
	}
	var sum, worst float64
	exact := 0
	for _, r := range list {
		sum, worst = sum+math.Abs(r.Error), max(worst, math.Abs(r.Error))
		if r.Exact {
			exact++
		}
	}
	c.Textf("\nstep time: mean error %.1f %%, largest %.1f %%; peak memory exact in every tier for %d of %d\n",
		100*sum/float64(len(list)), 100*worst, exact, len(list))
	return nil
}

func printBudget(w io.Writer, r *bench.BudgetRun) {
	reached := fmt.Sprintf("%d, %d, %d", r.Reached.Device[0], r.Reached.Host[0], r.Reached.Disk[0])
	if !r.Exact {
		reached += fmt.Sprintf(" (planned %d, %d, %d)", r.Planned.Device[0], r.Planned.Host[0], r.Planned.Disk[0])
	}
	fmt.Fprintf(w, "%14d %8.4f s %8.4f s %+6.1f %%  %-42s %s\n", r.Budget, r.Predicted, r.Measured, 100*r.Error, reached, r.Plan)
}
