package search

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Layers describes the activation policy that a run of layers shares, and its cost.
// Bytes are per layer and micro-batch, seconds per layer and step.
type Layers struct {
	First     int            `json:"first"`
	Last      int            `json:"last"`
	Retention plan.Retention `json:"retention"`
	Kept      int64          `json:"kept_bytes"`
	Swapped   int64          `json:"swapped_bytes"`
	Remade    int64          `json:"remade_bytes"`
	Out       float64        `json:"out_seconds"` // on the link
	In        float64        `json:"in_seconds"`
	Recompute float64        `json:"recompute_seconds"`
	Forward   float64        `json:"forward_seconds"` // behind which the way out can hide
	Backward  float64        `json:"backward_seconds"`
}

// Activations describes a simulated candidate's activation policy, by runs of
// layers.
func Activations(g *graph.Graph, c *Candidate) []Layers {
	var list []Layers
	for l, r := range c.Plan.Activations {
		saved := plan.Saved(g, l, c.Plan.MicroBatch*g.Seq)
		if n := len(list); n > 0 && list[n-1].Retention == r && saved == plan.Saved(g, l-1, c.Plan.MicroBatch*g.Seq) {
			list[n-1].Last = l
			continue
		}
		row := Layers{First: l, Last: l, Retention: r}
		for a, bytes := range saved {
			waiting := int64(r[a].Share * float64(bytes))
			if r[a].Swapped() {
				row.Swapped += waiting
			} else {
				row.Kept += waiting
			}
			row.Remade += bytes - waiting
		}
		list = append(list, row)
	}
	for i := range list {
		list[i].time(c)
	}
	return list
}

// time adds up the instructions of the layers.
func (r *Layers) time(c *Candidate) {
	each := 1 / float64(r.Last-r.First+1)
	for i := range c.Program.Instrs {
		in := &c.Program.Instrs[i]
		if layer := in.Key.Segment - 1; layer < r.First || layer > r.Last {
			continue
		}
		seconds := each * (c.Timeline.Spans[i].End - c.Timeline.Spans[i].Start)
		swap := in.Op == graph.Copy && c.Program.Buffers[in.Args[graph.CopyDst].Buf].Class == program.ClassActivations
		switch {
		case swap && in.Stream == device.DevToHost:
			r.Out += seconds
		case swap && in.Stream == device.HostToDev:
			r.In += seconds
		case in.Stream != device.Compute:
		case in.Key.Dir == program.Recompute:
			r.Recompute += seconds
		case in.Key.Dir == program.Forward:
			r.Forward += seconds
		case in.Key.Dir == program.Backward:
			r.Backward += seconds
		}
	}
}

// WriteActivations prints the runs of layers as a table, and below it what becomes of each one's activations.
func WriteActivations(w io.Writer, list []Layers) error {
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "layers\tkept\tswapped\trecomputed\tout\tin\tagain\tforward\tbackward\t")
	amount := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return size.Format(n)
	}
	ms := func(s float64) string {
		switch {
		case s == 0:
			return "-"
		case s < 1e-5: // in the unit of its column, and no wider than it must be
			return fmt.Sprintf("%.4f ms", 1e3*s)
		case s < 1e-3:
			return fmt.Sprintf("%.2g ms", 1e3*s)
		}
		return stat.Seconds(s)
	}
	for _, r := range list {
		fmt.Fprintf(tw, "%d-%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.First, r.Last, amount(r.Kept), amount(r.Swapped), amount(r.Remade),
			ms(r.Out), ms(r.In), ms(r.Recompute), ms(r.Forward), ms(r.Backward))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, r := range list {
		if _, err := fmt.Fprintf(w, "layers %d-%d: %s\n", r.First, r.Last, fates(r.Retention)); err != nil {
			return err
		}
	}
	return nil
}

// fates says what becomes of a layer's activations, in words: what has the same fate is named together.
func fates(r plan.Retention) string {
	var parts []string
	for a, f := range r {
		if slices.Contains(r[:a], f) {
			continue
		}
		names := []string{plan.Act(a).String()}
		for b := a + 1; b < len(r); b++ {
			if r[b] == f {
				names = append(names, plan.Act(b).String())
			}
		}
		what := "kept"
		switch {
		case f.Swapped() && f.Share < 1:
			what = fmt.Sprintf("%.4g %% of the tokens on the %v, recomputed for the rest", 100*f.Share, f.Tier)
		case f.Swapped():
			what = "on the " + f.Tier.String()
		case f != plan.Kept:
			what = "recomputed"
		}
		parts = append(parts, strings.Join(names, ", ")+" "+what)
	}
	return strings.Join(parts, "; ")
}
