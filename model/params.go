package model

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// Params lists the parameters in order of first use in the forward pass,
// under their Hugging Face names. A tied head is the embedding and is not
// listed again.
func (m *Model) Params() []Param {
	b := paramList{m: m}
	n := names[m.Family]
	b.layer = -1
	b.matrix(n.embed, m.Vocab, m.Width, m.InitStd)
	if !m.Rotary() {
		b.matrix(n.positions, m.MaxPositions+m.PosOffset(), m.Width, m.InitStd)
	}
	for l := range m.Layers {
		b.layer = l
		m.layerParams(&b, n, fmt.Sprintf(n.layer, l))
	}
	b.layer = m.Layers
	b.norm(n.finalNorm)
	if !m.Tied {
		b.matrix(m.HeadName(), m.Vocab, m.Width, m.InitStd)
	}
	if m.HeadBias() {
		b.vector("lm_head.bias", m.Vocab, Zeros)
	}
	for i, n := 0, 0; i < len(b.list) && n < len(m.Frozen); i++ { // in the same order
		if b.list[i].Name == m.Frozen[n] {
			b.list[i].Frozen = true
			n++
		}
	}
	if m.LoRA != nil {
		for i := range b.list {
			b.list[i].Frozen = !b.list[i].Adapter
		}
	}
	if m.NF4 {
		for i, p := range b.list {
			b.list[i].NF4 = p.Frozen && m.quantizable(p)
		}
	}
	return b.list
}

// HeadName returns the name of a head that is not the embedding.
func (m *Model) HeadName() string { return cmp.Or(names[m.Family].head, "lm_head.weight") }

func (m *Model) layerParams(b *paramList, n familyNames, prefix string) {
	// GPT-2 scales down the projections into the residual stream with their number
	// (Radford et al. 2019, section 2.3), so that its variance does not grow.
	residual := m.InitStd
	if m.Family == GPT2 {
		residual /= math.Sqrt(2 * float64(m.Layers))
	}
	q, kv, attn := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim, m.Heads*m.HeadDim
	b.prefix = prefix
	if m.Norms.Before() {
		b.norm(n.norm1)
	}
	if m.Parallel && !m.OneNorm() { // both norms are read at once
		b.norm(n.norm2)
	}
	if m.FusedQKV() {
		first := len(b.list)
		b.linear(n.qkv, m.Width, m.QKVCols(), m.QKVBias, m.InitStd)
		if families[m.Family].byHead {
			b.byHead(first)
		}
	} else {
		b.linear(n.q, m.Width, q, m.QKVBias, m.InitStd)
		b.linear(n.k, m.Width, kv, m.QKVBias, m.InitStd)
		b.linear(n.v, m.Width, kv, m.QKVBias, m.InitStd)
	}
	switch m.QKNorm {
	case QKNormHeads:
		b.gains(n.qNorm, m.HeadDim)
		b.gains(n.kNorm, m.HeadDim)
	case QKNormWhole:
		b.gains(n.qNorm, q)
		b.gains(n.kNorm, kv)
	}
	if m.Sinks {
		b.sinks(n.sinks)
	}
	b.linear(n.attnOut, attn, m.Width, m.OutBias, residual)
	if m.Norms.After() {
		b.norm(n.attnNorm)
	}
	if m.Norms.Before() && !m.Parallel {
		b.norm(n.norm2)
	}
	switch {
	case m.Experts > 0:
		m.expertParams(b, n)
	case m.FusedGate():
		b.linear(n.gate, m.Width, 2*m.FeedForward, m.MLPBias, m.InitStd)
	case m.Gated():
		b.linear(n.gate, m.Width, m.FeedForward, m.MLPBias, m.InitStd)
		b.linear(n.up, m.Width, m.FeedForward, m.MLPBias, m.InitStd)
	default:
		b.linear(n.up, m.Width, m.FeedForward, m.MLPBias, m.InitStd)
	}
	if m.Experts == 0 {
		b.linear(n.down, m.FeedForward, m.Width, m.MLPBias, residual)
	}
	if m.Norms.After() {
		b.norm(n.mlpNorm)
	}
	b.prefix = ""
	b.list = append(b.list, b.adapters...)
	b.adapters = b.adapters[:0]
}

// expertParams adds the router and, as one matrix of gates and ups and one of downs, the
// experts. Their names end as transformers' names in memory do, such as mlp.experts.gate_up_proj, and begin as
// the names in files do (Mixtral's with block_sparse_moe), where each expert has its own tensors.
func (m *Model) expertParams(b *paramList, n familyNames) {
	b.linear(n.router, m.Width, m.Experts, m.MLPBias, m.InitStd)
	all, _, _ := strings.Cut(n.gate, "%d")
	first := len(b.list)
	if families[m.Family].fusedMix {
		b.fusedExperts(all+gateUp, 2*m.FeedForward, m.Width, true)
		b.fusedExperts(all+down, m.Width, m.FeedForward, false)
	} else {
		b.experts(all+gateUp, 2*m.FeedForward, m.Width, n.gate, n.up)
		b.experts(all+down, m.Width, m.FeedForward, n.down)
	}
	var adapted []Param
	for _, p := range b.list[first:] {
		if m.LoRA != nil && m.LoRA.adapts(p.Name) {
			adapted = append(adapted, p)
		}
	}
	for i, p := range adapted {
		b.adapters = append(b.adapters, m.expertFactors(p, i < len(adapted)-1)...)
	}
}

// familyNames holds the tensor names of a family; layer is formatted with the layer
// number.
type familyNames struct {
	embed, positions, layer, finalNorm  string
	norm1, qkv, q, k, v, attnOut, norm2 string
	gate, up, down                      string
	router                              string
	sinks                               string // of attention's heads
	qNorm, kNorm, attnNorm, mlpNorm     string // norms of queries and keys, and after attention and feed-forward
	head                                string // if it is not lm_head.weight
}

var llamaNames = familyNames{
	embed: "model.embed_tokens.weight", layer: "model.layers.%d.", finalNorm: "model.norm",
	norm1: "input_layernorm", q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj",
	attnOut: "self_attn.o_proj", norm2: "post_attention_layernorm",
	gate: "mlp.gate_proj", up: "mlp.up_proj", down: "mlp.down_proj",
	qNorm: "self_attn.q_norm", kNorm: "self_attn.k_norm", sinks: "self_attn.sinks",
}

func phiNames() familyNames {
	n := llamaNames
	n.qkv, n.gate = "self_attn.qkv_proj", "mlp.gate_up_proj"
	return n
}

// gemmaNames are also OLMo 2's and 3's, which have fewer norms: what Llama calls the norm after attention is the one before the feed-forward.
func gemmaNames() familyNames {
	n := llamaNames
	n.attnNorm, n.norm2, n.mlpNorm = "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
	return n
}

// expertNames returns Llama's names with those of a mixture: gate, up and down are formats of the expert's number.
func expertNames(router, gate, up, down string) familyNames {
	n := llamaNames
	n.router, n.gate, n.up, n.down = router, gate, up, down
	return n
}

func qwenExpertNames() familyNames {
	return expertNames("mlp.gate", "mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj", "mlp.experts.%d.down_proj")
}

var names = map[Family]familyNames{
	GPTOSS:   expertNames("mlp.router", "mlp.experts.%d", "", ""), // all experts are one tensor
	Mixtral:  expertNames("block_sparse_moe.gate", "block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3", "block_sparse_moe.experts.%d.w2"),
	Qwen3MoE: qwenExpertNames(), OLMoE: qwenExpertNames(),
	GPT2: {
		embed: "transformer.wte.weight", positions: "transformer.wpe.weight", layer: "transformer.h.%d.",
		finalNorm: "transformer.ln_f", norm1: "ln_1", qkv: "attn.c_attn", attnOut: "attn.c_proj",
		norm2: "ln_2", up: "mlp.c_fc", down: "mlp.c_proj",
	},
	OPT: {
		embed: "model.decoder.embed_tokens.weight", positions: "model.decoder.embed_positions.weight",
		layer: "model.decoder.layers.%d.", finalNorm: "model.decoder.final_layer_norm",
		norm1: "self_attn_layer_norm", q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj",
		attnOut: "self_attn.out_proj", norm2: "final_layer_norm", up: "fc1", down: "fc2",
	},
	Llama: llamaNames, Mistral: llamaNames, Qwen2: llamaNames, Qwen3: llamaNames, Gemma3: gemmaNames(), OLMo2: gemmaNames(), Phi3: phiNames(), SmolLM3: llamaNames,
	Granite: llamaNames, StableLM: llamaNames, OLMo3: gemmaNames(), StarCoder2: starCoderNames(), Phi: phi2Names(),
	GPTNeoX: {
		embed: "gpt_neox.embed_in.weight", layer: "gpt_neox.layers.%d.", finalNorm: "gpt_neox.final_layer_norm",
		norm1: "input_layernorm", qkv: "attention.query_key_value", attnOut: "attention.dense", norm2: "post_attention_layernorm",
		up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h", head: "embed_out.weight",
	},
}

func starCoderNames() familyNames {
	n := llamaNames
	n.up, n.down = "mlp.c_fc", "mlp.c_proj"
	return n
}

func phi2Names() familyNames {
	n := llamaNames
	n.finalNorm, n.attnOut, n.up, n.down = "model.final_layernorm", "self_attn.dense", "mlp.fc1", "mlp.fc2"
	return n
}

type paramList struct {
	m        *Model
	layer    int
	prefix   string
	list     []Param
	adapters []Param // of the layer's weights so far
}

func (b *paramList) matrix(name string, rows, cols int, std float64) {
	b.list = append(b.list, Param{Name: b.prefix + name, Rows: rows, Cols: cols, Layer: b.layer, Std: std})
}

func (b *paramList) vector(name string, cols int, init Init) {
	b.list = append(b.list, Param{Name: b.prefix + name, Rows: 1, Cols: cols, Layer: b.layer, Vector: true, Init: init})
}

func (b *paramList) norm(name string) {
	b.gains(name, b.m.Width)
	if !b.m.RMS() {
		b.vector(name+".bias", b.m.Width, Zeros)
	}
}

// gains adds the gains of a norm, which begin as 1.
func (b *paramList) gains(name string, cols int) {
	init := Ones
	if b.m.UnitOffset {
		init = Zeros
	}
	b.vector(name+".weight", cols, init)
}

// sinks adds a score for each head, initialised like weights.
func (b *paramList) sinks(name string) {
	b.vector(name, b.m.Heads, Normal)
	b.list[len(b.list)-1].Std = b.m.InitStd
}

// experts adds a matrix of all experts' matrices of rows x cols, stored [out, in].
func (b *paramList) experts(name string, rows, cols int, parts ...string) {
	b.matrix(name, b.m.Experts*rows, cols, b.m.InitStd)
	p := &b.list[len(b.list)-1]
	p.Experts = b.m.Experts
	for i, part := range parts {
		parts[i] = b.prefix + part + ".weight"
	}
	p.Parts = strings.Join(parts, " ")
}

// fusedExperts adds a matrix of all experts' matrices of rows x cols, stored [out, in], which
// files have as one tensor, and their biases.
func (b *paramList) fusedExperts(name string, rows, cols int, inTurn bool) {
	b.experts(name, rows, cols)
	p := &b.list[len(b.list)-1]
	p.Turned, p.InTurn = true, inTurn
	if b.m.MLPBias {
		b.list = append(b.list, Param{Name: b.prefix + name + "_bias", Rows: b.m.Experts, Cols: rows, Layer: b.layer, Vector: true,
			Init: Zeros, Experts: b.m.Experts, InTurn: inTurn})
	}
}

// byHead marks the parameters from index first on, and the factor that makes the rows of
// their adapter, as stored head by head.
func (b *paramList) byHead(first int) {
	for i := first; i < len(b.list); i++ {
		b.list[i].Heads = b.m.Heads
	}
	if n := len(b.adapters); n > 0 {
		b.adapters[n-1].Heads = b.m.Heads
	}
}

// linear adds a weight, stored [in, out] or [out, in], and its bias.
// Adapters come after everything else in a layer, so that what is trained is contiguous.
func (b *paramList) linear(name string, in, out int, bias bool, std float64) {
	if b.m.InOut() {
		b.matrix(name+".weight", in, out, std)
	} else {
		b.matrix(name+".weight", out, in, std)
	}
	if bias {
		b.vector(name+".bias", out, Zeros)
	}
	if l := b.m.LoRA; l != nil && l.adapts(b.prefix+name+".weight") {
		b.adapters = append(b.adapters, l.factors(b.prefix+name, in, out, b.layer)...)
	}
}
