package memo

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/model"
)

// The same machine for the compiler: one of its GPUs with its part of the host, and that GPU's part of a sequence.
//
// The paper divides a sequence among the GPUs by tensor and sequence parallelism. Here each has a part of the tokens
// (graph.BuildPart) and parameters are sharded as chosen (plan.Shardings). FLOPs and activations are an 8th
// either way. The compiler models what Costs does not: norms, activation functions and the optimizer take the time of
// their bytes, outside the efficiency; keys and values, weights and gradients cross the A800's links, beside the efficiency too; gradients
// are fp32, 18 bytes per parameter in total; statistics of norms and attention are activations; each tensor is copied
// separately, with its own deadline.

// Part returns the graph of one GPU's part.
func (m *Machine) Part(of *model.Model, tokens int) (*graph.Graph, error) {
	return graph.BuildPart(of, tokens, m.GPUs, graph.BF16, nil)
}

// Hardware returns the description of one GPU. Values that the machine does not have are those of a server's A800.
func (m *Machine) Hardware() (*hardware.Hardware, error) {
	h, err := hardware.KnownRank("a800-80", m.GPUs)
	if err != nil {
		return nil, err
	}
	h.Name = m.Name
	h.Memory = hardware.Memory{Device: int64(m.Memory), Host: int64(m.Host)}
	e := h.Engine(device.Compute)
	e.Peak.BF16, e.Matmul, e.Attention, e.Bandwidth = m.Peak, m.Efficiency, m.Efficiency, m.Bandwidth
	// Efficiency is per model FLOP, which counts four products in attention's backward pass; the operator has five.
	h.Factors = map[string]float64{"compute attention_bwd bf16": 4.0 / 5}
	for _, way := range [][2]device.Tier{{device.HostTier, device.DeviceTier}, {device.DeviceTier, device.HostTier}} {
		h.Link(way[0], way[1]).Bandwidth = m.Link
	}
	h.Contention = nil // each way has the full rate
	return h, h.Validate()
}
