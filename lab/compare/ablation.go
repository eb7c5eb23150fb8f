package compare

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/lab/memo"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// Ablation repeats MEMO's experiment at one sequence length through the compiler:
// each activation policy is planned for GPUs that share a sequence, lowered for all of them, packed and simulated.
type Ablation struct {
	Tokens int           `json:"tokens"` // of the sequence, on all GPUs together
	Arms   []AblationArm `json:"arms"`
}

// AblationArm is the result of one policy. Bytes are of the GPU with most of them.
type AblationArm struct {
	Name     string          `json:"name"`
	Misfit   string          `json:"misfit,omitempty"` // the tier that is too small, if nothing fits
	Lack     *search.Misfit  `json:"-"`
	Seconds  float64         `json:"step_seconds,omitempty"`
	MFU      float64         `json:"mfu,omitempty"`
	Stall    float64         `json:"stall_seconds"`
	Again    float64         `json:"again_seconds"` // of recomputation
	Device   int64           `json:"device_bytes"`  // the height of the packing
	Host     int64           `json:"host_bytes"`
	Limits   [2]int64        `json:"limits"`       // of device and host
	Instrs   int             `json:"instructions"` // of one GPU
	Plan     string          `json:"plan,omitempty"`
	Layers   []search.Layers `json:"layers,omitempty"`
	Analysis float64         `json:"analysis_mfu,omitempty"` // of the same arm in package memo
}

// ablationArms are the arms of memo.Arms. An arm without memory planning has a
// lower limit, since a caching allocator takes more memory for the same program.
var ablationArms = []struct {
	name      string
	unplanned bool
	pin       func(p *search.Pins, layers int)
}{
	{"full recompute", true, func(p *search.Pins, _ int) { p.Recompute = "full" }},
	{"full recompute + plan", false, func(p *search.Pins, _ int) { p.Recompute = "full" }},
	{"full swap + plan", false, func(p *search.Pins, layers int) {
		p.Activations = map[int]plan.Retention{}
		for l := range layers - search.MemoKept {
			p.Activations[l] = plan.SwapOf(device.HostTier, 1)
		}
	}},
	{memo.Paper, false, func(p *search.Pins, _ int) { p.Policy = search.MemoRule }},
	{"ours", false, func(*search.Pins, int) {}},
}

// ablationPins returns what all arms have in common. Each GPU has its shard of the
// sequence, so there is no pipeline, and parameters stay on the GPUs, as in the
// paper.
func ablationPins() search.Pins {
	near := device.DeviceTier
	return search.Pins{Pipeline: 1, Weights: &near, Grads: &near, State: &near}
}

// Ablate plans a model's step on one sequence, sharded over a machine, with every
// policy.
func Ablate(ctx context.Context, m memo.Machine, of *model.Model, tokens int, note func(string)) (*Ablation, error) {
	g, err := m.Part(of, tokens)
	if err != nil {
		return nil, err
	}
	h, err := m.Hardware()
	if err != nil {
		return nil, err
	}
	work, err := memo.Of(g)
	if err != nil {
		return nil, err
	}
	out := &Ablation{Tokens: tokens}
	flops := memo.SampleFLOPs(float64(of.Layers), float64(of.Width), float64(tokens), float64(work.Parameters))
	for _, arm := range ablationArms {
		mach := &search.Machine{Capacity: h.Memory.Tiers(), Cost: h}
		if arm.unplanned {
			mach.Capacity[device.DeviceTier] = int64(m.Memory / memo.Slack)
		}
		req := &search.Request{Graph: g, GlobalBatch: m.GPUs, Ranks: m.GPUs, Options: contestOptions, Pins: ablationPins()}
		arm.pin(&req.Pins, of.Layers)
		a := AblationArm{Name: arm.name, Limits: [2]int64(mach.Capacity[:2])}
		res, err := search.Search(ctx, req, mach, func(s string) { note(fmt.Sprintf("%d tokens, %s: %s", tokens, arm.name, s)) })
		switch {
		case errors.As(err, &a.Lack):
			a.Misfit = a.Lack.Tier.String()
		case err != nil:
			return nil, fmt.Errorf("%d tokens, %s: %w", tokens, arm.name, err)
		default:
			c := res.Best
			a.Seconds, a.MFU = c.Seconds(), memo.MFU(flops, c.Seconds(), float64(m.GPUs)*m.Peak)
			a.Stall, a.Again = c.Idle()*c.Seconds(), c.Repeated()*c.Seconds()
			a.Device, a.Host = c.Program.Height[device.DeviceTier], c.Program.Height[device.HostTier]
			a.Instrs, a.Plan, a.Layers = len(c.Program.Instrs), c.Label, search.Activations(g, c)
		}
		out.Arms = append(out.Arms, a)
	}
	return out, nil
}
