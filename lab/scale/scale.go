// Package scale computes the shortest possible training time of a model, and what limits it.
//
// It implements the analysis of Lamy-Poirier (2021, 2106.02679) of a transformer of a given size, a number of tokens,
// and a critical batch size that bounds the useful parallelism. Data, pipeline and tensor parallelism divide that
// batch over GPUs; each costs some efficiency; the shortest training time is the work divided by the GPUs that the
// batch can keep busy. With layered gradient accumulation and modular placement the number of GPUs does not depend on
// the length of the pipeline, traffic overlaps with m times more compute, and memory per GPU falls to a few GiB:
// time, not memory, limits the size of a model.
//
//	m := scale.Family(160) // 1.26 trillion parameters
//	h := scale.Hardware{FLOPS: 312e12, Memory: 80e9, Node: 16, Link: 600e9, Network: 50e9} // the paper's A100s
//	for _, r := range scale.Table(m, h, scale.DefaultWork(m)) {
//		fmt.Println(r.Name, r.GPUs, r.Days) // 3D, improved: 38640 GPUs, 6.75 days
//	}
//
// Known weakness: closed forms. They omit attention's quadratic part, the head, stragglers and kernel efficiency; for
// a real machine use the planner, which knows measured rates.
package scale

import (
	"fmt"
	"math"
)

// Model has the sizes of a transformer that this analysis needs.
type Model struct {
	Name       string  `json:"name"`
	Layers     int     `json:"layers"`
	Hidden     int     `json:"hidden"`
	Heads      int     `json:"heads"`
	Sequence   int     `json:"sequence"`                 // tokens
	Parameters float64 `json:"parameters"`               // of all layers
	Measured   float64 `json:"measured_batch,omitempty"` // critical batch in sequences, if it was measured
}

// Family returns X_x of the paper: x layers of width x^2, sequences of 16x tokens, x/2 heads of size 2x, 12 x^5
// parameters.
func Family(x int) Model {
	return Model{Name: fmt.Sprintf("X_%d", x), Layers: x, Hidden: x * x, Heads: max(1, x/2), Sequence: 16 * x,
		Parameters: 12 * math.Pow(float64(x), 5)}
}

// layerParameters returns the parameters of one layer, 12 h^2 in the family.
func (m Model) layerParameters() float64 { return m.Parameters / float64(m.Layers) }

// criticalTokens is the constant of the critical batch, 573 tokens * parameters^(1/3): 82.0 x^(2/3) sequences in the
// family.
const criticalTokens = 573.03

// CriticalBatch returns the number of sequences beyond which a larger batch costs more samples rather than saving
// steps.
func (m Model) CriticalBatch() float64 {
	if m.Measured > 0 {
		return m.Measured
	}
	return criticalTokens * math.Cbrt(m.Parameters) / float64(m.Sequence)
}

// Work is the amount of training.
type Work struct {
	Steps float64 `json:"steps"` // steps of Batch sequences each
	Batch float64 `json:"batch"` // sequences
}

// DefaultWork returns the paper's budget: 1e5 steps at the critical batch.
func DefaultWork(m Model) Work { return Work{Steps: 1e5, Batch: m.CriticalBatch()} }

// Tokens returns the number of tokens trained on.
func (w Work) Tokens(m Model) float64 { return w.Steps * w.Batch * float64(m.Sequence) }

// FLOPs returns the FLOPs of the training: 8 per parameter and token (forward 2, recomputation 2, backward 4).
func (w Work) FLOPs(m Model) float64 { return 8 * m.Parameters * w.Tokens(m) }

// StateIntensity returns the FLOP per byte available to hide moving the whole optimizer state once per step, with
// partitioned state and layered accumulation: 24 bytes in and out per parameter, 8 FLOP per parameter and token. It
// is so high that even a network drive can hold the state, which is then always a checkpoint.
func (m Model) StateIntensity() float64 { return m.CriticalBatch() * float64(m.Sequence) / 3 }

// Hardware is a cluster of equal GPUs. Bandwidths are in bytes/s, the sum of both directions, as in the paper.
type Hardware struct {
	Name    string  `json:"name"`
	FLOPS   float64 `json:"flops"`   // sustained by one GPU
	Memory  float64 `json:"memory"`  // bytes of one GPU
	Node    int     `json:"node"`    // GPUs joined by fast links: the most for tensor parallelism
	Link    float64 `json:"link"`    // between GPUs of a node
	Network float64 `json:"network"` // of one GPU to other nodes
}

// Thresholds returns the arithmetic intensities (FLOP/byte) that hide traffic on common links behind the compute of a
// GPU of this speed.
func Thresholds(flops float64) []Link {
	list := []Link{{Name: "HBM", Bandwidth: 2039e9}, {Name: "NVLink", Bandwidth: 600e9}, {Name: "PCIe 4 x16", Bandwidth: 63e9},
		{Name: "InfiniBand 200 Gb/s", Bandwidth: 50e9}, {Name: "Ethernet 25 Gb/s", Bandwidth: 6.25e9}, {Name: "NVMe", Bandwidth: 3.2e9},
		{Name: "disk", Bandwidth: 0.1e9}}
	for i := range list {
		list[i].Threshold = flops / list[i].Bandwidth
	}
	return list
}

// Link is a connection and the arithmetic intensity above which it is no bottleneck.
type Link struct {
	Name      string  `json:"name"`
	Bandwidth float64 `json:"bandwidth"` // bytes/s, in and out
	Threshold float64 `json:"threshold"` // FLOP/byte
}

// Config is how a batch is divided. The product Data*Micros*Batch is at most the critical batch.
type Config struct {
	Data        int  `json:"data"`        // data-parallel replicas
	Pipe        int  `json:"pipe"`        // pipeline ranks
	Tensor      int  `json:"tensor"`      // tensor-parallel ranks
	Micros      int  `json:"micros"`      // micro-batches per step
	Batch       int  `json:"batch"`       // sequences per micro-batch
	Partitioned bool `json:"partitioned"` // parameters, gradients and optimizer sharded over all GPUs (ZeRO-3)
	Layered     bool `json:"layered"`     // layered gradient accumulation on a modular placement
}

// GPUs returns the number of GPUs that the config uses.
func (c Config) GPUs() int { return c.Data * c.Pipe * c.Tensor }

// Result is the time and memory of a config. Sizes are bytes per GPU.
type Result struct {
	Config
	GPUs        int     `json:"gpus"`
	Efficiency  float64 `json:"efficiency"` // product of the next three
	Bubble      float64 `json:"bubble_efficiency"`
	TensorShare float64 `json:"tensor_efficiency"`
	DataShare   float64 `json:"data_efficiency"`
	Days        float64 `json:"days"`
	State       float64 `json:"state_bytes"`       // weights, moments, gradients
	Buffers     float64 `json:"buffer_bytes"`      // gathered parameters and gradients
	Checkpoints float64 `json:"checkpoint_bytes"`  // layer inputs of the micro-batches in flight
	Working     float64 `json:"working_bytes"`     // of one layer and micro-batch
	Intensity   float64 `json:"network_intensity"` // FLOP per byte of data-parallel traffic
	Bandwidth   float64 `json:"network_needed"`    // bytes/s below which the network costs time
}

// Total returns the memory per GPU if nothing is offloaded.
func (r Result) Total() float64 { return r.State + r.Buffers + r.Checkpoints + r.Working }

// Resident returns the memory per GPU if state and checkpoints are kept on the host or a drive.
func (r Result) Resident() float64 { return r.Buffers + r.Working }

const day = 86400

// Evaluate computes time and memory of a config for the paper's budget.
func Evaluate(m Model, h Hardware, c Config) Result { return EvaluateWork(m, h, DefaultWork(m), c) }

// EvaluateWork is Evaluate for any budget.
func EvaluateWork(m Model, h Hardware, w Work, c Config) Result {
	r := Result{Config: c, GPUs: c.GPUs()}
	chunks := 1.0 // stages per rank: they divide the bubble
	perRank := float64(m.Layers) / float64(c.Pipe)
	if c.Layered {
		chunks = perRank
	}
	r.Bubble = 1 / (1 + float64(c.Pipe-1)/(float64(c.Micros)*chunks))
	r.TensorShare = 1 / (1 + h.FLOPS/h.Link*float64(c.Tensor-1)/(3*float64(m.Hidden))) // 4 all-reduces per layer
	r.Intensity = c.intensity(m)
	r.DataShare = c.dataShare(h, chunks, r.Intensity)
	r.Bandwidth = h.FLOPS / r.Intensity
	if c.Data == 1 {
		r.Bandwidth = 0
	}
	r.Efficiency = r.Bubble * r.TensorShare * r.DataShare
	r.Days = w.FLOPs(m) / (float64(r.GPUs) * h.FLOPS * r.Efficiency) / day
	c.memory(m, &r)
	return r
}

// intensity returns the FLOP per byte (in and out) available to hide data-parallel traffic.
func (c Config) intensity(m Model) float64 {
	tokens := float64(c.Batch * m.Sequence)
	if c.Layered {
		tokens *= float64(c.Micros) // one gather and one reduce for all micro-batches
	}
	if c.Partitioned {
		return 0.5 * tokens // forward: 2 FLOP per parameter and token, one gather of 2 bytes in and out
	}
	return 0.75 * tokens // all-reduce behind the backward (of the last micro-batch, if not layered)
}

// dataShare returns the efficiency under data-parallel traffic: 1 if it is hidden, else intensity over threshold. In
// the unpartitioned, unlayered case only the window of the last backward pass is stretched, and a pipeline's bubble
// hides the rest.
func (c Config) dataShare(h Hardware, chunks, intensity float64) float64 {
	stretch := h.FLOPS / h.Network / intensity
	if c.Data == 1 || stretch <= 1 {
		return 1
	}
	if c.Partitioned || c.Layered {
		return 1 / stretch
	}
	exposed := (stretch - 1) * 0.75 / float64(c.Micros)
	bubble := float64(c.Pipe-1) / (float64(c.Micros) * chunks)
	return 1 / (1 + math.Max(0, exposed-bubble))
}

// memory sets the bytes per GPU (2106.02679, 5: 12 bytes of fp32 weight and moments, 4 of half precision weight and
// gradient; three buffers of a layer if partitioned).
func (c Config) memory(m Model, r *Result) {
	t, tokens := float64(c.Tensor), float64(c.Batch*m.Sequence)
	h := float64(m.Hidden)
	if c.Partitioned {
		r.State = 12 * m.Parameters / float64(r.GPUs)
		r.Buffers = 3 * 2 * m.layerParameters() / t
	} else {
		r.State = 16 * m.Parameters / (float64(c.Pipe) * t)
	}
	r.Checkpoints = 2 * tokens * h * float64(c.Micros) * float64(m.Layers) / float64(c.Pipe) / t
	if !c.Layered && c.Pipe > 1 { // 1F1B holds at most p micro-batches
		r.Checkpoints *= math.Min(1, float64(c.Pipe)/float64(c.Micros))
	}
	r.Working = tokens * h * (34 + 5*float64(m.Heads)*float64(m.Sequence)/h) / t
}
