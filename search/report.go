package search

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Usage is the memory of one tier at the moment when most bytes are live.
type Usage struct {
	Height   int64 // bytes of the arena, which the run reaches exactly
	Bound    int64 // live bytes, a lower bound on any packing
	Capacity int64
	Classes  [program.NumClasses]int64 // live bytes then, by class
}

// Memory returns a program's memory by tier and class.
func Memory(p *program.Program) (usage [device.NumTiers]Usage) {
	live := p.Lifetimes()
	for t := range usage {
		u := &usage[t]
		u.Height, u.Bound, u.Capacity = p.Height[t], p.Bound[t], p.Capacity[t]
		delta := make([]int64, len(p.Instrs)+1)
		for i := range p.Buffers {
			if b := &p.Buffers[i]; b.Tier == device.Tier(t) && live[i][0] < live[i][1] {
				delta[live[i][0]] += b.Size
				delta[live[i][1]] -= b.Size
			}
		}
		var sum, most int64
		when := 0
		for i, d := range delta {
			if sum += d; sum > most {
				most, when = sum, i
			}
		}
		for i := range p.Buffers {
			if b := &p.Buffers[i]; b.Tier == device.Tier(t) && live[i][0] <= when && when < live[i][1] {
				u.Classes[b.Class] += b.Size
			}
		}
	}
	return usage
}

// Largest is a class of memory and its bytes, in words, for plans that do not fit.
type Largest struct {
	Tier  string `json:"tier"`
	Class string `json:"class"`
	Bytes int64  `json:"bytes"`
}

// LargestClasses lists the classes of a tier at its peak, largest first.
func LargestClasses(p *program.Program, t device.Tier) []Largest {
	var list []Largest
	for c, n := range Memory(p)[t].Classes {
		if n > 0 {
			list = append(list, Largest{t.String(), program.Class(c).String(), n})
		}
	}
	slices.SortFunc(list, func(a, b Largest) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list
}

// PerTier holds a number per tier and rank.
type PerTier struct {
	Device []int64 `json:"device"`
	Host   []int64 `json:"host"`
	Disk   []int64 `json:"disk"`
}

// ByTier transposes numbers by rank and tier.
func ByTier(ranks ...[device.NumTiers]int64) (p PerTier) {
	for _, v := range ranks {
		p.Device, p.Host, p.Disk = append(p.Device, v[device.DeviceTier]), append(p.Host, v[device.HostTier]), append(p.Disk, v[device.DiskTier])
	}
	return p
}

// Traffic holds the bytes of a step per link and rank.
type Traffic struct {
	H2D       []int64 `json:"h2d"`
	D2H       []int64 `json:"d2h"`
	DiskRead  []int64 `json:"disk_read"`
	DiskWrite []int64 `json:"disk_write"`
	Network   []int64 `json:"network"`
}

// Moved is the bytes that a rank moved in a step: between its tiers, and from other
// ranks.
type Moved struct {
	Tiers   [device.NumTiers][device.NumTiers]int64
	Network int64
}

// MovedTraffic groups what the ranks moved by link.
func MovedTraffic(ranks ...Moved) (t Traffic) {
	for i := range ranks {
		m := &ranks[i].Tiers
		t.H2D, t.D2H = append(t.H2D, m[device.HostTier][device.DeviceTier]), append(t.D2H, m[device.DeviceTier][device.HostTier])
		t.DiskRead, t.DiskWrite = append(t.DiskRead, m[device.DiskTier][device.HostTier]), append(t.DiskWrite, m[device.HostTier][device.DiskTier])
		t.Network = append(t.Network, ranks[i].Network)
	}
	return t
}

// Traffic returns the bytes that each rank moves in a step.
func (c *Candidate) Traffic() Traffic {
	var moved []Moved
	for _, p := range c.ranks() {
		moved = append(moved, moves(p))
	}
	return MovedTraffic(moved...)
}

// Report is the stable JSON of the plan verb.
type Report struct {
	Fits       bool         `json:"fits"`
	Seconds    float64      `json:"step_seconds,omitempty"`
	Tried      float64      `json:"tried_seconds,omitempty"` // in trials on the machine, if there were any
	Expected   *Expectation `json:"expected_step,omitempty"` // what is known best of a step's time, where its range is known
	TokenRate  float64      `json:"tokens_per_second,omitempty"`
	MFU        float64      `json:"mfu,omitempty"`
	Ranks      int          `json:"ranks,omitempty"`
	Peaks      *PerTier     `json:"peaks,omitempty"`
	Bounds     *PerTier     `json:"lower_bounds,omitempty"`
	Capacity   *PerTier     `json:"capacity,omitempty"`
	Plain      int64        `json:"plain_device_bytes,omitempty"` // what the plain plan would take
	Process    int64        `json:"process_bytes,omitempty"`      // what the process takes besides its arenas, for which the limits leave room
	Bytes      *Traffic     `json:"bytes,omitempty"`
	Wear       *Wear        `json:"disk_wear,omitempty"` // nil: nothing is written to a disk
	Plan       *plan.Plan   `json:"plan,omitempty"`
	PlanHash   string       `json:"plan_hash,omitempty"` // on which ranks agree
	Layers     []Layers     `json:"activations,omitempty"`
	RunnersUp  []RunnerUp   `json:"runners_up,omitzero"`
	WhatIfs    []WhatIf     `json:"what_if,omitempty"`
	Quicker    *WhatIf      `json:"quicker,omitempty"` // keys that make it much faster, with other results
	Candidates int          `json:"candidates,omitempty"`
	Cut        bool         `json:"cut_short,omitempty"` // the search was interrupted: a longer one may find a faster plan
	Largest    []Largest    `json:"largest,omitempty"`
	Hint       string       `json:"hint,omitempty"`
}

// RunnerUp is a plan that was slower than the best.
type RunnerUp struct {
	Label   string  `json:"label"`
	Seconds float64 `json:"step_seconds"`
	Tried   float64 `json:"tried_seconds,omitempty"`
	Device  int64   `json:"device_bytes"`
	// Why it is slower: the shares of the step in which ranks, on average, are idle
	// and recompute.
	Idle     float64 `json:"idle"`
	Repeated float64 `json:"repeated"`
}

// WhatIf is the effect of another machine, or of another run.
type WhatIf struct {
	Change    string  `json:"change"`                      // in words
	Set       string  `json:"set,omitempty"`               // configuration overrides that make this change, if there are any
	Price     string  `json:"price,omitempty"`             // what else they change about the run, whose results are others
	Seconds   float64 `json:"step_seconds,omitempty"`      // 0: nothing fits there either
	AtMost    bool    `json:"at_most,omitempty"`           // Seconds is a bound, since not all plans were looked at
	TokenRate float64 `json:"tokens_per_second,omitempty"` // with these Seconds
	Gain      float64 `json:"gain,omitempty"`              // ratio to the seconds per token that are predicted now, minus 1; 0 where nothing fits now
	Brings    string  `json:"brings"`                      // what the plan does differently, or why there is none
}

// NewReport reports the result of a search. tokens and flops (of the model) are per
// step; peak is the FLOP/s of all ranks together.
func NewReport(g *graph.Graph, r *Result, tokens int, flops, peak float64) *Report {
	b := r.Best
	sec := b.Seconds()
	var height, bound, limit [][device.NumTiers]int64
	for _, p := range b.ranks() {
		height, bound, limit = append(height, p.Height), append(bound, p.Bound), append(limit, p.Capacity)
	}
	peaks, bounds, capacity, traffic := ByTier(height...), ByTier(bound...), ByTier(limit...), b.Traffic()
	rep := &Report{
		Fits: true, Seconds: sec, Tried: b.Tried, TokenRate: float64(tokens) / sec, MFU: flops / sec / peak, Ranks: b.Plan.Ranks,
		Peaks: &peaks, Bounds: &bounds, Capacity: &capacity, Bytes: &traffic, Plan: b.Plan, PlanHash: b.Plan.Hash(), Candidates: r.Evaluated, Cut: r.Cut,
		RunnersUp: []RunnerUp{}, Layers: Activations(g, b),
	}
	for _, c := range r.RunnersUp {
		rep.RunnersUp = append(rep.RunnersUp, RunnerUp{c.Label, c.Seconds(), c.Tried, c.Needs()[device.DeviceTier], c.Idle(), c.Repeated()})
	}
	return rep
}

// moves returns the bytes that a program moves.
func moves(p *program.Program) (m Moved) {
	for i := range p.Instrs {
		c := p.Call(i)
		if c.Op == graph.Copy {
			dst, src := c.Args[graph.CopyDst], c.Args[graph.CopySrc]
			m.Tiers[src.Tier][dst.Tier] += dst.Bytes()
		}
		if c.Op.Info().Between {
			m.Network += device.Received(&c, p.Rank)
		}
	}
	return m
}

// MisfitReport returns the report for when nothing fits.
func MisfitReport(e *Misfit) *Report {
	return &Report{Largest: LargestClasses(e.Frugal.fullest(e.Tier), e.Tier), Hint: e.Hint}
}

// fullest returns the program of the rank that takes most of a tier.
func (c *Candidate) fullest(t device.Tier) *program.Program {
	return slices.MaxFunc(c.ranks(), func(a, b *program.Program) int { return cmp.Compare(a.Height[t], b.Height[t]) })
}

// WriteMemory prints memory by class and tier as a table; with several ranks, that of the rank that takes most
// device memory. process is what the process takes besides its arenas, for which the limits leave room; 0: not known.
// wear is that of the disk; nil: nothing is written to it.
func WriteMemory(w io.Writer, c *Candidate, process int64, wear *Wear) error {
	p, title := c.fullest(device.DeviceTier), "memory at the peak"
	if c.Plan.Ranks > 1 {
		title = fmt.Sprintf("peak of rank %d, the fullest", p.Rank)
	}
	usage := Memory(p)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(t device.Tier) string) {
		fmt.Fprintf(tw, "%s\t", name)
		for t := range device.NumTiers {
			fmt.Fprintf(tw, "%s\t", cell(t))
		}
		fmt.Fprintln(tw)
	}
	amount := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return size.Format(n)
	}
	row(title, func(t device.Tier) string { return t.String() })
	for c := range program.NumClasses {
		used := false
		for t := range usage {
			used = used || usage[t].Classes[c] > 0
		}
		if used {
			row(c.String(), func(t device.Tier) string { return amount(usage[t].Classes[c]) })
		}
	}
	row("arena", func(t device.Tier) string { return amount(usage[t].Height) })
	only := func(name string, of device.Tier, cell string) {
		row(name, func(t device.Tier) string {
			if t != of {
				return "-"
			}
			return cell
		})
	}
	if process > 0 {
		only("the process", device.HostTier, size.Format(process))
	}
	row("limit", func(t device.Tier) string { return amount(usage[t].Capacity) })
	row("bytes, exactly", func(t device.Tier) string { return fmt.Sprint(usage[t].Height) })
	row("above the lower bound", func(t device.Tier) string { return fmt.Sprint(usage[t].Height - usage[t].Bound) })
	if wear != nil {
		only("written to it a day", device.DiskTier, size.Decimal(wear.PerDay))
	}
	if wear != nil && wear.Endurance > 0 {
		only("its endurance lasts", device.DiskTier, days(wear.Days))
	}
	return tw.Flush()
}

// feeds says of how many tokens feed-forwards are computed at a time, if not of all.
func feeds(pl *plan.Plan) string {
	if pl.FeedRows == 0 {
		return ""
	}
	return fmt.Sprintf(", feed-forwards of %d", pl.FeedRows)
}

// Describe summarises a plan's decisions in a few lines.
func Describe(c *Candidate) string {
	pl := c.Plan
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", c.Label)
	b.WriteString(describePipeline(c))
	b.WriteString(describeSharing(c))
	b.WriteString(describeSums(c))
	b.WriteString(describeZeros(c))
	order := "one micro-batch after the other"
	switch {
	case pl.Pipeline != nil:
		order = "set by the schedule"
	case pl.Group > 1:
		order = fmt.Sprintf("layer by layer for %d micro-batches together", pl.Group)
	}
	fmt.Fprintf(&b, "order: %s; logits of %d tokens at a time%s\n", order, pl.HeadRows, feeds(pl))
	if n := pl.VocabularyParts; n > 1 {
		fmt.Fprintf(&b, "vocabulary: embedding and head in %d parts, one after the other; logits of all but one are computed twice\n", n)
	}
	if pl.State != plan.FP32State {
		fmt.Fprintf(&b, "optimizer's state: %s, %s\n", strings.ReplaceAll(pl.State.String(), "_", " "), pl.State.Rounding())
	}
	streamed := 0
	for _, ch := range pl.Chunks {
		if ch.Weights != device.DeviceTier {
			streamed++
		}
	}
	if streamed > 0 {
		fmt.Fprintf(&b, "weights: %d of %d chunks are sent to the device when needed, %s of cache, up to %d units ahead\n", streamed, len(pl.Chunks), size.Format(pl.Cache), pl.Prefetch)
	}
	if n := streams(pl); n > 0 {
		fmt.Fprintf(&b, "updates: %d chunks are updated on the device, through which their state is streamed\n", n)
	}
	if c.Program.Defers() {
		b.WriteString("updates: chunks whose gradients wait on the host are updated while the next step begins\n")
	}
	return b.String()
}
