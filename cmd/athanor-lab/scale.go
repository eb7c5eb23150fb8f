package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/lab/scale"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// scaleCmd analyses the shortest training time.
type scaleCmd struct {
	What string `arg:"" default:"table" enum:"table,curve,cluster,traffic,laws,memo" help:"table: ways to divide the batch; curve: the family from 0.4B to 422T parameters; cluster: the fastest way on --gpus GPUs; traffic: data-parallel volumes; laws: the best model for --flops or --hours; memo: long sequences on 8 A800, activations kept, swapped or recomputed."`

	X        int     `default:"160" help:"Model X_x: x layers of width x^2 on sequences of 16x tokens."`
	Model    string  `placeholder:"NAME|DIR" help:"A known model or a Hugging Face folder instead of X_x; memo: also 7B, 13B, 30B, 65B of its paper."`
	Sequence int     `help:"Tokens per sequence of --model; 0: its own."`
	Steps    float64 `default:"100000" help:"Optimizer steps at the critical batch."`
	Tokens   float64 `help:"Tokens to train on, instead of --steps."`
	Batch    float64 `help:"Critical batch in sequences, if measured; 0: 573 tokens x parameters^(1/3)."`

	Gpus    int     `help:"cluster, laws: number of GPUs." default:"64"`
	Tflops  float64 `default:"312" help:"Sustained TFLOP/s of one GPU."`
	Memory  string  `default:"80GB" help:"Memory of one GPU."`
	Node    int     `default:"16" help:"GPUs joined by fast links."`
	Link    float64 `default:"600" help:"GB/s between GPUs of a node, in and out."`
	Network float64 `default:"50" help:"GB/s of a GPU to other nodes, in and out (200 Gb/s InfiniBand is 50)."`
	Offload bool    `help:"cluster: state and checkpoints may live on the host or a drive."`

	Flops  float64 `help:"laws: FLOPs to spend."`
	Hours  float64 `help:"laws: hours on --gpus to spend, instead of --flops."`
	Format string  `default:"text" enum:"text,json,svg" help:"${enum}; svg is for curve and memo."`

	Efficiency float64 `default:"0.6" help:"memo: model FLOPs that a GPU reaches, as a share of its peak."`
	Exchange   float64 `help:"memo: GB/s that a GPU sends to the others of its node; 0: included in --efficiency."`
	HostLink   float64 `help:"memo: GB/s between GPU and host, each way; 0: the rate that hides a layer of 7B from 192K tokens on, as in the paper."`
	HostMemory string  `default:"2048GiB" help:"memo: host memory of the node."`
	Compiled   bool    `help:"memo: plan, lower, pack and simulate each way as a program, instead of analysing it."`
}

func (v *scaleCmd) Run(c *cli.Context) error {
	if c.JSON {
		v.Format = "json"
	}
	if v.Format == "svg" && v.What != "curve" && v.What != "memo" {
		return cli.UsageError("scale " + v.What + " --format svg: only curve and memo are plots\nhint: athanor-lab scale curve --format svg")
	}
	if v.What == "memo" {
		return v.memo(c)
	}
	cluster, err := v.cluster()
	if err != nil {
		return err
	}
	if v.What == "laws" {
		return v.laws(c, cluster)
	}
	m, err := v.model()
	if err != nil {
		return err
	}
	if !(v.Batch >= 0) {
		return cli.UsageError(fmt.Sprintf("scale: --batch %v is not a number of sequences; hint: give the critical batch, or 0 for the usual one of a model of this size", v.Batch))
	}
	m.Measured = v.Batch
	work := scale.DefaultWork(m)
	work.Steps = v.Steps
	if v.Tokens != 0 {
		work.Steps = v.Tokens / (work.Batch * float64(m.Sequence))
	}
	if err := scale.Check(m, cluster, work); err != nil {
		return err
	}
	switch v.What {
	case "curve":
		return v.curve(c, cluster.Hardware)
	case "traffic":
		return v.traffic(c, m, cluster.Hardware)
	case "cluster":
		return v.fit(c, m, cluster, work)
	}
	return v.table(c, m, cluster.Hardware, work)
}

func (v *scaleCmd) cluster() (scale.Cluster, error) {
	bytes, err := size.Parse(v.Memory)
	if err != nil {
		return scale.Cluster{}, cli.UsageError(fmt.Sprintf("--memory: %v", err))
	}
	return scale.Cluster{GPUs: v.Gpus, Offload: v.Offload, Hardware: scale.Hardware{
		Name:  fmt.Sprintf("%g TFLOP/s, %s, nodes of %d at %g GB/s, network %g GB/s", v.Tflops, v.Memory, v.Node, v.Link, v.Network),
		FLOPS: v.Tflops * 1e12, Memory: float64(bytes), Node: v.Node, Link: v.Link * 1e9, Network: v.Network * 1e9}}, nil
}

// model returns the model X_x, or one known by name or read from a folder.
func (v *scaleCmd) model() (scale.Model, error) {
	if v.Model == "" {
		if v.X < 1 || v.X > 10000 {
			return scale.Model{}, cli.UsageError(fmt.Sprintf("--x %d: the family goes from X_1 to X_10000\nhint: X_160 has 1.26 trillion parameters", v.X))
		}
		return scale.Family(v.X), nil
	}
	m, err := findModel(v.Model)
	if err != nil {
		return scale.Model{}, err
	}
	s := scale.Model{Name: v.Model, Layers: m.Layers, Hidden: m.Width, Heads: m.Heads, Sequence: m.MaxPositions, Parameters: float64(m.ParamCount())}
	if v.Sequence != 0 {
		s.Sequence = v.Sequence
	}
	return s, nil
}

// findModel reads the config.json of a folder, or looks up a known name.
func findModel(name string) (*model.Model, error) {
	data, err := bounded.ReadFile(filepath.Join(name, "config.json"), 1<<20)
	var m *model.Model
	switch {
	case err == nil:
		m, _, err = family.Parse(data)
	case errors.Is(err, fs.ErrNotExist):
		m, err = family.Known(name)
	}
	if err != nil {
		return nil, cli.UsageError(fmt.Sprintf("--model: %v", err))
	}
	return m, nil
}

// table prints a comparison of the ways to parallelise.
func (v *scaleCmd) table(c *cli.Context, m scale.Model, h scale.Hardware, work scale.Work) error {
	rows := scale.Table(m, h, work)
	if v.Format == "json" {
		return c.Print(map[string]any{"model": m, "hardware": h, "work": work, "critical_batch": work.Batch, "tokens": work.Tokens(m),
			"flops": work.FLOPs(m), "state_intensity": m.StateIntensity(), "gpu_years": work.FLOPs(m) / h.FLOPS / (365.25 * 86400), "links": scale.Thresholds(h.FLOPS), "rows": rows})
	}
	printWork(c.Stdout, m, h, work)
	c.Textf("\n%-25s %5s %4s %3s %5s %3s %7s %6s %10s %9s %9s %9s %9s\n", "strategy", "n_b", "p", "t", "m", "b", "GPUs", "eff", "days",
		"state", "buffers", "ckpt", "working")
	for _, r := range rows {
		c.Textf("%-25s %5d %4d %3d %5d %3d %7d %6.3f %10s %9s %9s %9s %9s\n", r.Name, r.Data, r.Pipe, r.Tensor, r.Micros, r.Batch, r.GPUs,
			r.Efficiency, digits(r.Days), gibibytes(r.State), gibibytes(r.Buffers), gibibytes(r.Checkpoints), gibibytes(r.Working))
	}
	c.Textf("\nGiB per GPU; n_b replicas, p pipeline and t tensor ranks, m micro-batches of b sequences\n")
	slowest := "none of the usual links"
	for _, l := range scale.Thresholds(h.FLOPS) {
		if l.Threshold <= m.StateIntensity() {
			slowest = fmt.Sprintf("%s (%.2g GB/s)", l.Name, l.Bandwidth/1e9)
		}
	}
	c.Textf("state moves once per step, %.3g FLOP per byte: the slowest link that hides it is %s\n", m.StateIntensity(), slowest)
	c.Textf("shortest time: %.4g days, improved %.4g: %.2fx\n", rows[8].Days, rows[9].Days, rows[8].Days/rows[9].Days)
	return nil
}

func printWork(w io.Writer, m scale.Model, h scale.Hardware, work scale.Work) {
	fmt.Fprintf(w, "%s: %s parameters, %d layers of width %d, sequences of %d tokens\n", m.Name, scale.Count(m.Parameters), m.Layers, m.Hidden, m.Sequence)
	fmt.Fprintf(w, "critical batch %.0f sequences, %s tokens, %.3g FLOP: %.3g years of one GPU\n", work.Batch, scale.Count(work.Tokens(m)), work.FLOPs(m),
		work.FLOPs(m)/h.FLOPS/(365.25*86400))
	fmt.Fprintf(w, "GPUs: %s\n", h.Name)
}

// digits formats three significant digits, without an exponent for common
// magnitudes.
func digits(d float64) string {
	if d >= 100 && d < 1e7 {
		return fmt.Sprintf("%.0f", d)
	}
	return fmt.Sprintf("%.3g", d)
}

func gibibytes(bytes float64) string {
	return digits(bytes / (1 << 30))
}

// curve prints how time and memory grow with the model family.
func (v *scaleCmd) curve(c *cli.Context, h scale.Hardware) error {
	points := scale.Curve(h)
	switch v.Format {
	case "json":
		return c.Print(map[string]any{"hardware": h, "points": points})
	case "svg":
		return scale.PlotCurve(c.Stdout, h, points)
	}
	c.Textf("%-6s %10s | %8s %9s %9s | %8s %4s %6s %9s %9s %9s %9s %9s\n", "model", "parameters", "3D GPUs", "days", "GiB", "improved", "p",
		"eff", "days", "state", "buffers", "ckpt", "working")
	for _, p := range points {
		c.Textf("X_%-4d %10s | %8d %9s %9s | %8d %4d %6.3f %9s %9s %9s %9s %9s\n", p.X, scale.Count(p.Parameters), p.Baseline.GPUs,
			digits(p.Baseline.Days), gibibytes(p.Baseline.Total()), p.Improved.GPUs, p.Improved.Pipe, p.Improved.Efficiency, digits(p.Improved.Days),
			gibibytes(p.Improved.State), gibibytes(p.Improved.Buffers), gibibytes(p.Improved.Checkpoints), gibibytes(p.Improved.Working))
	}
	fmt.Fprintln(c.Stdout, "\nGiB per GPU. Training takes years long before a model does not fit: there is no memory wall.")
	return nil
}

// traffic compares data-parallel volumes at the improved method's micro-batches.
func (v *scaleCmd) traffic(c *cli.Context, m scale.Model, h scale.Hardware) error {
	rows := scale.Table(m, h, scale.DefaultWork(m))
	micros := rows[len(rows)-1].Micros
	flows := scale.Flows(micros, float64(m.Sequence))
	if v.Format == "json" {
		return c.Print(map[string]any{"micros": micros, "tokens": m.Sequence, "threshold": h.FLOPS / h.Network, "flows": flows})
	}
	c.Textf("%s, %d micro-batches of %d tokens; network traffic hides behind %.4g FLOP per byte\n\n", m.Name, micros, m.Sequence, h.FLOPS/h.Network)
	c.Textf("%-22s %8s %8s %12s %10s %10s\n", "sharding", "gathers", "reduces", "bytes/param", "forward", "backward")
	for _, f := range flows {
		forward := "-"
		if f.Forward > 0 {
			forward = digits(f.Forward)
		}
		c.Textf("%-22s %8d %8d %12g %10s %10s\n", f.Mode, f.Gathers, f.Reduces, f.Bytes, forward, digits(f.Backward))
	}
	fmt.Fprintln(c.Stdout, "\nper step; bytes sent per parameter of the rank; FLOP per byte, in and out, of the compute that hides the traffic")
	return nil
}

// fit finds the fastest configuration on the given GPUs.
func (v *scaleCmd) fit(c *cli.Context, m scale.Model, cluster scale.Cluster, work scale.Work) error {
	plan, err := scale.Fit(m, cluster, work)
	if v.Format == "json" {
		object := map[string]any{"model": m, "cluster": cluster, "work": work, "fits": err == nil}
		var short *scale.MisfitError
		switch {
		case err == nil:
			object["plan"] = plan
		case errors.As(err, &short):
			object["misfit"] = short
		default:
			return err
		}
		return errors.Join(err, c.Print(object))
	}
	if err != nil {
		return err
	}
	printWork(c.Stdout, m, cluster.Hardware, work)
	kind := "replicated weights"
	if plan.Partitioned {
		kind = "partitioned weights"
	}
	if plan.Layered {
		kind += ", layered gradient accumulation"
		if plan.Pipe > 1 {
			kind += " on a modular pipeline"
		}
	}
	c.Textf("\nfastest on %d of %d GPUs: %.4g days\n", plan.GPUs, cluster.GPUs, plan.Days)
	c.Textf("  %d replicas x %d pipeline x %d tensor ranks, %d micro-batches of %d sequences; %s\n", plan.Data, plan.Pipe, plan.Tensor,
		plan.Micros, plan.Batch, kind)
	c.Textf("  efficiency %.3f = bubble %.3f x tensor %.3f x data %.3f\n", plan.Efficiency, plan.Bubble, plan.TensorShare, plan.DataShare)
	c.Textf("  GiB per GPU: state %s, buffers %s, checkpoints %s, working %s\n", gibibytes(plan.State), gibibytes(plan.Buffers),
		gibibytes(plan.Checkpoints), gibibytes(plan.Working))
	c.Textf("  network needed to hide the traffic: %.3g GB/s per GPU, in and out\n\nwhat limits:\n", plan.Bandwidth/1e9)
	for _, l := range plan.Limits {
		c.Textf("  %-34s %10.4g days  %5.2fx\n", l.Name, l.Days, l.Speedup)
	}
	return nil
}

// laws finds the compute-optimal model for a budget.
func (v *scaleCmd) laws(c *cli.Context, cluster scale.Cluster) error {
	flops := v.Flops
	if v.Flops != 0 && v.Hours != 0 {
		return cli.UsageError(fmt.Sprintf("scale laws: --flops %g and --hours %g are two budgets\nhint: leave one out", v.Flops, v.Hours))
	}
	if v.Hours != 0 {
		flops = v.Hours * 3600 * float64(v.Gpus) * cluster.FLOPS
	}
	if !(flops > 0) || flops > 1e40 {
		return cli.UsageError(fmt.Sprintf("scale laws: a budget of %g FLOPs is out of range\nhint: give --flops 1e20, or --hours 24 --gpus 8 --tflops 150", flops))
	}
	type fit struct {
		Law        string  `json:"law"`
		Parameters float64 `json:"parameters"`
		Tokens     float64 `json:"tokens"`
		Loss       float64 `json:"loss"`
	}
	var fits []fit
	for _, l := range []struct {
		name string
		law  scale.Chinchilla
	}{{"Hoffmann et al. 2022", scale.Hoffmann()}, {"Besiroglu et al. 2024", scale.Besiroglu()}} {
		n, d := l.law.Optimum(flops)
		fits = append(fits, fit{l.name, n, d, l.law.Loss(n, d)})
	}
	if v.Format == "json" {
		return c.Print(map[string]any{"flops": flops, "fits": fits})
	}
	c.Textf("%.4g FLOP\n\n%-24s %11s %9s %8s\n", flops, "law", "parameters", "tokens", "loss")
	for _, f := range fits {
		c.Textf("%-24s %11s %9s %8.4f\n", f.Law, scale.Count(f.Parameters), scale.Count(f.Tokens), f.Loss)
	}
	if flops < 1e17 {
		fmt.Fprintln(c.Stdout, "\nso small a budget is far below the runs that these laws were fitted on: measure with a few short runs instead")
	}
	return nil
}
