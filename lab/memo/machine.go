package memo

import (
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// Machine is a node of equal GPUs that divide a model by tensor and sequence parallelism.
type Machine struct {
	Name       string  `json:"name"`
	GPUs       int     `json:"gpus"`
	Peak       float64 `json:"peak"`       // FLOP/s of one GPU
	Efficiency float64 `json:"efficiency"` // of model FLOPs
	Link       float64 `json:"link"`       // bytes/s per GPU to the host, and as much from it, with all GPUs active
	Exchange   float64 `json:"exchange"`   // bytes/s that a GPU sends to the others; 0: included in the efficiency
	Bandwidth  float64 `json:"bandwidth"`  // bytes/s of its memory
	Memory     float64 `json:"memory"`     // bytes of one GPU
	Host       float64 `json:"host"`       // bytes of host memory per GPU
}

const (
	gib = 1 << 30
	// crossing is the sequence length from which, in MEMO's paper, swapping a whole layer of the 7B model is hidden
	// by its forward pass on eight A800.
	crossing = 192 << 10
	// statePerParameter: half-precision weight and gradient, fp32 weight and two moments.
	statePerParameter = 2 + 2 + 12
	// Slack is the number of bytes that a caching allocator reserves per byte allocated (the paper's 7B at 512K: 76.5
	// GB for 68.2 GB).
	Slack = 76.5 / 68.2
)

// A800 returns the paper's node: eight A800-80GB, 2 TB of host memory. exchange is the rate between GPUs in bytes/s,
// 0 if the efficiency includes it. The link is such that a layer of 7B is just hidden at 192K tokens.
func A800(efficiency, exchange float64) Machine {
	m := Machine{Name: "8 x A800-80GB", GPUs: 8, Peak: 312e12, Efficiency: efficiency, Exchange: exchange, Bandwidth: 0.85 * 2039e9,
		Memory: 79 * gib, Host: 2048 * gib / 8}
	const h, s = 4096.0, float64(crossing)
	m.Link = 16 * 2 * s * h / float64(m.GPUs) / m.forward(24*s*h*h+2*s*s*h, 2*s*h)
	return m
}

// compute returns the seconds for FLOPs divided over all GPUs.
func (m *Machine) compute(flops float64) float64 {
	return flops / (float64(m.GPUs) * m.Peak * m.Efficiency)
}

// allReduce returns the seconds of a ring all-reduce of the given bytes over t GPUs: each sends a t-th 2(t-1) times.
func (m *Machine) allReduce(bytes float64) float64 {
	if m.Exchange == 0 {
		return 0
	}
	t := float64(m.GPUs)
	return 2 * (t - 1) / t * bytes / m.Exchange
}

// forward returns the seconds of a layer's forward pass, given the FLOPs of all GPUs and the bytes of one boundary
// tensor.
func (m *Machine) forward(flops, boundary float64) float64 {
	return m.compute(flops) + 2*m.allReduce(boundary)
}

// Costs has the inputs of the decisions: seconds and bytes of one GPU, for one sequence.
type Costs struct {
	Layers   int
	Forward  float64          // seconds of a layer
	Backward float64          // of a layer, without recomputation
	Turn     float64          // between the last forward and the first backward: the head
	After    float64          // after the last backward: the optimizer
	Bytes    [Classes]float64 // of a layer's skeletal activations
	Redo     [Classes]float64 // seconds to recompute a layer's class; inputs cannot be
	Base     float64          // device bytes other than skeletal activations
	FLOPs    float64          // model FLOPs of the whole step, of all GPUs
}

// Skeletal returns the size of a layer's skeletal activations in bytes.
func (c *Costs) Skeletal() (sum float64) {
	for _, b := range c.Bytes {
		sum += b
	}
	return sum
}

// attentionRanges is the number of chords that approximate the quadratic price of attention's rows.
const attentionRanges = 4

// redo returns the seconds to recompute a share of a class's rows. Attention recomputes its first rows, which see few
// keys: a fraction x of the rows costs x^2 of the time, rounded up to the chords between quarters.
func (c *Costs) redo(class Class, share float64) float64 {
	if class != Attention {
		return share * c.Redo[class]
	}
	at := share * attentionRanges
	low := math.Floor(at)
	chord := low*low + (at-low)*(2*low+1)
	return chord / (attentionRanges * attentionRanges) * c.Redo[class]
}

// Costs returns the costs of a step on the machine.
func (m *Machine) Costs(w Work) Costs {
	t := float64(m.GPUs)
	c := Costs{Layers: w.Layers}
	boundary := 0.0
	for class, b := range w.Bytes() {
		c.Bytes[class] = float64(b) / t
	}
	boundary = c.Bytes[Input] * t
	c.Forward = m.forward(float64(w.Forward), boundary)
	c.Backward = 2 * c.Forward
	c.Turn = m.compute(3 * float64(w.Head))
	for _, x := range w.Tensors {
		if x.Class == Pointwise {
			c.Redo[x.Class] += float64(x.Moved) / t / m.Bandwidth
		} else {
			c.Redo[x.Class] += m.compute(float64(x.FLOPs))
		}
	}
	c.Redo[Product] += 1.5 * m.allReduce(boundary) // gather for qkv, scatter after the output projection, gather for the feed-forward
	state := statePerParameter * float64(w.Parameters) / t
	c.After = 2 * state / m.Bandwidth
	c.Base = state + (float64(w.Working)+float64(w.Aside)*float64(w.Layers))/t
	c.FLOPs = SampleFLOPs(float64(w.Layers), float64(w.Width), float64(w.Tokens), float64(w.Parameters))
	return c
}

// Known returns a model of the paper for the given number of tokens. Positions are rotary: learned ones for 1M tokens
// would add 4.3e9 parameters.
func Known(name string, tokens int) (*model.Model, error) {
	for _, k := range []struct {
		name                 string
		layers, width, heads int
	}{{"7B", 32, 4096, 32}, {"13B", 40, 5120, 40}, {"30B", 48, 7168, 56}, {"65B", 80, 8192, 64}} {
		if strings.EqualFold(name, k.name) {
			return &model.Model{Family: family.Named("gpt2"), Layers: k.layers, Width: k.width, Heads: k.heads, KVHeads: k.heads, HeadDim: k.width / k.heads,
				FeedForward: 4 * k.width, Vocab: 50257, MaxPositions: tokens, Activation: "gelu_new", NormEps: 1e-5, RopeTheta: 1e4, Tied: true}, nil
		}
	}
	return nil, fmt.Errorf("memo: the paper has no model %q; hint: use 7B, 13B, 30B or 65B", name)
}
