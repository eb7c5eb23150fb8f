package main

import (
	stdctx "context"
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/lab/compare"
	"github.com/athanor-llm/athanor/lab/memo"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/search"
)

// published is the MFU in MEMO's paper for 7B at 1024K tokens.
const published = 0.5230

// memo compares activation policies for long sequences.
func (v *scaleCmd) memo(c *cli.Context) error {
	machine, err := v.memoMachine()
	if err != nil {
		return err
	}
	lengths := memo.Lengths()
	if v.Sequence != 0 {
		if v.Sequence < 1 || v.Sequence > 16<<20 {
			return cli.UsageError(fmt.Sprintf("--sequence %d is not from 1 to %d tokens\nhint: use, for example, --sequence 1048576", v.Sequence, 16<<20))
		}
		lengths = []int{v.Sequence}
	}
	if v.Compiled {
		return v.memoCompiled(c, machine, lengths)
	}
	table, err := memo.Compare(machine, lengths, v.memoWork)
	if err != nil {
		return err
	}
	switch v.Format {
	case "svg":
		return memo.Plot(c.Stdout, table)
	case "json":
		return c.Print(table)
	}
	if v.Sequence != 0 {
		return v.memoLayers(c, machine, table)
	}
	printMemo(c.Stdout, table)
	if v.Model != "" {
		return nil
	}
	w, err := v.memoWork(1 << 20)
	if err != nil {
		return err
	}
	efficiency, err := memo.Calibrated(w, published)
	if err != nil {
		return err
	}
	machine = memo.A800(efficiency, 0)
	arms := memo.Arms()
	ours, err := arms[len(arms)-1].Run(machine, machine.Costs(w))
	if err != nil {
		return err
	}
	c.Textf("MEMO's published %.2f %% at 1024K is its policy at --efficiency %.4f; ours there: %.2f %%\n", 100*published, efficiency, 100*ours.MFU)
	return nil
}

// memoLayers prints one length, with the optimum's policy for each layer.
func (v *scaleCmd) memoLayers(c *cli.Context, machine memo.Machine, table memo.Comparison) error {
	w, err := v.memoWork(v.Sequence)
	if err != nil {
		return err
	}
	costs := machine.Costs(w)
	if _, err := memo.Best(machine, costs); err != nil {
		return err
	}
	printMemo(c.Stdout, table)
	arms := table.Rows[0].Arms
	layers := arms[len(arms)-1].Layers
	c.Textf("\n%-9s %10s %12s %16s\n", "GiB, ours", "kept", "swapped", "recomputed")
	for first := 0; first < len(layers); {
		line := memoLayer(layers[first], costs)
		end := first + 1
		for end < len(layers) && memoLayer(layers[end], costs) == line {
			end++
		}
		c.Textf("%-9s %s\n", fmt.Sprintf("h%d-h%d", first, end-1), line)
		first = end
	}
	return nil
}

// memoLayer formats a layer's activation policy.
func memoLayer(s memo.Split, costs memo.Costs) string {
	var kept, swapped, again float64
	for class, bytes := range costs.Bytes {
		kept += s.Keep[class] * bytes / (1 << 30)
		swapped += s.Swap[class] * bytes / (1 << 30)
		again += max(0, 1-s.Keep[class]-s.Swap[class]) * bytes / (1 << 30)
	}
	if s.Stay {
		return fmt.Sprintf("%10.3f %12.3f %16s  %.3f stay in their slots", kept, swapped, "", again)
	}
	return fmt.Sprintf("%10.3f %12.3f %16.3f", kept, swapped, again)
}

// memoMachine returns the paper's node, changed by the flags.
func (v *scaleCmd) memoMachine() (memo.Machine, error) {
	for _, n := range []struct {
		name             string
		value, low, high float64
	}{{"--efficiency", v.Efficiency, 1e-3, 1}, {"--exchange", v.Exchange, 0, 1e6}, {"--host-link", v.HostLink, 0, 1e6}} {
		if !(n.value >= n.low && n.value <= n.high) {
			return memo.Machine{}, cli.UsageError(fmt.Sprintf("%s %g is not from %g to %g\nhint: for the paper's machine, use --efficiency 0.6 and leave the others out", n.name, n.value, n.low, n.high))
		}
	}
	host, err := size.Parse(v.HostMemory)
	if err != nil {
		return memo.Machine{}, cli.UsageError(fmt.Sprintf("--host-memory: %v", err))
	}
	m := memo.A800(v.Efficiency, v.Exchange*1e9)
	m.Host = float64(host) / float64(m.GPUs)
	if v.HostLink > 0 {
		m.Link = v.HostLink * 1e9
	}
	return m, nil
}

// memoWork returns a step of the model on one sequence.
func (v *scaleCmd) memoWork(tokens int) (memo.Work, error) {
	m, err := v.memoModel(tokens)
	if err != nil {
		return memo.Work{}, err
	}
	return memoGraph(m, tokens)
}

// memoModel returns a model of the paper, or one known by name or read from a
// folder, for sequences of the given length.
func (v *scaleCmd) memoModel(tokens int) (*model.Model, error) {
	name := v.Model
	if name == "" {
		name = "7B"
	}
	m, err := memo.Known(name, tokens)
	if err != nil {
		known, err := findModel(name)
		if err != nil {
			return nil, err
		}
		long := *known
		long.MaxPositions = max(long.MaxPositions, tokens)
		m = &long
	}
	return m, nil
}

// memoCompiled runs the ablation through the compiler.
func (v *scaleCmd) memoCompiled(c *cli.Context, machine memo.Machine, lengths []int) error {
	if machine.Exchange > 0 || v.Format == "svg" {
		return cli.UsageError("scale memo --compiled: programs exchange keys or heads over the links of an A800, and there is no plot of them\nhint: leave --exchange and --format svg out")
	}
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	var rows []*compare.Ablation
	for _, tokens := range lengths {
		m, err := v.memoModel(tokens)
		if err != nil {
			return err
		}
		if _, err := machine.Part(m, tokens); err != nil {
			return cli.UsageError(fmt.Sprintf("scale memo --compiled: %v", err))
		}
		w, err := v.memoWork(tokens)
		if err != nil {
			return err
		}
		r, err := compare.Ablate(stdctx.Background(), machine, m, tokens, show.Say)
		if err != nil {
			return err
		}
		for i, a := range memo.Arms() {
			analysed, err := a.Run(machine, machine.Costs(w))
			if err != nil {
				return err
			}
			r.Arms[i].Analysis = analysed.MFU
		}
		if ours := r.Arms[len(r.Arms)-1]; ours.Lack != nil && v.Sequence != 0 {
			return ours.Lack
		}
		rows = append(rows, r)
	}
	show.Done()
	if v.Format == "json" {
		return c.Print(map[string]any{"machine": machine, "rows": rows})
	}
	printCompiled(c.Stdout, machine, rows)
	if v.Sequence != 0 {
		fmt.Fprintln(c.Stdout)
		return search.WriteActivations(c.Stdout, rows[0].Arms[len(rows[0].Arms)-1].Layers)
	}
	return nil
}

// printCompiled prints a table of arms by sequence length.
func printCompiled(w io.Writer, m memo.Machine, rows []*compare.Ablation) {
	fmt.Fprintf(w, "%s, one sequence per step in %d parts, as programs: planned, packed, simulated\n", m.Name, m.GPUs)
	fmt.Fprintf(w, "per GPU: %.4g of %.4g TFLOP/s, %d bytes, host %d bytes at %.4g GB/s each way\n\n", m.Efficiency*m.Peak/1e12, m.Peak/1e12, int64(m.Memory), int64(m.Host), m.Link/1e9)
	line := func(name string, cell func(r *compare.Ablation) string) {
		fmt.Fprintf(w, "%-24s", name)
		for _, r := range rows {
			fmt.Fprintf(w, " %7s", cell(r))
		}
		fmt.Fprintln(w)
	}
	line("MFU, %", func(r *compare.Ablation) string { return kilo(r.Tokens) })
	for i, a := range rows[0].Arms {
		line(a.Name, func(r *compare.Ablation) string {
			if a := &r.Arms[i]; a.Misfit != "" {
				return a.Misfit
			}
			return fmt.Sprintf("%.2f", 100*r.Arms[i].MFU)
		})
	}
	ours := func(cell func(a *compare.AblationArm) string) func(r *compare.Ablation) string {
		return func(r *compare.Ablation) string { return cell(&r.Arms[len(r.Arms)-1]) }
	}
	for _, l := range []struct {
		name string
		cell func(a *compare.AblationArm) string
	}{
		{"  ours as analysed", func(a *compare.AblationArm) string { return fmt.Sprintf("%.2f", 100*a.Analysis) }},
		{"ours: step, s", func(a *compare.AblationArm) string { return fmt.Sprintf("%.2f", a.Seconds) }},
		{"  recomputed, s", func(a *compare.AblationArm) string { return fmt.Sprintf("%.2f", a.Again) }},
		{"  not computing, s", func(a *compare.AblationArm) string { return fmt.Sprintf("%.2f", a.Stall) }},
		{"  device, GiB", func(a *compare.AblationArm) string { return fmt.Sprintf("%.2f", float64(a.Device)/(1<<30)) }},
		{"  host, GiB", func(a *compare.AblationArm) string { return fmt.Sprintf("%.1f", float64(a.Host)/(1<<30)) }},
		{"  instructions", func(a *compare.AblationArm) string { return fmt.Sprint(a.Instrs) }},
	} {
		line(l.name, ours(l.cell))
	}
	fmt.Fprintln(w, "\nhost, device: the memory that is too small. Assumptions: package lab/memo, its essay and Hardware.")
}

func memoGraph(m *model.Model, tokens int) (memo.Work, error) {
	g, err := graph.Build(m, tokens, graph.BF16)
	if err != nil {
		return memo.Work{}, err
	}
	return memo.Of(g)
}

func printMemo(w io.Writer, t memo.Comparison) {
	m := t.Machine
	fmt.Fprintf(w, "%s, one sequence per step, %.4g units of skeletal activations per layer\n", m.Name, t.Units)
	fmt.Fprintf(w, "per GPU: %.4g of %.4g TFLOP/s, %s GiB, host %s GiB at %.4g GB/s each way", m.Efficiency*m.Peak/1e12, m.Peak/1e12, gibibytes(m.Memory), gibibytes(m.Host), m.Link/1e9)
	if m.Exchange > 0 {
		fmt.Fprintf(w, ", other GPUs at %.4g GB/s", m.Exchange/1e9)
	}
	line := func(name string, cell func(r memo.Row) string) {
		fmt.Fprintf(w, "%-24s", name)
		for _, r := range t.Rows {
			fmt.Fprintf(w, " %7s", cell(r))
		}
	}
	fmt.Fprint(w, "\n\n")
	line("MFU, %", func(r memo.Row) string { return kilo(r.Tokens) })
	fmt.Fprintln(w, "  longest")
	for i, l := range t.Longest {
		line(l.Name, func(r memo.Row) string { return share(r.Arms[i]) })
		fmt.Fprintf(w, " %8s\n", kilo(l.Tokens))
	}
	fmt.Fprintln(w)
	ours := func(cell func(r memo.Named) string) func(r memo.Row) string {
		return func(r memo.Row) string { return cell(r.Arms[len(r.Arms)-1]) }
	}
	tenths := func(bytes float64) string { return fmt.Sprintf("%.1f", bytes/(1<<30)) }
	for _, l := range []struct {
		name string
		cell func(r memo.Row) string
	}{
		{"attention, % of forward", func(r memo.Row) string { return fmt.Sprintf("%.1f", 100*r.Attention) }},
		{"activations, GiB", func(r memo.Row) string { return tenths(r.Skeletal) }},
		{memo.Paper + ": alpha", func(r memo.Row) string { return fmt.Sprintf("%.4f", r.Alpha.Alpha) }},
		{"ours: slots", ours(func(r memo.Named) string { return fmt.Sprint(r.Slots) })},
		{"  kept, GiB", ours(func(r memo.Named) string { return tenths(r.Kept) })},
		{"  swapped, GiB", ours(func(r memo.Named) string { return tenths(r.Host) })},
		{"  recomputed, GiB", ours(func(r memo.Named) string { return tenths(r.Redone) })},
		{"  device, GiB", ours(func(r memo.Named) string { return tenths(r.Device) })},
		{"  stall, s", ours(func(r memo.Named) string { return fmt.Sprintf("%.2f", r.Stall) })},
		{"  step, s", ours(func(r memo.Named) string { return fmt.Sprintf("%.2f", r.Time) })},
		{"  proven least, s", ours(func(r memo.Named) string { return fmt.Sprintf("%.2f", r.Bound) })},
	} {
		line(l.name, l.cell)
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "\nhost, device: the memory that is too small. Assumptions are in the essay of package lab/memo.")
}

// share formats an arm's MFU, or the tier that is too small.
func share(r memo.Named) string {
	if r.Misfit != "" {
		return r.Misfit
	}
	return fmt.Sprintf("%.2f", 100*r.MFU)
}

// kilo formats multiples of 1024 tokens with a K, others in full.
func kilo(tokens int) string {
	if tokens%1024 == 0 {
		return fmt.Sprintf("%dK", tokens/1024)
	}
	return fmt.Sprint(tokens)
}
