package memo

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/search"
)

// Split is the decision for a layer: fractions of each class's rows. Rows neither kept nor swapped are recomputed
// before the backward pass, or stay in the layer's slot if no later layer uses it.
type Split struct {
	Keep [Classes]float64 `json:"keep"`
	Swap [Classes]float64 `json:"swap"`
	Stay bool             `json:"stay,omitempty"`
}

// Policy is one decision per layer.
type Policy struct {
	Slots     int     `json:"slots"`
	Layers    []Split `json:"layers"`
	Unplanned bool    `json:"unplanned,omitempty"`     // a caching allocator assigns addresses
	Bound     float64 `json:"bound_seconds,omitempty"` // proven lower bound for all policies in the search space of Best; 0: not searched
}

// Result is the simulated behaviour of a policy on a machine.
type Result struct {
	Policy
	Time   float64 `json:"seconds"` // of a step
	MFU    float64 `json:"mfu"`
	Stall  float64 `json:"stall_seconds"`
	Device float64 `json:"device_bytes"` // needed
	Host   float64 `json:"host_bytes"`
	Kept   float64 `json:"kept_bytes"` // kept on the device outside the slots
	Redone float64 `json:"redone_bytes"`
	Misfit string  `json:"misfit,omitempty"` // which memory is too small: device, host or both; Time is then unset
}

// Evaluate simulates p.
func (p Policy) Evaluate(m Machine, c Costs) Result {
	r := Result{Policy: p}
	loads := make([]Load, len(p.Layers))
	slot := 0.0
	for i, s := range p.Layers {
		loads[i] = Load{Forward: c.Forward, Backward: c.Backward}
		moved, used := 0.0, 0.0
		for class, b := range c.Bytes {
			again := max(0, 1-s.Keep[class]-s.Swap[class])
			r.Kept += s.Keep[class] * b
			used += (1 - s.Keep[class]) * b
			moved += s.Swap[class] * b
			if !s.Stay {
				loads[i].Backward += c.redo(Class(class), again)
				r.Redone += again * b
			}
		}
		slot = max(slot, used)
		r.Host += moved
		loads[i].Out, loads[i].In = moved/m.Link, moved/m.Link
	}
	r.Device = c.Base + float64(p.Slots)*slot + r.Kept
	if p.Unplanned {
		r.Device *= Slack
	}
	rounding := 1e-6 * c.Skeletal()
	switch {
	case r.Device > m.Memory+rounding:
		r.Misfit = "device"
	case r.Host > m.Host+rounding:
		r.Misfit = "host"
	default:
		t := Run(loads, p.Slots, c.Turn)
		r.Time, r.Stall = t.End+c.After, t.Stall
		r.MFU = MFU(c.FLOPs, r.Time, float64(m.GPUs)*m.Peak)
	}
	return r
}

// check returns an error for invalid policies.
func (p Policy) check(c Costs) error {
	n := len(p.Layers)
	if n != c.Layers || p.Slots < 1 || p.Slots > n {
		return fmt.Errorf("memo: %d slots, and decisions for %d of %d layers; hint: give one decision per layer and 1 to %d slots", p.Slots, n, c.Layers, c.Layers)
	}
	for i, s := range p.Layers {
		if s.Stay && i < n-p.Slots {
			return fmt.Errorf("memo: layer %d of %d stays in one of %d slots that a later layer writes; hint: let only the last layers stay", i, n, p.Slots)
		}
		for class := range Classes {
			keep, swap := s.Keep[class], s.Swap[class]
			again := 1 - keep - swap
			if !(keep >= -1e-9) || !(swap >= -1e-9) || !(again >= -1e-9) {
				return fmt.Errorf("memo: layer %d keeps %g and swaps %g of %v; hint: use shares that are not negative and sum to at most 1", i, keep, swap, class)
			}
			if class == Input && again > 1e-9 && !s.Stay {
				return fmt.Errorf("memo: layer %d drops %g of its input, from which everything is recomputed; hint: keep or swap all of it", i, again)
			}
		}
	}
	return nil
}

// Arm is a named policy of the comparison.
type Arm struct {
	Name   string
	Choose func(m Machine, c Costs) (Policy, error)
}

// Paper names the policy that the paper itself describes, as plans do.
const Paper = search.MemoRule

// Arms returns the policies of the paper's ablation and the optimum.
func Arms() []Arm {
	all := [Classes]float64{1, 1, 1, 1}
	return []Arm{
		{"full recompute", func(m Machine, c Costs) (Policy, error) {
			p := recomputed(c)
			p.Unplanned = true
			return p, nil
		}},
		{"full recompute + plan", func(m Machine, c Costs) (Policy, error) { return recomputed(c), nil }},
		{"full swap + plan", func(m Machine, c Costs) (Policy, error) { return twoSlots(c, all), nil }},
		{Paper, func(m Machine, c Costs) (Policy, error) { return paper(m, c), nil }},
		{"ours", Best},
	}
}

// recomputed keeps the layers' inputs and recomputes everything else, in one slot.
func recomputed(c Costs) Policy {
	return Policy{Slots: 1, Layers: slices.Repeat([]Split{{Keep: [Classes]float64{Input: 1}}}, c.Layers)}
}

// twoSlots swaps the same fractions of all layers except the last two, which stay.
func twoSlots(c Costs, swap [Classes]float64) Policy {
	p := Policy{Slots: min(2, c.Layers), Layers: slices.Repeat([]Split{{Swap: swap}}, c.Layers)}
	for i := c.Layers - p.Slots; i < c.Layers; i++ {
		p.Layers[i] = Split{Stay: true}
	}
	return p
}

// paper returns MEMO's policy.
func paper(m Machine, c Costs) Policy {
	a := m.Alpha(c).Alpha
	return twoSlots(c, [Classes]float64{Input: 1, Attention: 1, Product: a, Pointwise: a})
}

// Alpha returns MEMO's swapped fraction for the machine.
func (m *Machine) Alpha(c Costs) Share {
	return Alpha(c.Bytes[Input], c.Bytes[Attention], c.Bytes[Product]+c.Bytes[Pointwise], m.Link, c.Forward, m.Host, c.Layers)
}

// Run chooses a policy and simulates it. A policy that does not fit is a result with Misfit, not an error.
func (a Arm) Run(m Machine, c Costs) (Result, error) {
	p, err := a.Choose(m, c)
	if short := new(MisfitError); errors.As(err, &short) {
		if math.IsInf(short.NeedHost, 1) {
			return Result{Misfit: "device"}, nil
		}
		return Result{Misfit: "both"}, nil
	}
	if err != nil {
		return Result{}, err
	}
	return p.run(m, c)
}

func (p Policy) run(m Machine, c Costs) (Result, error) {
	if err := p.check(c); err != nil {
		return Result{}, err
	}
	return p.Evaluate(m, c), nil
}

// Calibrated returns the efficiency at which MEMO's policy reaches the given MFU, with the link derived from the
// crossing.
func Calibrated(w Work, mfu float64) (float64, error) {
	low, high := 1e-3, 1.0
	for range 60 {
		mid := (low + high) / 2
		m := A800(mid, 0)
		r, err := paper(m, m.Costs(w)).run(m, m.Costs(w))
		if err != nil {
			return 0, err
		}
		if r.Misfit != "" {
			return 0, fmt.Errorf("memo: %d tokens do not fit into %s memory; hint: use shorter sequences", w.Tokens, r.Misfit)
		}
		if r.MFU < mfu {
			low = mid
		} else {
			high = mid
		}
	}
	return (low + high) / 2, nil
}
