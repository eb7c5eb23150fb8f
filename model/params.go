package model

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// Params lists the parameters in order of first use in the forward pass,
// under their Hugging Face names. A tied head is the embedding and is not
// listed again, and nor are layers that have another's parameters.
func (m *Model) Params() []Param {
	b := paramList{m: m}
	n := m.Family.namesInside(m.Inside)
	b.layer = -1
	b.matrix(n.Embed, m.Vocab, m.Width, m.InitStd)
	if !m.Rotary() {
		b.matrix(n.Positions, m.MaxPositions+m.PosOffset(), m.Width, m.InitStd)
	}
	if m.PerLayer > 0 {
		b.perLayerTables(n)
	}
	if m.LoRA != nil && m.LoRA.adapts(n.Embed) {
		b.list = append(b.list, m.LoRA.embedFactors(b.list[0])...)
	}
	for l := range m.Layers {
		if b.layer = l; LayerSharedBy(m, l) != l {
			continue
		}
		m.layerParams(&b, n, fmt.Sprintf(n.Layer, l))
	}
	b.layer = m.Layers
	b.norm(n.FinalNorm)
	if !m.Tied {
		b.matrix(m.HeadName(), Outcomes(m), m.Width, m.InitStd)
	}
	if m.HeadBias() {
		b.vector(headBias, m.Vocab, Zeros)
	}
	if m.LoRA != nil && m.LoRA.adapts(m.HeadName()) {
		b.list = append(b.list, m.LoRA.factors(headModule, m.Width, m.Vocab, b.layer)...)
	}
	for i, n := 0, 0; i < len(b.list) && n < len(m.Frozen); i++ { // in the same order
		if b.list[i].Name == m.Frozen[n] {
			b.list[i].Frozen = true
			n++
		}
	}
	for i := range b.list {
		b.settle(&b.list[i])
	}
	for i, p := range b.list {
		b.list[i].Unit = unitOf(m, &p)
		inLayers := !p.Frozen && !p.Vector && !p.Taps && p.Layer >= 0 && p.Layer < m.Layers
		b.list[i].Indivisible, b.list[i].Masked = m.Indivisible && inLayers, m.Masked && inLayers
		if b.list[i].Masked {
			b.list[i].Kept = m.Kept[p.Name]
		}
	}
	if m.NF4 || m.FP8 {
		for i, p := range b.list {
			b.list[i].NF4, b.list[i].FP8 = m.NF4 && p.Frozen && m.quantizable(p), m.FP8 && m.quantizable(p)
		}
	}
	return b.list
}

// namesInside returns the names of tensors where all of them begin so; "": as they do in a model of its own.
func (f *Family) namesInside(inside string) TensorNames {
	n := f.Tensors
	if inside != "" {
		for _, name := range []*string{&n.Embed, &n.Layer, &n.FinalNorm, &n.PerLayerTable, &n.PerLayerProjection, &n.PerLayerNorm} {
			if *name == "" {
				continue
			}
			*name = inside + strings.TrimPrefix(*name, "model.")
		}
	}
	return n
}

// HeadName returns the name of a head that is not the embedding.
func (m *Model) HeadName() string {
	if Classifies(m) {
		return scoreName
	}
	return cmp.Or(m.Family.Tensors.Head, "lm_head.weight")
}

func (m *Model) layerParams(b *paramList, n TensorNames, prefix string) {
	residual := m.InitStd
	if m.Family.Shrunk {
		residual /= math.Sqrt(2 * float64(m.Layers))
	}
	b.prefix = prefix
	if m.Norms.Before() && HasMixer(m, b.layer) {
		b.norm(n.Norm1)
	}
	if m.Parallel && !m.OneNorm() { // both norms are read at once
		b.norm(n.Norm2)
	}
	switch {
	case !HasMixer(m, b.layer):
	case m.Delta.HasLayer(b.layer):
		b.delta(n, residual)
	case m.Conv.HasLayer(b.layer):
		b.conv(n, residual)
	case m.Mamba.HasLayer(b.layer):
		b.mamba(n, residual)
		if m.Mamba.Beside {
			b.attention(n, residual)
		}
	case m.Latent.Some():
		b.latent(n, residual)
	default:
		b.attention(n, residual)
	}
	if m.Norms.After() {
		b.norm(n.AttnNorm)
	}
	if !HasFeedForward(m, b.layer) {
		b.addAdapters()
		return
	}
	if m.Norms.Before() && !m.Parallel {
		b.norm(n.Norm2)
	}
	if NormsExperts(m) {
		b.sharedWeights(n)
		b.norm(n.SharedNorm)
		b.vector(n.RouterGain, m.Width, Ones)
	}
	f, experts := FeedForwardOf(m, b.layer)
	if m.Experts > 0 && !experts {
		n.Gate, n.Up, n.Down = n.DenseGate, n.DenseUp, n.DenseDown
	}
	switch {
	case experts:
		m.expertParams(b, n)
	case m.FusedGate():
		b.linear(n.Gate, m.Width, 2*f, m.MLPBias, m.InitStd)
	case m.Gated():
		b.linear(n.Gate, m.Width, f, m.MLPBias, m.InitStd)
		b.linear(n.Up, m.Width, f, m.MLPBias, m.InitStd)
	default:
		b.linear(n.Up, m.Width, f, m.MLPBias, m.InitStd)
		if m.Family.XIELU {
			b.xielu(n.XIELU)
		}
	}
	if !experts {
		b.linear(n.Down, f, m.Width, m.MLPBias, residual)
	}
	if m.Norms.After() {
		b.norm(n.MLPNorm)
	}
	if m.PerLayer > 0 {
		b.linear(n.PerLayerGate, m.Width, m.PerLayer, false, m.InitStd)
		b.linear(n.PerLayerOut, m.PerLayer, m.Width, false, residual)
		b.norm(n.PerLayerOutNorm)
	}
	b.addAdapters()
	if experts && m.Router.Bias { // last, so that what is trained is contiguous
		b.list = append(b.list, Param{Name: prefix + n.RouterBias, Rows: 1, Cols: m.Experts, Layer: b.layer, Vector: true, Row: m.Router.Row, Init: Zeros, Frozen: true, State: true})
	}
	if m.Family.XIELU {
		b.xieluConstants(prefix + n.XIELU)
	}
	if m.LayerScale {
		b.list = append(b.list, Param{Name: prefix + n.LayerScale, Rows: 1, Cols: 1, Layer: b.layer, Vector: true, Init: Ones, Frozen: true, State: true})
	}
}

// addAdapters ends what a layer reads.
func (b *paramList) addAdapters() {
	b.prefix = ""
	b.list = append(b.list, b.adapters...)
	b.adapters = b.adapters[:0]
}

// attention adds the parameters of a layer's attention.
func (b *paramList) attention(n TensorNames, residual float64) {
	m, size := b.m, HeadDimOf(b.m, b.layer)
	q, kv := m.Heads*size, KVHeadsOf(m, b.layer)*size
	if m.FusedQKV() {
		first := len(b.list)
		b.linear(n.QKV, m.Width, m.QKVCols(), m.QKVBias, m.InitStd)
		if m.Family.ByHead {
			b.byHead(first)
		}
	} else {
		if m.OutGate {
			b.gatedQueries(n)
		} else {
			b.rotatedWeight(n.Q, q)
		}
		if !Borrows(m, b.layer) {
			b.rotatedWeight(n.K, kv)
		}
		if !Borrows(m, b.layer) && !KeysAreValues(m, b.layer) {
			b.linear(n.V, m.Width, kv, m.QKVBias, m.InitStd)
		}
	}
	switch m.QKNorm {
	case QKNormHeads, QKNormTurned:
		b.gains(n.QNorm, size)
		if !Borrows(m, b.layer) {
			b.gains(n.KNorm, size)
		}
	case QKNormWhole:
		b.gains(n.QNorm, q)
		b.gains(n.KNorm, kv)
	}
	if m.Sinks {
		b.sinks(n.Sinks)
	}
	b.linear(n.AttnOut, q, m.Width, m.OutBias, residual)
}

// FeedForwardOf returns the width of a layer's feed-forward, and whether that is of each of several experts.
func FeedForwardOf(m *Model, layer int) (width int, experts bool) {
	if m.Experts > 0 && layer < m.Dense {
		return m.DenseWidth, false
	}
	if m.Lent.Wide && Borrows(m, layer) {
		return 2 * m.FeedForward, false
	}
	return m.FeedForward, m.Experts > 0
}

// RouterBiasOf returns the name of the bias of a router whose weight has the given name.
func RouterBiasOf(m *Model, router string) string {
	n := &m.Family.Tensors
	return strings.TrimSuffix(router, n.Router+".weight") + n.RouterBias
}

// LayerScaleOf returns the name of the number that multiplies what a layer computes.
func LayerScaleOf(m *Model, layer int) string {
	n := m.Family.namesInside(m.Inside)
	return fmt.Sprintf(n.Layer, LayerSharedBy(m, layer)) + n.LayerScale
}

// expertParams adds the router and, as one matrix of gates and ups and one of downs, the
// experts. Their names end as transformers' names in memory do, such as mlp.experts.gate_up_proj, and begin as
// the names in files do (Mixtral's with block_sparse_moe), where each expert has its own tensors.
func (m *Model) expertParams(b *paramList, n TensorNames) {
	b.linear(n.Router, m.Width, m.Experts, m.MLPBias, m.InitStd)
	if NormsExperts(m) {
		b.norm(n.ExpertNorm)
		b.vector(n.ExpertGain, 1, Ones)
		gain := &b.list[len(b.list)-1]
		gain.Rows, gain.Experts = m.Experts, m.Experts
	}
	all, _, _ := strings.Cut(n.Gate, "%d")
	first := len(b.list)
	switch {
	case n.Experts != "":
		b.experts(n.Experts+gateUp, 2*m.FeedForward, m.Width)
		b.inFiles(n.ExpertsUp)
		b.experts(n.Experts+down, m.Width, m.FeedForward)
		b.inFiles(n.ExpertsDown)
	case m.Family.FusedMix:
		b.fusedExperts(all+gateUp, 2*m.FeedForward, m.Width, true)
		b.fusedExperts(all+down, m.Width, m.FeedForward, false)
	default:
		b.experts(all+gateUp, 2*m.FeedForward, m.Width, n.Gate, n.Up)
		b.experts(all+down, m.Width, m.FeedForward, n.Down)
	}
	if NormsExperts(m) {
		b.norm(n.ExpertOutNorm)
	} else {
		b.sharedWeights(n)
	}
	var adapted []Param
	for _, p := range b.list[first:] {
		if m.LoRA != nil && p.Experts > 0 && m.LoRA.adapts(p.Name) {
			adapted = append(adapted, p)
		}
	}
	for i, p := range adapted {
		b.adapters = append(b.adapters, m.expertFactors(p, i < len(adapted)-1)...)
	}
}

// sharedWeights adds the feed-forward beside the experts.
func (b *paramList) sharedWeights(n TensorNames) {
	m := b.m
	if m.Shared == 0 {
		return
	}
	if m.SharedGate {
		b.linear(n.SharedRouter, m.Width, 1, false, m.InitStd)
	}
	if m.FusedGate() {
		b.linear(n.SharedGate, m.Width, 2*m.Shared, false, m.InitStd)
	} else {
		b.linear(n.SharedGate, m.Width, m.Shared, false, m.InitStd)
		b.linear(n.SharedUp, m.Width, m.Shared, false, m.InitStd)
	}
	b.linear(n.SharedDown, m.Shared, m.Width, false, m.InitStd)
}

// TensorNames are the names of a family's tensors in files: those of the model, and those in a layer, which follow
// Layer. Weights and biases of operators and norms are these names and ".weight" and ".bias".
type TensorNames struct {
	Embed, Positions, FinalNorm string
	Head                        string // if it is not lm_head.weight
	Layer                       string // a format of the layer's number, such as model.layers.%d.
	Norm1, Norm2                string // before attention and before the feed-forward
	QKV, Q, K, V, AttnOut       string
	QNorm, KNorm                string // of queries and keys
	AttnNorm, MLPNorm           string // after attention and feed-forward
	Sinks                       string // of attention's heads; "": the family has none
	LayerScale                  string // the whole name, see Model.LayerScale
	PerLayerTable               string // the whole name, see Model.PerLayer
	PerLayerProjection          string // of the first embedding
	PerLayerNorm                string // of the projection, for each layer by itself
	PerLayerGate, PerLayerOut   string
	PerLayerOutNorm             string
	Gate, Up, Down              string // with experts: formats of the expert's number
	Experts                     string // what names of experts begin with of which files have all in one tensor, in the order of operators
	ExpertsUp, ExpertsDown      string // whole names of these in files, where they differ from those in memory
	Router                      string
	RouterBias                  string // the whole name, see Router.Bias
	DenseGate, DenseUp          string // of layers without experts, see Model.Dense
	DenseDown                   string
	SharedGate, SharedUp        string // of the feed-forward beside the experts
	SharedDown, SharedRouter    string
	SharedNorm                  string // after it, see NormsExperts
	ExpertNorm, ExpertOutNorm   string // before and after the experts, likewise
	RouterGain, ExpertGain      string // whole names, likewise
	QueryDown, QueryNorm        string // of latents, see Latent
	QueryUp                     string
	KVDown, KVNorm, KVUp        string
	DeltaQKV, DeltaZ            string // of linear attention, see Delta. Without DeltaZ and DeltaA, DeltaQKV and DeltaB have theirs, too
	DeltaB, DeltaA              string
	DeltaConv, DeltaNorm        string
	DeltaRate, DeltaBias        string // whole names
	DeltaOut                    string
	XIELU                       string // the activation with parameters, see Family.XIELU
	ConvIn, Conv, ConvOut       string // of convolutions instead of attention, see Conv
	MambaIn, MambaConv          string // of scans, see Mamba
	MambaNorm, MambaOut         string
	MambaRate, MambaStep        string // whole names
	MambaSkip                   string
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

// perLayerTables adds what makes the columns of Model.PerLayer.
func (b *paramList) perLayerTables(n TensorNames) {
	m := b.m
	cols := m.Layers * m.PerLayer
	b.matrix(n.PerLayerTable, m.Vocab, cols, m.InitStd)
	b.matrix(n.PerLayerProjection+".weight", cols, m.Width, m.InitStd)
	b.gains(n.PerLayerNorm, m.PerLayer)
}

func (b *paramList) norm(name string) {
	b.gains(name, b.m.Width)
	if !b.m.RMS() && !b.m.Family.Unbiased {
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
	p.Experts, p.Stacked = b.m.Experts, b.m.Family.Stacked
	for i, part := range parts {
		parts[i] = b.prefix + part + ".weight"
	}
	p.Parts = strings.Join(parts, " ")
}

// inFiles gives the last parameter, of all experts, the name that files have for it, if it is another than in memory.
func (b *paramList) inFiles(name string) {
	if name != "" {
		b.list[len(b.list)-1].Parts = b.prefix + name
	}
}

// fusedExperts adds a matrix of all experts' matrices of rows x cols, stored [out, in], which
// files have as one tensor, and their biases.
func (b *paramList) fusedExperts(name string, rows, cols int, inTurn bool) {
	b.experts(name, rows, cols)
	p := &b.list[len(b.list)-1]
	p.Transposed, p.Interleaved = true, inTurn
	if b.m.MLPBias {
		b.list = append(b.list, Param{Name: b.prefix + name + "_bias", Rows: b.m.Experts, Cols: rows, Layer: b.layer, Vector: true,
			Init: Zeros, Experts: b.m.Experts, Interleaved: inTurn})
	}
}

// byHead marks the parameters from index first on, and the factor that makes the rows of
// their adapter, as stored head by head.
func (b *paramList) byHead(first int) {
	for i := first; i < len(b.list); i++ {
		b.list[i].Heads = b.m.Heads
	}
	for i := range b.ofOutputs() {
		b.ofOutputs()[i].Heads = b.m.Heads
	}
}

// rotatedWeight adds a weight of queries or keys.
func (b *paramList) rotatedWeight(name string, out int) {
	m, first, adapters := b.m, len(b.list), len(b.adapters)
	b.linear(name, m.Width, out, m.QKVBias, m.InitStd)
	if !m.Family.Paired {
		return
	}
	pair := func(p *Param) { p.Paired, p.Head = m.RotaryDim(false), m.HeadDim }
	for i := range b.list[first:] {
		pair(&b.list[first+i])
	}
	if len(b.adapters) > adapters {
		for i := range b.ofOutputs() {
			pair(&b.ofOutputs()[i])
		}
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
