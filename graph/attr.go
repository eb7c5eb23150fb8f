package graph

import "github.com/athanor-llm/athanor/model"

// Attr holds an operator's constants; each operator reads the few that its
// row in the table names. Zero means absent and is not printed.
type Attr struct {
	Acc       bool // Sum operands are added to
	WT        bool // weight is stored [out, in]
	Score     bool // CrossEntropy: the loss of a row is minus the target's logit
	Grad      bool // CrossEntropy, Distil: writes the gradient over the logits
	Inverse   bool // RoPE backwards
	NF4       bool // weight is stored in 4 bits per number
	FP8       bool // Linear, LinearDX: both matrices are rounded to E4M3, see fp8.go
	Normed    bool // Route: weights add up to 1
	Sigmoid   bool // Route: experts are scored by themselves
	Slots     bool // ExpertLinear: x has slots
	Masked    bool // updates: a weight that is 0 stays so, and its moments become 0
	Act       model.Activation
	Seq       int     // rows per sequence
	Row0      int     // position of the operands' first row, if they start inside a sequence
	Heads     int     // H; in RMSNorm the groups of a row
	KVHeads   int     // G
	HeadDim   int     // S
	Experts   int     // matrices in w
	Groups    int     // Route: experts are in so many groups of consecutive ones; 0: one
	Best      int     // Route: groups that those of a token are from
	Window    int     // a query sees the last Window keys, itself included; 0: all
	Document  int     // with starts: length of documents in cost estimates, see Documents; changes no result
	Among     int     // ranks that share each sequence, see BuildPart, before the lowering has divided attention into slices; 0: not shared
	PosOffset int     // rows of wpe before position 0 (OPT: 2)
	Cut       int     // LinearDW, ExpertDW in bf16: tokens are added in groups of at most this; 0: 2
	Param     int     // index of the updated parameter; Drop, Jitter: number of the mask
	Vocab     int     // Embed, EmbedBwd: tokens of the vocabulary, of which the table has some; 0: it has all
	First     int     // index in that parameter of the operands' first element; LossPart, CrossEntropy, Embed, EmbedBwd: in the vocabulary, of the first logit or row
	CacheBits int     // AttentionAt: of a number in the cache, 4 or 8, see CacheGroup; 0: they are of the cache's type
	Scale     float64 // Distil, TopLogs: the temperature
	Unit      float64 // of int8 weights, which are multiples of it; 0: the operator reads none
	Limit     float64 // SwiGLU: bound on gates and ups; attention, SoftCap, CrossEntropy, Distil: soft bound on scores or logits; TimeSteps: upper bound; 0: none
	Least     float64 // TimeSteps: lower bound, with Limit as the upper one
	Alpha     float64 // with Limit: factor of the gates inside the sigmoid; Route: factor of the weights; 0: 1
	PairLoss  int     // Preference: a PairLoss
	Margin    float64 // Preference: of SimPO
	Eps       float64
	Rate      float64 // Drop: probability of 0; Distil: weight of the teacher
	Clip      float64
	Beta1     float64
	Beta2     float64
	Decay     float64
	// UnitOffset makes the gains of RMSNorm 1 + g (Gemma).
	UnitOffset bool
}

// AttrField accesses one field of Attr by its name in text.
type AttrField struct {
	Name string
	Ptr  func(*Attr) any // *bool, *int, *float64 or *model.Activation
}

// AttrFields are all of them.
var AttrFields = []AttrField{
	{"acc", func(a *Attr) any { return &a.Acc }},
	{"wt", func(a *Attr) any { return &a.WT }},
	{"score", func(a *Attr) any { return &a.Score }},
	{"grad", func(a *Attr) any { return &a.Grad }},
	{"inverse", func(a *Attr) any { return &a.Inverse }},
	{"nf4", func(a *Attr) any { return &a.NF4 }},
	{"fp8", func(a *Attr) any { return &a.FP8 }},
	{"masked", func(a *Attr) any { return &a.Masked }},
	{"slots", func(a *Attr) any { return &a.Slots }},
	{"sigmoid", func(a *Attr) any { return &a.Sigmoid }},
	{"normed", func(a *Attr) any { return &a.Normed }},
	{"act", func(a *Attr) any { return &a.Act }},
	{"seq", func(a *Attr) any { return &a.Seq }},
	{"row0", func(a *Attr) any { return &a.Row0 }},
	{"heads", func(a *Attr) any { return &a.Heads }},
	{"kv_heads", func(a *Attr) any { return &a.KVHeads }},
	{"head_dim", func(a *Attr) any { return &a.HeadDim }},
	{"experts", func(a *Attr) any { return &a.Experts }},
	{"groups", func(a *Attr) any { return &a.Groups }},
	{"best", func(a *Attr) any { return &a.Best }},
	{"window", func(a *Attr) any { return &a.Window }},
	{"document", func(a *Attr) any { return &a.Document }},
	{"among", func(a *Attr) any { return &a.Among }},
	{"pos_offset", func(a *Attr) any { return &a.PosOffset }},
	{"cut", func(a *Attr) any { return &a.Cut }},
	{"param", func(a *Attr) any { return &a.Param }},
	{"vocab", func(a *Attr) any { return &a.Vocab }},
	{"first", func(a *Attr) any { return &a.First }},
	{"cache_bits", func(a *Attr) any { return &a.CacheBits }},
	{"scale", func(a *Attr) any { return &a.Scale }},
	{"unit", func(a *Attr) any { return &a.Unit }},
	{"limit", func(a *Attr) any { return &a.Limit }},
	{"least", func(a *Attr) any { return &a.Least }},
	{"alpha", func(a *Attr) any { return &a.Alpha }},
	{"pair_loss", func(a *Attr) any { return &a.PairLoss }},
	{"margin", func(a *Attr) any { return &a.Margin }},
	{"eps", func(a *Attr) any { return &a.Eps }},
	{"rate", func(a *Attr) any { return &a.Rate }},
	{"clip", func(a *Attr) any { return &a.Clip }},
	{"beta1", func(a *Attr) any { return &a.Beta1 }},
	{"beta2", func(a *Attr) any { return &a.Beta2 }},
	{"decay", func(a *Attr) any { return &a.Decay }},
	{"unit_offset", func(a *Attr) any { return &a.UnitOffset }},
}
