package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/lab/pipeline"
	"github.com/athanor-llm/athanor/schedule"
)

// scheduleCmd shows a pipeline schedule by itself.
type scheduleCmd struct {
	Name string `arg:"" help:"gpipe, 1f1b, interleaved, breadth-first, seq1f1b, chimera, bitpipe, zb-h1, zb-h2, zb-auto, zb-v, dualpipe, dualpipev; search (the best order for these numbers) or all (compare)."`

	Ranks        int       `default:"4" help:"Ranks in the pipeline."`
	Microbatches int       `default:"8" help:"Micro-batches per step, over both directions."`
	Chunks       int       `help:"Stages per rank and direction; 0: the schedule's own number."`
	Splits       int       `help:"Slices per sequence; 0: the schedule's own number."`
	DepthFirst   int       `help:"breadth-first: groups of micro-batches that run one after the other."`
	Tf           []float64 `default:"1" placeholder:"TIME,..." help:"Time of the forward of one unit (one chunk, one split); or a list with one time per stage."`
	Tb           []float64 `default:"1" placeholder:"TIME,..." help:"Time of its input gradient."`
	Tw           []float64 `default:"1" placeholder:"TIME,..." help:"Time of its weight gradient; an unsplit backward takes tb+tw."`
	Tc           float64   `default:"0" help:"Time of a message between two ranks."`
	Tpair        float64   `help:"dualpipe: time of an overlapped forward and backward; 0: tf+tb+tw."`
	Tg           float64   `help:"Time to gather the parameters of a stage, with --buffers."`
	Buffers      int       `help:"Gathered-parameter buffers per rank; 0: parameters are resident."`
	Cap          float64   `help:"Activations allowed per rank, in chunks of one micro-batch (all: in stages); 0: no limit."`
	WeightMemory float64   `default:"0.5" help:"Share of the activations that is held until the weight gradient."`
	WeightCopies int       `default:"2" enum:"1,2" help:"search: copies of the weights allowed."`
	Objective    string    `default:"makespan" enum:"makespan,span" help:"search: what is minimised, ${enum}."`
	Effort       int       `help:"search: passes to execute in local search; 0: 4 million."`
	Nodes        int       `help:"search: nodes of the exact search per placement; 0: small schedules only."`
	Seed         uint64    `help:"search: seed of its random choices."`
	Tokens       int       `help:"Tokens per sequence, which bound the splits."`
	Model        string    `placeholder:"NAME|DIR" help:"With --tokens: cut the splits so that each costs the same in this model."`
	Multiple     int       `default:"1" help:"With --model: splits are multiples of this many tokens (the tensor-parallel degree)."`
	EvenSplits   bool      `help:"With --model: splits of equal length instead, to see what they cost."`
	Orders       string    `placeholder:"FILE" help:"Check and time the orders of this file (one line per rank, or the JSON of this command) instead of the schedule's own."`
	Format       string    `default:"order" enum:"order,grid,json,svg" help:"${enum}."`
}

func (v *scheduleCmd) Run(c *cli.Context) error {
	if c.JSON {
		v.Format = "json"
	}
	if v.Effort < 0 || v.Nodes < 0 {
		return cli.UsageError(fmt.Sprintf("schedule: --effort %d or --nodes %d is negative; hint: use 1 or more, or 0 for the default", v.Effort, v.Nodes))
	}
	if v.Name == "all" {
		return v.all(c)
	}
	s, report, err := v.make()
	if err != nil {
		return err
	}
	costs := v.costs()
	cuts, err := v.cut(s, &costs)
	if err != nil {
		return err
	}
	t, err := s.Simulate(costs)
	if err != nil {
		return err
	}
	full := pipeline.NewReport(s, t, costs, true)
	full.LowerBound, full.Optimal, full.Cuts = report.LowerBound, report.Optimal, cuts
	if v.Cap > 0 {
		if err := s.CheckCap(costs, v.Cap); err != nil {
			if v.Format == "json" {
				err = errors.Join(err, c.Print(full))
			}
			return err
		}
	}
	switch v.Format {
	case "json":
		return c.Print(full)
	case "svg":
		return pipeline.WriteSVG(c.Stdout, s, t, costs)
	case "grid":
		printRanks(c.Stdout, s.Grid(t))
	default:
		printRanks(c.Stdout, full.Orders)
	}
	printSchedule(c.Stdout, full)
	return nil
}

// costs returns the times of a unit, or the means of lists, in which case it has
// each stage's times.
func (v *scheduleCmd) costs() schedule.Costs {
	c := schedule.Costs{Times: schedule.Times{F: mean(v.Tf), B: mean(v.Tb), W: mean(v.Tw)}, Comm: v.Tc, Pair: v.Tpair,
		Gather: v.Tg, Buffers: v.Buffers, WeightMemory: v.WeightMemory}
	stages := max(len(v.Tf), len(v.Tb), len(v.Tw))
	if stages == 1 {
		return c
	}
	at := func(list []float64, i int) float64 {
		switch {
		case len(list) == 1:
			return list[0]
		case i < len(list):
			return list[i]
		}
		return math.NaN() // lists of different lengths: refused with the stage's name
	}
	for i := range stages {
		c.Stages = append(c.Stages, schedule.Times{F: at(v.Tf, i), B: at(v.Tb, i), W: at(v.Tw, i)})
	}
	return c
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return sum / float64(len(list))
}

func (v *scheduleCmd) request() schedule.Request {
	return schedule.Request{Ranks: v.Ranks, Micros: v.Microbatches, Chunks: v.Chunks, Slices: v.Splits,
		DepthFirst: v.DepthFirst, Costs: v.costs(), Cap: v.Cap}
}

// make generates or searches a schedule, then replaces its orders by those of a
// file, if given. It fills in only those fields of the report that a search proves.
func (v *scheduleCmd) make() (*schedule.Schedule, pipeline.Report, error) {
	var proved pipeline.Report
	if v.Name == "search" {
		found, err := pipeline.Search(pipeline.Goal{Request: v.request(), Span: v.Objective == "span", Copies: v.WeightCopies,
			Effort: v.Effort, Nodes: v.Nodes, Seed: v.Seed})
		if err != nil {
			return nil, proved, err
		}
		proved.LowerBound, proved.Optimal = found.LowerBound, &found.Optimal
		return found.Schedule, proved, nil
	}
	names := append(schedule.Names(), "search", "all")
	if near := suggest.Nearest(v.Name, names); near == "search" || near == "all" {
		return nil, proved, cli.UsageError(fmt.Sprintf("schedule %q: no such schedule\nhint: did you mean %q?", v.Name, near))
	}
	s, err := schedule.Generate(v.Name, v.request())
	if err != nil || v.Orders == "" {
		return s, proved, err
	}
	lines, err := readOrders(v.Orders)
	if err != nil {
		return nil, proved, err
	}
	s, err = s.Parse(lines)
	return s, proved, err
}

// cut divides a sequence's tokens into the schedule's slices and sets their
// relative costs.
func (v *scheduleCmd) cut(s *schedule.Schedule, costs *schedule.Costs) ([]int, error) {
	if v.Tokens == 0 && v.Model == "" {
		return nil, nil
	}
	cost := pipeline.Cost{Linear: 1}
	if v.Model != "" {
		m, err := findModel(v.Model)
		if err != nil {
			return nil, err
		}
		cost = pipeline.TransformerCost(m.Layers, m.Width, m.FeedForward*max(1, m.Active), m.Heads, m.Vocab)
	}
	by := cost
	if v.EvenSplits {
		by = pipeline.Cost{Linear: 1}
	}
	cuts, err := by.Partition(v.Tokens, s.Slices, v.Multiple)
	if err != nil || v.Model == "" {
		return nil, err
	}
	costs.Slices = cost.Factors(cuts)
	return cuts, nil
}

// readOrders reads orders as printed by this verb: text, with or without "r0:", or
// its JSON object.
func readOrders(path string) ([]string, error) {
	data, err := bounded.ReadFile(path, 1<<30)
	if err != nil {
		return nil, cli.Misuse(suggest.Add(fmt.Errorf("orders: %w", err), "name a file with one line per rank, or with the JSON of this command"))
	}
	var object struct{ Orders []string }
	if json.Unmarshal(data, &object) == nil && object.Orders != nil {
		return object.Orders, nil
	}
	rank := regexp.MustCompile(`^r\d+: `)
	var lines []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" { // the summary follows
			break
		}
		lines = append(lines, rank.ReplaceAllString(line, ""))
	}
	return lines, nil
}

func printRanks(w io.Writer, lines []string) {
	width := len(fmt.Sprint(len(lines) - 1))
	for r, line := range lines {
		fmt.Fprintf(w, "r%d:%*s %s\n", r, width-len(fmt.Sprint(r)), "", line)
	}
}

// printSchedule prints the numbers below the orders.
func printSchedule(w io.Writer, r pipeline.Report) {
	fmt.Fprintf(w, "\n%s: makespan %.6g, ideal %.6g, bubble %.1f %% of it (%.6g)\n", r.Name, r.Makespan, r.Ideal, 100*r.Alone, r.Makespan-r.Ideal)
	fmt.Fprintf(w, "in a run, where ranks begin their next step at once: %.1f %% (%.6g)\n", 100*r.Bubble, r.BubbleTime)
	unit := "micro-batches"
	if r.Chunks > 1 {
		unit = "chunks"
	}
	fmt.Fprintf(w, "peak activations %s %s, weights x%d, %d messages\n", numbers(r.Peaks), unit, r.WeightCopies, r.Messages)
	if r.Gathers != nil {
		fmt.Fprintf(w, "gathers %s, reduces %s\n", numbers(r.Gathers), numbers(r.Reduces))
	}
	if r.Cuts != nil {
		fmt.Fprintf(w, "splits of %s tokens\n", numbers(r.Cuts))
	}
	switch {
	case r.Optimal != nil && *r.Optimal:
		fmt.Fprintln(w, "optimal: no order of these stages is faster")
	case r.Optimal != nil:
		fmt.Fprintf(w, "no order is faster than %.6g\n", r.LowerBound)
	}
}

// numbers formats a list, or its range if it is long.
func numbers[T int | float64](list []T) string {
	if len(list) > 16 {
		return fmt.Sprintf("%.5g to %.5g", float64(slices.Min(list)), float64(slices.Max(list)))
	}
	var words []string
	for _, n := range list {
		words = append(words, fmt.Sprintf("%.5g", float64(n)))
	}
	return strings.Join(words, " ")
}

// all compares all schedules at equal work.
func (v *scheduleCmd) all(c *cli.Context) error {
	if v.costs().Stages != nil {
		return cli.UsageError("schedule all with a time per stage: schedules cut the model into different stages\nhint: give one time for all stages")
	}
	if v.Format != "order" && v.Format != "json" {
		return cli.UsageError("schedule all --format " + v.Format + ": a comparison is a table\nhint: use --format json, or name one schedule")
	}
	list, err := pipeline.Compare(v.request(), v.Effort)
	if err != nil {
		return err
	}
	if v.Format == "json" {
		return c.Print(map[string]any{"ranks": v.Ranks, "microbatches": v.Microbatches, "schedules": list})
	}
	c.Textf("%d ranks, %d micro-batches; times of one stage of 1/%d of the model: tf %g, tb %g, tw %g; tc %g\n\n",
		v.Ranks, v.Microbatches, v.Ranks, mean(v.Tf), mean(v.Tb), mean(v.Tw), v.Tc)
	c.Textf("%-13s %6s %6s %8s %7s %7s %6s %7s %8s%s\n", "schedule", "chunks", "splits", "makespan", "bubble", "in runs", "peak", "weights", "messages", v.last(c, "what"))
	for _, line := range list {
		if line.Why != "" {
			c.Textf("%-13s %s\n", line.Name, line.Why)
			continue
		}
		peak := 0.0
		for _, p := range line.PeakStages {
			peak = max(peak, p)
		}
		c.Textf("%-13s %6d %6d %8.6g %5.1f %% %5.1f %% %6.4g %7s %8d%s\n", line.Name, line.Chunks, line.Splits,
			line.Makespan, 100*line.Alone, 100*line.Bubble, peak, fmt.Sprintf("x%d", line.WeightCopies), line.Messages, v.last(c, line.Summary))
	}
	c.Text("\nbubble: by how much the makespan exceeds the busiest rank's work; in runs: how long the worst rank waits between its first and last unit, over its work, " +
		"which is what remains where ranks begin their next step at once; peak: activations of the fullest rank, in stages of one micro-batch\n")
	return nil
}

// last is the last column of a table, which narrow terminals have no room for.
func (v *scheduleCmd) last(c *cli.Context, text string) string {
	if c.Columns > 0 && c.Columns < 120 {
		return ""
	}
	return "  " + text
}
