package scale

import "math"

// Strategy is a way to divide the batch, and the rule for its fastest config without limits on GPUs and memory.
type Strategy struct {
	Name   string
	Choose func(m Model, h Hardware) Config
}

// Row is one line of the comparison.
type Row struct {
	Name string `json:"strategy"`
	Result
}

// Strategies returns the rows of the paper's comparison, from no parallelism to all three kinds, plain and improved.
func Strategies() []Strategy {
	return []Strategy{
		{"none", func(m Model, h Hardware) Config {
			return Config{Data: 1, Pipe: 1, Tensor: 1, Micros: max(1, int(math.Round(m.CriticalBatch()))), Batch: 1}
		}},
		{"data, baseline", func(m Model, h Hardware) Config { return dataOnly(m, h, 1, false) }},
		{"data, partitioned", func(m Model, h Hardware) Config { return dataOnly(m, h, 1, true) }},
		{"data+pipe, baseline", func(m Model, h Hardware) Config { return contiguous(m, 1) }},
		{"data+pipe, improved", func(m Model, h Hardware) Config { return modular(m, h, 1) }},
		{"data+tensor, baseline", func(m Model, h Hardware) Config { return dataOnly(m, h, h.tensor(m), false) }},
		{"data+tensor, partitioned", func(m Model, h Hardware) Config { return dataOnly(m, h, h.tensor(m), true) }},
		{"data+tensor, improved", func(m Model, h Hardware) Config { return layered(m, h, h.tensor(m)) }},
		{"3D, baseline", func(m Model, h Hardware) Config { return contiguous(m, h.tensor(m)) }},
		{"3D, improved", func(m Model, h Hardware) Config { return modular(m, h, h.tensor(m)) }},
	}
}

// Table evaluates all strategies.
func Table(m Model, h Hardware, w Work) []Row {
	var rows []Row
	for _, s := range Strategies() {
		rows = append(rows, Row{s.Name, EvaluateWork(m, h, w, s.Choose(m, h))})
	}
	return rows
}

// tensor returns the greatest tensor-parallel degree within a node that divides the model's width.
func (h Hardware) tensor(m Model) int {
	for t := max(1, h.Node); t > 1; t-- {
		if m.Hidden%t == 0 {
			return t
		}
	}
	return 1
}

// hiding returns the least number of sequences per replica whose compute hides the traffic, at most the critical
// batch. per is in FLOP per byte and token.
func (h Hardware) hiding(m Model, per float64) int {
	need := math.Ceil(h.FLOPS / h.Network / (per * float64(m.Sequence)))
	return max(1, int(math.Min(need, m.CriticalBatch())))
}

// fill returns the greatest number of replicas, n sequences each, that the critical batch allows.
func fill(m Model, n int) int { return max(1, int(m.CriticalBatch()/float64(n))) }

// dataOnly returns one micro-batch per step, just large enough to hide the traffic.
func dataOnly(m Model, h Hardware, tensor int, partitioned bool) Config {
	per := 0.75
	if partitioned {
		per = 0.5
	}
	b := h.hiding(m, per)
	return Config{Data: fill(m, b), Pipe: 1, Tensor: tensor, Micros: 1, Batch: b, Partitioned: partitioned}
}

// layered returns just enough micro-batches of one sequence to hide the traffic, in layer-major order.
func layered(m Model, h Hardware, tensor int) Config {
	n := h.hiding(m, 0.5)
	return Config{Data: fill(m, n), Pipe: 1, Tensor: tensor, Micros: n, Batch: 1, Partitioned: true, Layered: true}
}

// contiguous returns one stage per layer, and as many replicas as leave each at least one micro-batch per stage.
func contiguous(m Model, tensor int) Config {
	n := fill(m, m.Layers)
	return Config{Data: n, Pipe: m.Layers, Tensor: tensor, Micros: max(1, int(m.CriticalBatch()/float64(n))), Batch: 1}
}

// modular returns as many pipeline ranks as micro-batches, and as few as hide the traffic: the number of GPUs does
// not depend on them (batch/m replicas of m ranks), and the bubble grows with them.
func modular(m Model, h Hardware, tensor int) Config {
	p := min(h.hiding(m, 0.5), m.Layers)
	for m.Layers%p != 0 {
		p++
	}
	return Config{Data: fill(m, p), Pipe: p, Tensor: tensor, Micros: p, Batch: 1, Partitioned: true, Layered: true}
}
