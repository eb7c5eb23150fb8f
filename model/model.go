// Package model describes architectures as data.
//
// A Model holds the sizes and choices that define what a decoder-only transformer
// computes. It lists its parameters by their Hugging Face names and shapes; package graph defines the computation.
//
//	m, err := family.Known("gpt2")
//	for _, p := range m.Params() { fmt.Println(p.Name, p.Rows, p.Cols) }
//
// The families differ in only a few choices. What all models of a family share is a field of Family (LayerNorm or
// RMSNorm, learned or rotary positions, gated feed-forwards, how matrices are stored); what its models differ in, or
// what few families have, is a field of Model, whose zero value is Llama's. Which families there are, and how a
// config.json becomes a Model and back, is in package family.
package model

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// Family is what all models of a family have in common. The zero value is Llama's but for the names.
type Family struct {
	Name      string // "model_type" in config.json
	LayerNorm bool   // norms are LayerNorm, with biases
	XIELU     bool   // the activation of the feed-forward, which has no gate, has parameters (2411.13010)
	Unbiased  bool   // but these norms have no biases
	Learned   bool   // positions are learned
	Ungated   bool   // the feed-forward has no gate
	InOut     bool   // matrices of layers are stored [in, out] instead of [out, in]
	FusedQKV  bool   // one matrix makes queries, keys and values
	ByHead    bool   // its rows are stored head by head, see Param.Heads
	Paired    bool   // files have columns of queries and keys that are rotated together side by side, see Param.Paired
	FusedGate bool   // one matrix makes gate and up
	OneNorm   bool   // attention and feed-forward side by side read the same norm
	HeadBias  bool   // the head has a bias
	Mixture   bool   // the feed-forward is a choice among experts
	Ahead     bool   // files may have layers beyond the last, which predict further tokens: they are carried
	MayMix    bool   // models may have experts, beside a feed-forward of all tokens
	Apart     bool   // these then have norms of their own, see NormsExperts
	Stacked   bool   // files may have all experts in one tensor, in the order of operators, see Param.Stacked
	FusedMix  bool   // files have all experts in one tensor, [in, out], gates and ups interleaved, see Param.Transposed
	Square    bool   // kv_heads is heads and heads*head_dim the width: config.json has neither key
	Offset    int    // rows of the position table before position 0
	// Shrunk says that projections into the residual stream are initialised smaller the more of them there are (Radford
	// et al. 2019, section 2.3), so that its variance does not grow.
	Shrunk  bool
	Tensors TensorNames
	Buffers []string // how names of tensors end that are no parameters, see Model.Buffer
}

// String returns the family's name.
func (f *Family) String() string { return f.Name }

// Model is an architecture with its sizes.
type Model struct {
	Family      *Family
	Layers      int
	Width       int // of the residual stream
	Heads       int // query heads
	KVHeads     int // key and value heads; divides Heads
	HeadDim     int
	FeedForward int // of each expert, if there are experts
	Experts     int // feed-forwards per layer, of which each token goes through Active; 0: one, for all tokens
	Active      int
	NormedRoute bool // the weights of a token's experts add up to 1
	// Shared is the width of a feed-forward that all tokens go through beside their experts; 0: there is none. If SharedGate, its
	// result is multiplied by the sigmoid of one more output of the router's kind.
	Shared     int
	SharedGate bool
	Router     Router
	// Dense is how many layers, from the first on, have one feed-forward for all tokens, DenseWidth wide, instead of experts.
	Dense, DenseWidth int
	// Balance adds a term to the loss that evens out how much the experts are used, so that
	// none is forgotten (2101.03961, equation 4; by sequences as in 2412.19437, equation 17):
	// the mean over layers and sequences of Balance*Experts * the sum over experts of their
	// share of the slots times their mean probability. It equals Balance if all are used alike. The whole term
	// is divided by the share of tokens that are learnt, since the loss is a mean over these.
	Balance      float64
	Neftune      float64 // while training, alpha of NEFTune's noise on embeddings (2310.05914); 0: none
	Distil       Distil  // from a teacher, while training
	Asked        Asked   // as a teacher
	GateLimit    float64 // bounds experts' gates and ups, see graph.SwiGLU; 0: no bound
	GateAlpha    float64 // with GateLimit, what gates are multiplied by in the sigmoid
	Vocab        int
	MaxPositions int
	Activation   string // its name in config.json, see ActivationOf
	NormEps      float64
	RopeTheta    float64
	RopeScaling  *RopeScaling
	Window       int     // sliding window of attention in tokens; 0: none
	Sliding      []bool  // which layers have the window, repeated for all layers; nil: all
	LocalTheta   float64 // RopeTheta of the layers with the window, without RopeScaling; 0: as in the others
	RotaryPct    float64 // share of a head's columns, from the first on, that are rotated; 0: all
	NoRotary     []bool  // layers without rotary positions, repeated for all layers; nil: none
	Parallel     bool    // attention and feed-forward read the same residual stream
	Global       Global
	Lent         Lent
	QKNorm       QKNorm // of queries and keys
	ValueNorm    bool   // each head of values is normalised by itself, without gains
	OutGate      bool   // what a head of attention computes is multiplied by sigmoids of more outputs of its queries' weight
	Latent       Latent
	Delta        Delta  // of layers whose attention is linear
	Conv         Conv   // of layers with a convolution instead of attention
	Mamba        Mamba  // of layers with a scan instead
	Halves       []Half // which parts a layer has, repeated for all layers; nil: both
	Sinks        bool   // each head has one more score, a parameter, that takes part in the softmax but has no value
	Norms        Placement
	UnitOffset   bool // the gains of norms are 1 + weight
	LayerScale   bool // what a layer computes, residual stream included, is multiplied by a number of its own, which is not trained
	// PerLayer is how many columns each layer has of a second embedding and of a projection of the first, both of which are made
	// before the layers; a gate of the stream multiplies them, and what that makes is added to it. 0: none.
	PerLayer    int
	ScaledEmbed bool    // embeddings are multiplied by the square root of Width
	QueryScalar float64 // scores are divided by its square root; 0: HeadDim
	Multipliers Multipliers
	Mup         Mup
	ScoreCap    float64 // soft bound on attention's scores, see graph.SoftCap; 0: none
	LogitCap    float64 // likewise on logits
	Tied        bool
	QKVBias     bool // biases of the query, key and value projections
	OutBias     bool // bias of the attention output projection
	MLPBias     bool // biases of the feed-forward or, of a mixture, of router and experts
	InitStd     float64
	Labels      []string // that a text is given, in the place of a next token, see Classify; nil: it is a language model
	Regression  bool     // the logit of its one label is a number that each text has; else it is a reward
	// Inside is what names of parameters begin with, instead of "model.", if this is the text part of a model that also sees or
	// hears: model.language_model. or model.text_model. ""; it is a model of its own.
	Inside string
	Frozen []string // names of parameters that are not trained, see Freeze
	LoRA   *LoRA    // adapters, which are then trained, and little else; nil: none
	NF4    bool     // frozen weights of the layers are held in 4 bits, see Quantize
	FP8    bool     // the layers' matrices are multiplied in FP8, see MultiplyFP8
	Int8   bool     // all matrices are held, and trained, in int8, see HoldInt8
	// Largest has the greatest magnitude of each matrix that begins with trained weights and is held in int8, by its name.
	Largest map[string]float64
	// CacheBits is how many bits keys and values have that generating keeps, see graph.CacheGroup; 0: they are as computed.
	CacheBits int
	// Indivisible says that no plan divides the layers' trained matrices: their updates need them whole.
	Indivisible bool
	// Shares is how many consecutive layers have the parameters of the first of them, see ShareLayers; 0: each has its own.
	Shares int
	// Masked says that weights of the layers' trained matrices that are 0 stay so, see Param.Masked. Kept says of how many elements
	// of a parameter that is not so; nil: it is not known.
	Masked bool
	Kept   map[string]int64
	Files  Files
}

// Router is how experts are chosen. The zero value scores them by the softmax of their logits.
type Router struct {
	Row     bool    // files have the bias as a matrix of one row
	Sigmoid bool    // each is scored by itself, by the sigmoid of its logit
	Bias    bool    // a number of each expert is added to its score for the choice alone: state that no gradient changes
	Scale   float64 // what the weights of a token's experts are multiplied by; 0: 1
	Groups  int     // of consecutive experts, of which a token's are from the Best; 0 or 1: one
	Best    int
}

// QKNorm says what an RMSNorm of queries and keys normalises.
type QKNorm uint8

const (
	NoQKNorm     QKNorm = iota
	QKNormHeads         // each head by itself, with the same gains, before rotary positions
	QKNormWhole         // all heads of a token together, before rotary positions
	QKNormTurned        // each head by itself, with the same gains, after rotary positions
)

// Placement says where the norms of a layer are.
type Placement uint8

const (
	PreNorm      Placement = iota // before attention and before the feed-forward
	SandwichNorm                  // before and after each
	PostNorm                      // after each
)

// Before reports whether attention and feed-forward read a norm of the residual stream,
// After whether their outputs are normalised before being added to it.
func (p Placement) Before() bool { return p != PostNorm }
func (p Placement) After() bool  { return p != PreNorm }

// RMS reports whether norms are RMSNorm (without bias) instead of LayerNorm.
func (m *Model) RMS() bool { return !m.Family.LayerNorm }

// Rotary reports whether positions are rotary instead of learned. Setting RopeTheta
// makes GPT-2 and OPT rotary too; their config.json cannot express that.
func (m *Model) Rotary() bool { return !m.Family.Learned || m.RopeTheta > 0 }

// Gated reports whether the feed-forward is gated: SwiGLU or, by Activation, GeGLU.
func (m *Model) Gated() bool { return !m.Family.Ungated }

// Mixture reports whether the feed-forward is a choice among experts.
func (m *Model) Mixture() bool { return m.Family.Mixture || m.Family.MayMix && m.Experts > 0 }

// NormsExperts reports whether the router, the experts and the feed-forward beside them each read the residual stream through a norm of their
// own, what the latter two compute is normalised before it is added up, and each expert's weight is multiplied by a number of its own,
// which is trained: Gemma 4.
func NormsExperts(m *Model) bool { return m.Family.Apart && m.Experts > 0 }

// OneNorm reports whether attention and feed-forward read the same norm of the residual stream.
func (m *Model) OneNorm() bool { return m.Parallel && m.Family.OneNorm }

// HeadBias reports whether the head has a bias.
func (m *Model) HeadBias() bool { return m.Family.HeadBias && !Classifies(m) }

// FusedQKV reports whether one matrix makes queries, keys and values.
func (m *Model) FusedQKV() bool { return m.Family.FusedQKV }

// FusedGate reports whether one matrix makes gate and up.
func (m *Model) FusedGate() bool { return m.Family.FusedGate }

// InOut reports whether matrices of layers are stored [in, out] instead of [out, in].
func (m *Model) InOut() bool { return m.Family.InOut }

// PosOffset returns the number of rows of the position table before position 0.
func (m *Model) PosOffset() int { return m.Family.Offset }

// WindowOf returns the window of a layer; 0: none.
func (m *Model) WindowOf(layer int) int {
	if m.Sliding != nil && !m.Sliding[layer%len(m.Sliding)] {
		return 0
	}
	return m.Window
}

// Local reports whether a layer's rotary base is LocalTheta.
func (m *Model) Local(layer int) bool { return m.LocalTheta > 0 && m.WindowOf(layer) > 0 }

// HasRotary reports whether a layer has rotary positions.
func (m *Model) HasRotary(layer int) bool {
	return m.Rotary() && (m.NoRotary == nil || !m.NoRotary[layer%len(m.NoRotary)])
}

// RotaryDim returns how many of a head's columns rotary positions rotate, in layers with a base of their own (see Local) or in the
// others.
func (m *Model) RotaryDim(local bool) int {
	if m.Latent.Some() {
		return m.Latent.Turned
	}
	size := m.HeadDim
	if !local && m.Global.HeadDim > 0 {
		size = m.Global.HeadDim
	}
	if m.RotaryPct > 0 {
		return int(float64(size) * m.RotaryPct)
	}
	return size
}

// ScoreScale returns what attention's scores are multiplied by.
func (m *Model) ScoreScale() float64 {
	if a := m.Multipliers.Attention; a > 0 {
		return a
	}
	if m.QueryScalar > 0 {
		return 1 / math.Sqrt(m.QueryScalar)
	}
	gain := 1.0
	if s := m.RopeScaling; s != nil && s.AllDim != 0 && s.Factor > 1 { // DeepSeek's, of queries and of keys
		gain = 0.1*s.AllDim*math.Log(s.Factor) + 1
	}
	return gain * gain / math.Sqrt(float64(m.HeadDim))
}

// QKVCols returns the total width of query, key and value heads.
func (m *Model) QKVCols() int { return (m.Heads + 2*m.KVHeads) * m.HeadDim }

// Multipliers are constants by which a model multiplies what it computes; 0: not at all.
type Multipliers struct {
	Embedding float64
	Residual  float64 // of what attention and feed-forward add to the residual stream
	Attention float64 // of scores, instead of the factor that QueryScalar gives
	Logits    float64 // divide the logits
}

func (x Multipliers) sane() bool {
	for _, f := range []float64{x.Embedding, x.Residual, x.Attention, x.Logits} {
		if x != (Multipliers{}) && !(f > 1e-6 && f < 1e6) {
			return false
		}
	}
	return true
}

// Stream returns the factor by which operators hold the residual stream scaled in memory, so that what is added
// to it need not be scaled: s + r*f(norm(s)) is r times t + f(norm(t)) with t = s/r, provided that norm adds
// eps/r^2 instead of eps, and so on from layer to layer. The scaling begins with the embeddings and ends with
// the last norm.
func (m *Model) Stream() float64 { return 1 / cmp.Or(m.Multipliers.Residual, 1) }

// Param is one parameter tensor. Vectors have one row.
type Param struct {
	Name       string // Hugging Face name
	Rows, Cols int
	Layer      int  // -1: before the layers; Model.Layers: after them
	Vector     bool // one-dimensional in files, or one vector for each of the Experts; no weight decay
	Init       Init
	Std        float64 // of Normal
	Frozen     bool    // has no gradient and is not updated
	Row        bool    // is a vector that files have as a matrix of one row
	State      bool    // is no weight: a vector that is always frozen, of which all bits of fp32 count, see graph.StateRows
	Adapter    bool    // is a factor of an adapter, see LoRA
	Whole      bool    // is in an adapter's folder though it is no factor, as the tensor Parts
	FP8        bool    // is multiplied in FP8, see MultiplyFP8
	NF4        bool    // is held in 4 bits, see Model.Quantize
	Unit       float64 // of weights that are held in int8 as multiples of it, see HoldInt8; 0: they are not
	// Indivisible says that no plan divides the parameter among ranks or updates, see Model.Indivisible.
	Indivisible bool
	// Masked says that elements that are 0 stay so, whatever their gradients are: those that pruning has left (2405.03594).
	Masked bool
	// Kept is how many of its elements are not 0, if it is Masked and that is known; else 0.
	Kept int64
	// Experts is the number of matrices stacked one below the other. Files hold each as the tensors that Parts
	// names by formats of the expert's number. If Experts is 0 or Parts empty, the parameter is one tensor. The
	// factors of experts' adapters are one tensor each, named Parts.
	Experts int
	Parts   string // separated by spaces
	// Stacked says that files may also have all of the experts in one tensor, of the parameter's name.
	Stacked bool
	// Transposed says that files have the matrices of all experts in one tensor, or the first factor of the embedding, [in, out],
	// where operators have [out, in]. Interleaved says that this tensor, or the bias of each expert, has the outputs of
	// gate and up interleaved; operators have all gates first.
	Transposed, Interleaved bool
	// Heads says that files have rows (elements, of a vector) head by head: for each of that many heads its
	// queries, keys and values. Operators have all heads' queries first, then keys, then values. 0: no
	// difference.
	Heads int
	// Paired says that in each head of as many rows as Head, files have that many of the first rows in pairs: those that are rotated
	// together. Operators have the first of all pairs, then the second. 0: no difference.
	Paired, Head int
	PairedLast   bool // in files they are the last rows of each head instead of the first
	// Groups says that files have rows (elements, of a vector) group by group, in so many groups: operators have the first of the
	// Bands of all groups, then the second, and so on. 0: no difference.
	Groups int
	Bands  [4]Band
	// Taps says that the matrix is no linear operator's but a convolution's, which files have with an extent of 1 in the middle.
	Taps bool
	// Scalar says that files have the number without an extent.
	Scalar bool
	// Grown is by how many rows, or elements of a vector, the parameter is larger than in the model's own files, and Source
	// the name it has there if that is another's, see Files.
	Grown  int
	Source string
}

// Band is a range of the rows of a group.
type Band struct{ At, Rows int }

// Second reports whether a parameter is the second factor of an adapter, see LoRA.
func (p Param) Second() bool {
	return p.Adapter && (strings.HasSuffix(p.Name, loraB) || strings.HasSuffix(p.Name, embedB))
}

// ofExperts reports whether a parameter is the second factor of experts' adapters.
func (p Param) ofExperts() bool { return p.Second() && p.Experts > 0 }

// Init is the initialisation of a parameter.
type Init uint8

const (
	Normal Init = iota // with mean 0 and standard deviation Std
	Zeros
	Ones
	Filled  // with Std
	Lengths // those of the rows of another parameter, see DirectedBy
	Rates   // logarithms of numbers that are drawn evenly from 0.01 to 16
)

// Thin makes evenly many elements of values 0, so that as many are left as are Kept.
func (p *Param) Thin(values []float32) {
	if n := int64(len(values)); p.Kept > 0 {
		for i := range n {
			if i*p.Kept/n == (i+1)*p.Kept/n {
				values[i] = 0
			}
		}
	}
}

// Elems returns the number of elements.
func (p Param) Elems() int64 { return int64(p.Rows) * int64(p.Cols) }

// ParamCount returns the number of elements of all parameters; a tied head counts once.
func (m *Model) ParamCount() int64 {
	var n int64
	for _, p := range m.Params() {
		n += p.Elems()
	}
	return n
}

// MaxLayers and the other limits keep all products of sizes far from overflow.
const (
	MaxLayers  = 1 << 16
	maxWidth   = 1 << 20
	maxVocab   = 1 << 24
	maxLength  = 1 << 30
	maxExperts = 1 << 12
)

// Validate checks that the sizes are possible. The error names the field.
func (m *Model) Validate() error {
	bounds := []struct {
		name   string
		v, max int
	}{
		{"layers", m.Layers, MaxLayers}, {"width", m.Width, maxWidth}, {"heads", m.Heads, maxWidth},
		{"kv_heads", m.KVHeads, maxWidth}, {"head_dim", m.HeadDim, maxWidth}, {"feed_forward", m.FeedForward, maxWidth},
		{"vocabulary", m.Vocab, maxVocab}, {"max_positions", m.MaxPositions, maxLength},
	}
	for _, b := range bounds {
		if b.v < 1 || b.v > b.max {
			return fmt.Errorf("%s is %d; hint: it must be from 1 to %d", b.name, b.v, b.max)
		}
	}
	switch {
	case m.Heads%m.KVHeads != 0:
		return fmt.Errorf("%d heads cannot be divided evenly among %d key/value heads; hint: heads must be a multiple of kv_heads", m.Heads, m.KVHeads)
	case m.Heads*m.HeadDim > maxWidth:
		return fmt.Errorf("%d heads of size %d are too wide; hint: heads times head_dim must be at most %d", m.Heads, m.HeadDim, maxWidth)
	case !(m.RotaryPct >= 0 && m.RotaryPct <= 1):
		return fmt.Errorf("rotary_pct is %v; hint: it is a fraction of head_dim, from 0 to 1", m.RotaryPct)
	case m.Rotary() && (m.RotaryDim(true) < 2 || m.RotaryDim(true)%2 != 0):
		return fmt.Errorf("head_dim is %d, of which rotary positions rotate %d, which is odd or 0; hint: they rotate pairs, so use an even number", m.HeadDim, m.RotaryDim(true))
	case m.Mixture() && !(m.Experts >= 1 && m.Experts <= maxExperts && m.Active >= 1 && m.Active <= m.Experts):
		return fmt.Errorf("%d of %d experts for each token is out of range; hint: use at least 1 and at most all experts, of which there may be up to %d", m.Active, m.Experts, maxExperts)
	case !(m.Balance >= 0 && m.Balance <= 1) || m.Balance > 0 && m.Experts == 0:
		return fmt.Errorf("expert_balance is %v with %d experts; hint: use 0 to 1, usually 0.01, or 0 without experts", m.Balance, m.Experts)
	case m.Shared < 0 || m.Shared > maxWidth || m.Shared > 0 && !m.Mixture():
		return fmt.Errorf("the feed-forward that is shared beside experts is %d wide; hint: it must be from 1 to %d, or 0 for none, as without experts", m.Shared, maxWidth)
	case m.Family.MayMix && m.Experts > 0 && (m.Shared == 0 || m.Router != Router{} || m.Dense > 0):
		return fmt.Errorf("%s cannot have %d experts beside a feed-forward of %d; hint: give both, or neither", m.Family, m.Experts, m.Shared)
	case m.Router != (Router{}) && !m.Mixture() || m.Dense != 0 && !m.Mixture():
		return fmt.Errorf("%s has no experts, but a router or layers without experts; hint: leave both out", m.Family)
	case !(m.Router.Scale >= 0 && m.Router.Scale < 1e6):
		return fmt.Errorf("the weights of experts are multiplied by %v; hint: use a positive number, usually 1 to 3", m.Router.Scale)
	case m.Router.Groups < 0 || m.Router.Groups > 1 && !(m.Router.Groups <= 32 && m.Experts%m.Router.Groups == 0 && m.Experts/m.Router.Groups > 1 &&
		m.Router.Best > 0 && m.Router.Best <= m.Router.Groups && m.Active <= m.Router.Best*(m.Experts/m.Router.Groups)):
		return fmt.Errorf("%d of %d experts cannot be chosen from %d of %d groups; hint: there may be up to 32 groups of at least two experts, and those that are chosen must have enough", m.Active, m.Experts, m.Router.Best, m.Router.Groups)
	case m.Dense < 0 || m.Dense >= m.Layers && m.Dense > 0 || m.Dense > 0 && (m.DenseWidth < 1 || m.DenseWidth > maxWidth):
		return fmt.Errorf("%d of %d layers have a feed-forward of %d instead of experts; hint: at least one layer must have experts, and the width must be positive", m.Dense, m.Layers, m.DenseWidth)
	case m.Balance > 0 && m.Router.Sigmoid:
		return fmt.Errorf("expert_balance is %v, but %s scores each expert by itself, for which no such term is built; hint: set expert_balance to 0", m.Balance, m.Family)
	case !m.Mixture() && (m.Experts != 0 || m.Active != 0):
		return fmt.Errorf("%s has no experts, but experts is %d and active_experts %d; hint: leave both out, or use a family with experts, such as mixtral", m.Family, m.Experts, m.Active)
	case !(m.GateLimit >= 0 && m.GateLimit < 1e6 && m.GateAlpha >= 0 && m.GateAlpha < 1e6) || (m.GateLimit > 0) != (m.GateAlpha > 0) || m.GateLimit > 0 && m.Experts == 0:
		return fmt.Errorf("swiglu_limit %v and swiglu_alpha %v are out of range for %d experts; hint: both must be positive, usually 7 and 1.702", m.GateLimit, m.GateAlpha, m.Experts)
	case m.Family.Square && (m.KVHeads != m.Heads || m.Heads*m.HeadDim != m.Width):
		return fmt.Errorf("%s needs kv_heads = heads and heads*head_dim = width, but kv_heads is %d, heads %d, heads*head_dim %d*%d and width %d", m.Family, m.KVHeads, m.Heads, m.Heads, m.HeadDim, m.Width)
	case !(m.NormEps > 0 && m.NormEps < 1):
		return fmt.Errorf("norm epsilon is %v; hint: it must be between 0 and 1, usually 1e-5", m.NormEps)
	case m.Rotary() && !(m.RopeTheta > 0 && m.RopeTheta < 1e12):
		return fmt.Errorf("rope_theta is %v; hint: it must be positive and below 1e12, usually 1e4 or 5e5", m.RopeTheta)
	case !(m.LocalTheta >= 0 && m.LocalTheta < 1e12):
		return fmt.Errorf("the rotary base of layers with a window is %v; hint: it must be positive and below 1e12, usually 1e4", m.LocalTheta)
	case !(m.QueryScalar >= 0 && m.QueryScalar < 1e12):
		return fmt.Errorf("query_pre_attn_scalar is %v; hint: it must be positive and below 1e12, usually head_dim", m.QueryScalar)
	case !(m.ScoreCap >= 0 && m.ScoreCap < 1e6 && m.LogitCap >= 0 && m.LogitCap < 1e6):
		return fmt.Errorf("the soft caps of scores and logits are %v and %v; hint: use positive numbers below 1e6, usually 50 and 30, or 0 for none", m.ScoreCap, m.LogitCap)
	case !m.Multipliers.sane():
		return fmt.Errorf("the multipliers %+v are out of range; hint: use positive numbers below 1e6", m.Multipliers)
	case m.Sinks && m.Family.Tensors.Sinks == "":
		return fmt.Errorf("attention sinks are not supported for %s; hint: use a family derived from Llama", m.Family)
	case !(m.Neftune >= 0 && m.Neftune <= 1e6):
		return fmt.Errorf("neftune_alpha is %v; hint: use a positive number, usually 5 to 15, or 0 for no noise", m.Neftune)
	case m.Window < 0:
		return fmt.Errorf("window is %d tokens; hint: it must be positive, or 0 for none", m.Window)
	}
	if err := cmp.Or(m.Delta.check(m.Family), m.Conv.check(m.Family), m.Mamba.check(m.Family), m.Mup.check(m), checkHalves(m), m.Global.check(m), m.Latent.check(m), m.Lent.check(m), checkPerLayer(m)); err != nil {
		return err
	}
	return m.checkRope()
}
