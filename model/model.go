// Package model describes architectures as data.
//
// A Model holds the sizes and choices that define what a decoder-only transformer
// computes. It comes from a Hugging Face config.json, a known name, or sizes given
// inline, and is written as a config.json again. It lists its parameters by their
// Hugging Face names and shapes; package graph defines the computation.
//
//	m, err := model.Known("gpt2")
//	for _, p := range m.Params() { fmt.Println(p.Name, p.Rows, p.Cols) }
//
// The families differ in few choices, and each choice is a field: GPT-2 is
// LayerNorm, learned positions, one fused query-key-value matrix stored
// [in, out]; Llama, Mistral and Qwen2 are RMSNorm, rotary positions, a gated
// feed-forward and grouped queries; OPT is LayerNorm, learned positions with
// an offset, ReLU.
package model

import (
	"fmt"
	"strings"
)

// Family is the layout of names and config.json, as in "model_type".
type Family string

const (
	GPT2    Family = "gpt2"
	Llama   Family = "llama"
	Mistral Family = "mistral"
	Qwen2   Family = "qwen2"
	OPT     Family = "opt"
)

// RopeScaling stretches rotary positions as Llama 3.1 does
// (rope_type "llama3") or uniformly ("linear").
type RopeScaling struct {
	Type            string // "llama3" or "linear"
	Factor          float64
	LowFreqFactor   float64
	HighFreqFactor  float64
	OriginalContext int
}

// Model is an architecture with its sizes.
type Model struct {
	Family       Family
	Layers       int
	Width        int // of the residual stream
	Heads        int // query heads
	KVHeads      int // key and value heads; divides Heads
	HeadDim      int
	FeedForward  int
	Vocab        int
	MaxPositions int
	Activation   string // "gelu_new", "gelu", "relu", "silu"
	NormEps      float64
	RopeTheta    float64
	RopeScaling  *RopeScaling
	Window       int // sliding window of attention in tokens; 0: none
	Tied         bool
	QKVBias      bool // biases of the query, key and value projections
	OutBias      bool // bias of the attention output projection
	MLPBias      bool
	InitStd      float64
	Frozen       []string // names of parameters that are not trained, see Freeze
	LoRA         *LoRA    // adapters, which are then all that is trained; nil: none
	NF4          bool     // frozen weights of the layers are held in 4 bits, see Quantize
}

// RMS reports whether norms are RMSNorm (without bias) instead of LayerNorm.
func (m *Model) RMS() bool { return m.Family != GPT2 && m.Family != OPT }

// Rotary reports whether positions are rotary instead of learned. Setting RopeTheta
// makes GPT-2 and OPT rotary too; their config.json cannot express that.
func (m *Model) Rotary() bool { return m.RMS() || m.RopeTheta > 0 }

// Gated reports whether the feed-forward is SwiGLU.
func (m *Model) Gated() bool { return m.RMS() }

// FusedQKV reports whether one matrix makes queries, keys and values.
func (m *Model) FusedQKV() bool { return m.Family == GPT2 }

// PosOffset returns the number of rows of the position table before position 0.
func (m *Model) PosOffset() int {
	if m.Family == OPT {
		return 2
	}
	return 0
}

// QKVCols returns the total width of query, key and value heads.
func (m *Model) QKVCols() int { return (m.Heads + 2*m.KVHeads) * m.HeadDim }

// Param is one parameter tensor. Vectors have one row.
type Param struct {
	Name       string // Hugging Face name
	Rows, Cols int
	Layer      int  // -1: before the layers; Model.Layers: after them
	Vector     bool // one dimension in files; no weight decay
	Init       Init
	Std        float64 // of Normal
	Frozen     bool    // has no gradient and is not updated
	Adapter    bool    // is a factor of an adapter, see LoRA
	NF4        bool    // is held in 4 bits, see Model.Quantize
}

// BareName returns the name in folders of the model without its head, such as those of
// GPT2Model and the published GPT-2: without the prefix "transformer." or "model.". ok is
// false for the head, which has none.
func (p Param) BareName() (name string, ok bool) {
	first, rest, _ := strings.Cut(p.Name, ".")
	return rest, first == "transformer" || first == "model"
}

// Init is the initialisation of a parameter.
type Init uint8

const (
	Normal Init = iota // with mean 0 and standard deviation Std
	Zeros
	Ones
)

// Elems returns the number of elements.
func (p Param) Elems() int64 { return int64(p.Rows) * int64(p.Cols) }

// Shape returns the shape in files.
func (p Param) Shape() []int {
	if p.Vector {
		return []int{p.Cols}
	}
	return []int{p.Rows, p.Cols}
}

// ParamCount returns the number of elements of all parameters; a tied head counts once.
func (m *Model) ParamCount() int64 {
	var n int64
	for _, p := range m.Params() {
		n += p.Elems()
	}
	return n
}

// limits keep all products of sizes far from overflow.
const (
	maxLayers = 1 << 16
	maxWidth  = 1 << 20
	maxVocab  = 1 << 24
	maxLength = 1 << 30
)

// Validate checks that the sizes are possible. The error names the field.
func (m *Model) Validate() error {
	bounds := []struct {
		name   string
		v, max int
	}{
		{"layers", m.Layers, maxLayers}, {"width", m.Width, maxWidth}, {"heads", m.Heads, maxWidth},
		{"kv_heads", m.KVHeads, maxWidth}, {"head_dim", m.HeadDim, maxWidth}, {"feed_forward", m.FeedForward, maxWidth},
		{"vocab", m.Vocab, maxVocab}, {"max_positions", m.MaxPositions, maxLength},
	}
	for _, b := range bounds {
		if b.v < 1 || b.v > b.max {
			return fmt.Errorf("%s is %d; hint: it must be from 1 to %d", b.name, b.v, b.max)
		}
	}
	switch {
	case m.Heads%m.KVHeads != 0:
		return fmt.Errorf("%d heads do not divide over %d key/value heads; hint: heads must be a multiple of kv_heads", m.Heads, m.KVHeads)
	case m.Heads*m.HeadDim > maxWidth:
		return fmt.Errorf("%d heads of size %d are too wide; hint: at most %d together", m.Heads, m.HeadDim, maxWidth)
	case m.Rotary() && m.HeadDim%2 != 0:
		return fmt.Errorf("head_dim %d is odd; hint: rotary positions turn pairs, so it must be even", m.HeadDim)
	case m.FusedQKV() && (m.KVHeads != m.Heads || m.Heads*m.HeadDim != m.Width):
		return fmt.Errorf("gpt2 needs kv_heads = heads and heads*head_dim = width, got %d, %d, %d*%d, %d", m.KVHeads, m.Heads, m.Heads, m.HeadDim, m.Width)
	case !(m.NormEps > 0 && m.NormEps < 1):
		return fmt.Errorf("norm epsilon %v; hint: between 0 and 1, usually 1e-5", m.NormEps)
	case m.Rotary() && !(m.RopeTheta > 0 && m.RopeTheta < 1e12):
		return fmt.Errorf("rope_theta %v; hint: positive, usually 1e4 or 5e5", m.RopeTheta)
	case m.Window < 0:
		return fmt.Errorf("sliding window of %d tokens; hint: positive, or 0 for none", m.Window)
	}
	return nil
}
