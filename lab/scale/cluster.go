package scale

import (
	"fmt"
	"math"
)

// The fastest config for a given cluster, by trying all divisions of the batch: there are few.
//
// Approach: for every tensor degree of a node, every pipeline length that divides the layers and every number of
// replicas that fits on the GPUs, try some micro-batch sizes, with as many micro-batches as the critical batch
// allows: plain, partitioned and layered. To find what limits the result, lift one limit at a time and search again.
//
// Known weakness: closed forms (see the package); the planner decides what actually runs.

// Cluster is the hardware that a config may use.
type Cluster struct {
	Hardware
	GPUs    int  `json:"gpus"`
	Offload bool `json:"offload"` // state and checkpoints may be kept on the host or a drive
}

// Limit is one limit and how much faster training would be without it.
type Limit struct {
	Name    string  `json:"name"`
	Days    float64 `json:"days"`    // with the limit lifted
	Speedup float64 `json:"speedup"` // 1: it does not limit
}

// Plan is the fastest config of a cluster.
type Plan struct {
	Result
	Limits []Limit `json:"limits"` // most limiting first
}

// Fit finds the fastest config. The error is a *MisfitError if no config fits, a *UsageError for impossible numbers.
func Fit(m Model, c Cluster, w Work) (Plan, error) {
	if err := Check(m, c, w); err != nil {
		return Plan{}, err
	}
	best, ok := fastest(m, c, w)
	if !ok {
		wide := c
		wide.Memory = math.Inf(1)
		r, _ := leanest(m, wide, w)
		return Plan{}, &MisfitError{Need: r.need(c.Offload), Have: c.Memory, GPUs: c.GPUs, Offload: c.Offload}
	}
	plan := Plan{Result: best}
	for _, lift := range []struct {
		name string
		edit func(c *Cluster, w *Work)
	}{
		{"GPUs: twice as many", func(c *Cluster, w *Work) { c.GPUs *= 2 }},
		{"memory: unlimited", func(c *Cluster, w *Work) { c.Memory = math.Inf(1) }},
		{"network: unlimited", func(c *Cluster, w *Work) { c.Network = math.Inf(1) }},
		{"links in a node: unlimited", func(c *Cluster, w *Work) { c.Link = math.Inf(1) }},
		{"critical batch: twice as large", func(c *Cluster, w *Work) { w.Batch, w.Steps = w.Batch*2, w.Steps/2 }},
	} {
		free, work := c, w
		lift.edit(&free, &work)
		if r, ok := fastest(m, free, work); ok {
			days := math.Min(r.Days, best.Days) // the old config is still allowed, even if it was not tried
			plan.Limits = append(plan.Limits, Limit{lift.name, days, best.Days / days})
		}
	}
	for i := range plan.Limits { // few: insertion sort, stable
		for j := i; j > 0 && plan.Limits[j].Speedup > plan.Limits[j-1].Speedup; j-- {
			plan.Limits[j], plan.Limits[j-1] = plan.Limits[j-1], plan.Limits[j]
		}
	}
	return plan, nil
}

// need returns the memory per GPU of a result.
func (r Result) need(offload bool) float64 {
	if offload {
		return r.Resident()
	}
	return r.Total()
}

// fastest returns the fastest config that fits; among equally fast ones, the one with the least memory.
func fastest(m Model, c Cluster, w Work) (Result, bool) {
	return search(m, c, w, func(a, b Result) bool {
		if math.Abs(a.Days-b.Days) > 1e-9*b.Days {
			return a.Days < b.Days
		}
		return a.need(c.Offload) < b.need(c.Offload)
	})
}

// leanest returns the config with the least memory.
func leanest(m Model, c Cluster, w Work) (Result, bool) {
	return search(m, c, w, func(a, b Result) bool { return a.need(c.Offload) < b.need(c.Offload) })
}

// search tries all configs and returns the best one that fits.
func search(m Model, c Cluster, w Work, better func(a, b Result) bool) (best Result, found bool) {
	try := func(config Config) {
		r := EvaluateWork(m, c.Hardware, w, config)
		if r.need(c.Offload) <= c.Memory && (!found || better(r, best)) {
			best, found = r, true
		}
	}
	for t := 1; t <= min(c.Node, c.GPUs); t++ {
		if m.Hidden%t != 0 || m.Heads%t != 0 {
			continue
		}
		for p := 1; p <= min(m.Layers, c.GPUs/t); p++ {
			if m.Layers%p != 0 {
				continue
			}
			for _, n := range replicas(min(c.GPUs/(p*t), int(w.Batch))) {
				for b := 1; b <= 64; b *= 2 {
					micros := int(w.Batch / float64(n*b))
					if micros < 1 {
						break
					}
					config := Config{Data: n, Pipe: p, Tensor: t, Micros: micros, Batch: b}
					try(config)
					config.Partitioned = true
					try(config)
					config.Layered = true
					if p == 1 || micros >= p { // a modular pipeline needs a micro-batch per rank
						try(config)
					}
				}
			}
		}
	}
	return best, found
}

// replicas returns the numbers of replicas to try: all small ones, then ones about 2 % apart, and the largest.
func replicas(most int) []int {
	var list []int
	for n := 1; n < most; n += max(1, n/50) {
		list = append(list, n)
	}
	if most >= 1 {
		list = append(list, most)
	}
	return list
}

// UsageError reports an impossible request.
type UsageError struct{ What, Why, Hint string }

func (e *UsageError) Error() string { return fmt.Sprintf("%s: %s\nhint: %s", e.What, e.Why, e.Hint) }

// MisfitError reports that no config fits the memory of the GPUs.
type MisfitError struct {
	Need    float64 `json:"need"` // bytes per GPU: the least possible
	Have    float64 `json:"have"` // the limit
	GPUs    int     `json:"gpus"`
	Offload bool    `json:"offload"`
}

func (e *MisfitError) Error() string {
	hint := "take more GPUs, or offload state and checkpoints (--offload)"
	if e.Offload {
		hint = "take more GPUs per node or GPUs with more memory"
	}
	return fmt.Sprintf("does not fit: the leanest division over %d GPUs needs %.2f GiB per GPU, but each has %.2f\nhint: %s",
		e.GPUs, e.Need/(1<<30), e.Have/(1<<30), hint)
}

// Check returns a *UsageError for numbers that make no sense.
func Check(m Model, c Cluster, w Work) error {
	for _, n := range []struct {
		name  string
		value float64
		most  float64
	}{
		{"layers", float64(m.Layers), 1e5}, {"width", float64(m.Hidden), 1e8}, {"heads", float64(m.Heads), 1e7},
		{"sequence length", float64(m.Sequence), 1e9}, {"parameters", m.Parameters, 1e18}, {"GPUs", float64(c.GPUs), 1e7},
		{"GPUs per node", float64(c.Node), 1e4}, {"FLOP/s", c.FLOPS, 1e21}, {"memory", c.Memory, 1e18}, {"network bandwidth", c.Network, 1e18},
		{"link bandwidth", c.Link, 1e18}, {"steps", w.Steps, 1e12}, {"critical batch", w.Batch, 1e12},
	} {
		if !(n.value > 0) || n.value > n.most {
			return &UsageError{fmt.Sprintf("%s = %g", n.name, n.value), fmt.Sprintf("must be more than 0 and at most %g", n.most), "check the numbers of the model and the cluster"}
		}
	}
	if w.Batch < 1 {
		return &UsageError{fmt.Sprintf("critical batch of %.2g sequences", w.Batch), "the sequences are longer than a critical batch",
			"shorten the sequences or take a larger model"}
	}
	return nil
}
