package graph

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// Build returns the training graph of a model for sequences of seq tokens. dtype is
// the storage of activations and of the parameters that operators read: F32 or BF16.
// Sums, statistics and parameter gradients are fp32.
func Build(m *model.Model, seq int, dtype DType) (*Graph, error) {
	return BuildDocuments(m, seq, dtype, nil)
}

// BuildDocuments is Build with attention restricted to documents, if docs is not nil.
func BuildDocuments(m *model.Model, seq int, dtype DType, docs *Documents) (*Graph, error) {
	if err := check(m, seq, dtype); err != nil {
		return nil, err
	}
	if docs != nil && docs.Preference > 0 {
		if err := checkPairs(m, seq); err != nil {
			return nil, err
		}
	}
	if err := checkDistil(m, docs); err != nil {
		return nil, err
	}
	b := newBuilder(m, &Graph{Seq: seq, Documents: docs})
	b.forward(dtype)
	b.loss()
	b.differentiate()
	return b.g, b.g.checkInt8()
}

// BuildDecode returns the graph of generation: the forward pass of the next rows
// tokens of one sequence, up to the logits of each. The keys and values of earlier
// tokens are, per layer, in values of kind Cache with room for context tokens.
func BuildDecode(m *model.Model, context, rows int, dtype DType) (*Graph, error) {
	return Generation{Context: context, Rows: rows}.Build(m, dtype)
}

// BuildPrefill returns the graph that reads a prompt: like BuildDecode's, but it only fills the caches. What follows the
// last of these is not computed. Segments read the parameters that they read in BuildDecode's graph, so that both have the
// same chunks.
func BuildPrefill(m *model.Model, context, rows int, dtype DType) (*Graph, error) {
	return Generation{Context: context, Rows: rows, Reads: true}.Build(m, dtype)
}

// Generation describes a graph of generation.
type Generation struct {
	Context int  // capacity of the caches in tokens of a sequence
	Slots   int  // in sequences; 0: there is one, which has no number
	Rows    int  // tokens of a step
	Reads   bool // the tokens are consecutive ones of a prompt, and only fill the caches. Else, with Slots, each has a sequence of its own
	Last    bool // the tokens are consecutive ones of a prompt, the last of which alone has logits
}

// Build returns the graph.
func (n Generation) Build(m *model.Model, dtype DType) (*Graph, error) {
	if err := check(m, n.Context, dtype); err != nil {
		return nil, err
	}
	if n.Rows < 1 || n.Rows > n.Context && (n.Slots == 0 || n.Reads) {
		return nil, fmt.Errorf("%d tokens cannot be read at once with a context of %d; hint: read at least 1, and at most the context", n.Rows, n.Context)
	}
	b := newBuilder(m, &Graph{Seq: n.Rows, Context: n.Context, Slots: n.Slots})
	b.places = Value{Name: "pos", Kind: Scalars, DType: I32, Rows: 1, Cols: 1}
	if n.Slots > 0 {
		b.places.Cols = 2
	}
	if n.Slots > 0 && !n.Reads && n.Rows > 1 { // a name of its own, since it is larger than that of other programs
		b.places.Name, b.places.Rows = fmt.Sprintf("pos%d", n.Rows), n.Rows
	}
	b.forward(dtype)
	b.g.Last = n.Last
	if n.Reads {
		b.seg.Forward, b.g.Logits = nil, -1
		filling := m.Layers - m.Lent.Keys // layers that fill caches
		last := &b.g.Segments[filling].Forward
		*last = (*last)[:b.g.lastCached(*last)+1]
		for l := filling; l < m.Layers; l++ {
			b.g.Segments[1+l].Forward = nil
		}
	}
	return b.g, nil
}

// lastCached returns the last of the nodes that fills a cache.
func (g *Graph) lastCached(nodes []Node) (last int) {
	for i := range nodes {
		for _, u := range nodes[i].Args {
			if u.Value >= 0 && g.Values[u.Value].Kind == Cache {
				last = i
			}
		}
	}
	return last
}

func check(m *model.Model, seq int, dtype DType) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if seq < 1 {
		return fmt.Errorf("sequence_length is %d; hint: use at least 1", seq)
	}
	if s := m.RopeScaling; s != nil && s.Growth != 0 && seq > s.OriginalContext {
		return fmt.Errorf("sequence_length %d is beyond the context of %d tokens that %s was first trained with: that queries grow there is not built; hint: use at most %[2]d", seq, s.OriginalContext, m.Family)
	}
	if !m.Rotary() && seq > m.MaxPositions {
		return fmt.Errorf("sequence_length %d is longer than the model's %d learned positions; hint: use at most max_positions", seq, m.MaxPositions)
	}
	if err := model.CheckDistil(m); err != nil {
		return err
	}
	if _, ok := model.ActivationOf(m.Activation); !ok && !m.Family.XIELU {
		return fmt.Errorf("activation %q is not built; hint: use one of %s", m.Activation, strings.Join(model.ActivationNames(), ", "))
	}
	if dtype != F32 && dtype != BF16 {
		return fmt.Errorf("activations cannot be stored as %v; hint: use f32 or bf16", dtype)
	}
	return nil
}

func newBuilder(m *model.Model, g *Graph) *builder {
	list := m.Params()
	g.Model, g.Params, g.held = m, stored(list), stored(list)
	g.Targets, g.Starts, g.Losses, g.Total, g.Scalars, g.Pos, g.Rope, g.LocalRope, g.Noise = -1, -1, -1, -1, -1, -1, -1, -1, -1
	g.Reference, g.Verdicts, g.Regressed, g.Ratios, g.Logits, g.TeacherIDs, g.TeacherLogs, g.SaidIDs, g.SaidLogs = -1, -1, -1, -1, -1, -1, -1, -1, -1
	act, _ := model.ActivationOf(m.Activation)
	return &builder{g: g, m: m, act: act, list: list, params: map[string]int{}, spread: map[int]bool{}, wide: map[int]bool{}, below: below{lent: map[int]Use{}}}
}

// forward appends all nodes up to the logits.
func (b *builder) forward(dtype DType) {
	b.g.DType = dtype
	b.inputs()
	x := b.embed()
	for l := range b.m.Layers {
		x = b.layer(l, x)
	}
	b.head(x)
}

// builder appends segments, nodes and values to a graph.
type builder struct {
	g      *Graph
	m      *model.Model
	act    model.Activation // of the feed-forward
	list   []model.Param    // in the order in which layers read them
	seg    *Segment
	params map[string]int // value of a parameter by name
	chunk  bool           // nodes appended now belong to the row-chunk loop
	places Value          // in generation: of Graph.Pos
	spread map[int]bool   // values of which each rank reads all columns for its slab: their gradients are sums over ranks
	pull   int            // with pairs: the derivative of the loss with respect to each token's loss
	// vocabParts is the number of ranks that share embedding and head; 0: none
	vocabParts int
	turn       int          // of nodes appended now
	lossParts  int          // with a vocabulary in parts: what losses need to know of each
	wide       map[int]bool // values whose gradients are added up in fp32, and then rounded
	below      below
}

func (b *builder) value(v Value) int {
	b.g.Values = append(b.g.Values, v)
	return len(b.g.Values) - 1
}

// tokens makes a per-token forward value.
func (b *builder) tokens(name string, cols int, dtype DType, cuts ...int) int {
	return b.value(Value{Name: name, Kind: Forwarded, DType: dtype, PerToken: true, Cols: cols, Cuts: cuts, Chunked: b.chunk})
}

func (b *builder) inputs() {
	g := b.g
	g.Tokens = b.value(Value{Name: "tokens", Kind: Input, DType: I32, PerToken: true, Cols: 1})
	if g.Context > 0 {
		g.Pos = b.value(b.places)
	} else {
		g.Targets = b.value(Value{Name: "targets", Kind: Input, DType: I32, PerToken: true, Cols: 1})
		g.Scalars = b.value(Value{Name: "scalars", Kind: Scalars, DType: F32, Rows: 1, Cols: NumScalars})
		g.Total = b.value(Value{Name: "loss.total", Kind: Total, DType: F64, Rows: 1, Cols: 1})
	}
	if g.Preference() > 0 {
		g.Reference = b.value(Value{Name: "reference", Kind: Input, DType: F32, PerToken: true, Cols: 1})
		if g.Documents.Pairs.Rule().Unpaired {
			g.Verdicts = b.value(Value{Name: "verdicts", Kind: Input, DType: F32, PerToken: true, Cols: 1})
		}
	}
	if g.Context == 0 && g.Preference() == 0 && b.m.Regression {
		g.Regressed = b.value(Value{Name: "values", Kind: Input, DType: F32, PerToken: true, Cols: 1})
	}
	if g.Context == 0 && model.Noisy(b.m) {
		g.Noise = b.value(Value{Name: "noise", Kind: Input, DType: I32, PerToken: true, Cols: 1})
	}
	if g.Context == 0 {
		teacherInputs(b)
	}
	if g.Documents != nil {
		g.Starts = b.value(Value{Name: "starts", Kind: Input, DType: I32, PerToken: true, Cols: 1})
	}
	if b.m.Rotary() {
		table := Value{Name: "rope", Kind: Constant, DType: F32, Rows: b.context(), Cols: b.m.RotaryDim(false)}
		g.Rope = b.value(table)
		if b.m.LocalTheta > 0 {
			table.Name, table.Cols = "rope.local", b.m.RotaryDim(true)
			g.LocalRope = b.value(table)
		}
	}
	for i, p := range g.Params {
		d := g.Stored(i)
		b.params[p.Name] = b.value(Value{Name: p.Name, Kind: ParamValue, DType: d.DType, Rows: d.Rows, Cols: d.Cols, Param: i, Params: 1})
	}
}

// context returns the number of positions.
func (b *builder) context() int {
	if b.g.Context > 0 {
		return b.g.Context
	}
	return b.g.Sequence()
}

// param returns the operand of a parameter, and records that the segment reads it.
func (b *builder) param(name string) Use {
	v := b.params[name]
	p := b.g.Values[v].Param
	for _, have := range b.seg.Params {
		if have == p {
			return b.all(v)
		}
	}
	b.seg.Params = append(b.seg.Params, p)
	return b.all(v)
}

func (b *builder) all(v int) Use { return Use{v, 0, b.g.Values[v].Cols} }

var absent = Use{Value: -1}

func (b *builder) node(op Op, attr Attr, args ...Use) {
	attr.Unit = b.g.unit(args)
	b.seg.Forward = append(b.seg.Forward, Node{Op: op, Attr: attr, Args: args, Chunked: b.chunk, Turn: b.turn})
}

func (b *builder) segment(name string, in int) {
	b.turn = 0
	b.g.Segments = append(b.g.Segments, Segment{Name: name, In: in, Out: -1, DIn: -1, DOut: -1})
	b.seg = &b.g.Segments[len(b.g.Segments)-1]
}

func (b *builder) embed() int {
	m, g := b.m, b.g
	b.segment("embed", -1)
	x := b.tokens("x0", m.Width, g.DType)
	wte, pos := absent, absent
	if name := b.list[0].Name; !inParts(b, name) {
		wte = b.param(name)
	}
	if !m.Rotary() {
		pos = b.param(b.list[1].Name)
	}
	attr := Attr{PosOffset: m.PosOffset()}
	switch k := cmp.Or(m.Multipliers.Embedding, 1) * cmp.Or(m.Mup.Embedding, 1) * m.Stream(); {
	case m.ScaledEmbed:
		attr.Scale = g.DType.Round(math.Sqrt(float64(m.Width)))
	case k != 1:
		attr.Scale = k
	}
	switch {
	case g.Context > 0:
		b.node(EmbedAt, attr, b.all(x), b.all(g.Tokens), wte, pos, b.all(g.Pos))
	case wte == absent:
		attr.Seq = g.Sequence()
		embedRows(b, attr, b.all(x), pos)
	default:
		attr.Seq = g.Sequence()
		b.node(Embed, attr, b.all(x), b.all(g.Tokens), wte, pos)
	}
	if b.vocabParts > 0 {
		b.reduce(x)
	}
	if table, up, ok := m.Factors(b.list[0].Name); ok {
		low := b.tokens("x0.low", m.LoRA.Rank, g.DType)
		if g.Context > 0 {
			b.node(EmbedAt, attr, b.all(low), b.all(g.Tokens), b.param(table), absent, b.all(g.Pos))
		} else {
			b.node(Embed, attr, b.all(low), b.all(g.Tokens), b.param(table), absent)
		}
		b.add(b.all(x), low, up, m.LoRA.Scale(b.list[0].Name))
	}
	jitter(b, x, attr.Scale)
	if m.PerLayer > 0 {
		perLayer(b, x, 1)
	}
	b.seg.Out = x
	return x
}

// add appends what an adapter adds to y: the second factor of the first one's result.
func (b *builder) add(y Use, low int, up string, scale float64) {
	if scale != 1 {
		b.node(Scale, Attr{Scale: scale}, b.all(low))
	}
	b.node(Linear, Attr{WT: true, Acc: true}, y, b.all(low), b.param(up), absent, absent)
}

// next iterates over the parameters of a layer in the order of model.Params, so that
// their names are written in one place only.
type next struct {
	b *builder
	i int
}

func (n *next) param() Use {
	u := n.b.param(n.b.list[n.i].Name)
	n.i++
	return u
}

// optional returns absent if the model does not have the parameter.
func (n *next) optional(has bool) Use {
	if !has {
		return absent
	}
	return n.param()
}

func (b *builder) layer(l, x int) int {
	m := b.m
	name := fmt.Sprintf("h%d", l)
	b.segment(name, x)
	p := &next{b: b}
	for b.list[p.i].Layer != model.LayerSharedBy(m, l) {
		p.i++
	}
	out := fmt.Sprintf("x%d", l+1)
	if len(m.Halves) > 0 {
		b.seg.Out = half(b, l, x, out, p)
		return b.seg.Out
	}
	n1 := b.read(name+".norm1", x, p)
	n2 := n1
	if m.Parallel && !m.OneNorm() { // here, so that in the backward pass x has the gradient of its sum before the norms add to it
		n2 = b.read(name+".norm2", x, p)
	}
	before := x // the stream that attention adds to
	if m.Mamba.HasLayer(l) && m.Mamba.Beside {
		before = b.project(name+".scanned", mamba(b, name, n1, p), p, m.Mamba.Bias, x)
	}
	mid := b.project(name+".mid", b.mix(l, n1, p), p, biased(m, l), before)
	if !m.Parallel {
		n2 = b.read(name+".norm2", mid, p)
	}
	if m.PerLayer > 0 {
		out = name + ".sum"
	}
	switch f, experts := model.FeedForwardOf(m, l); {
	case model.NormsExperts(m):
		b.seg.Out = (&mixture{b, p, name}).addNormed(out, n2, mid)
	case experts:
		b.seg.Out = (&mixture{b, p, name}).addTo(out, n2, mid)
	default:
		b.seg.Out = b.project(out, b.feedForward(l, n2, f, p), p, m.MLPBias, mid)
	}
	if m.PerLayer > 0 {
		b.seg.Out = addPerLayer(b, l, b.seg.Out, p)
	}
	if m.LayerScale {
		b.node(Scale, Attr{}, b.all(b.seg.Out), b.param(model.LayerScaleOf(m, l)))
	}
	return b.seg.Out
}

// half appends a layer that only mixes tokens or is only a feed-forward.
func half(b *builder, l, x int, out string, p *next) int {
	n, m := b.read(fmt.Sprintf("h%d.norm", l), x, p), b.m
	if model.HasMixer(m, l) {
		return b.project(out, b.mix(l, n, p), p, biased(m, l), x)
	}
	f, _ := model.FeedForwardOf(m, l)
	return b.project(out, b.feedForward(l, n, f, p), p, m.MLPBias, x)
}

// biased reports whether what mixes tokens in a layer is projected into the stream with a bias.
func biased(m *model.Model, l int) bool {
	if model.HasAttention(m, l) {
		return m.OutBias
	}
	return m.Mamba.HasLayer(l) && m.Mamba.Bias
}

// scaleBy multiplies columns by a constant, in place.
func scaleBy(b *builder, x Use, by float64) {
	if by != 1 {
		b.node(Scale, Attr{Scale: by}, x)
	}
}

// read appends the norm, if any, through which attention or feed-forward reads the residual
// stream.
func (b *builder) read(name string, x int, p *next) int {
	if !b.m.Norms.Before() {
		return x
	}
	y := b.norm(name, x, p)
	if b.g.Slabs > 0 {
		b.spread[y] = true
	}
	return y
}

// reduce adds up a value of which each of the ranks that share matrices has a term.
func (b *builder) reduce(y int) {
	if b.g.Slabs > 0 {
		b.node(AllReduce, Attr{}, b.all(y))
	}
}

// project appends y = x.w + bias + res or, with norms after attention and feed-forward,
// y = norm(x.w + bias) + res.
func (b *builder) project(name string, x int, p *next, bias bool, res int) int {
	m, g := b.m, b.g
	if !m.Norms.After() {
		y := b.tokens(name, m.Width, g.DType)
		b.linear(b.all(y), b.all(x), p, bias, b.all(res))
		b.reduce(y)
		return y
	}
	part := b.tokens(name+".part", m.Width, g.DType)
	b.linear(b.all(part), b.all(x), p, bias, absent)
	b.reduce(part)
	y := b.tokens(name, m.Width, g.DType)
	b.normTo(name+".norm", b.all(y), b.all(part), 0, m.NormEps, p, b.all(res))
	return y
}

// attention appends RoPE and a layer's attention, over the sequence or over a cache. It also returns the columns of gates.
func (b *builder) attention(l, qkv int, p *next) (o int, gates Use) {
	m, g, name := b.m, b.g, fmt.Sprintf("h%d", l)
	first, width := b.gates(), m.Heads*model.HeadDimOf(m, l)
	heads := Attr{Heads: m.Heads, KVHeads: model.KVHeadsOf(m, l), HeadDim: model.HeadDimOf(m, l)}
	if g.Context == 0 {
		heads.Seq = g.Seq
	}
	turned := heads
	if model.Borrows(m, l) {
		turned.KVHeads = 0
	}
	heads.Window, heads.Scale, heads.Limit = m.WindowOf(l), m.ScoreScale(), m.ScoreCap
	heads.Among = g.Among
	if heads.Window >= b.context() {
		heads.Window = 0
	}
	rope := g.Rope
	if m.Local(l) {
		rope = g.LocalRope
	}
	switch {
	case !m.HasRotary(l):
	case g.Context > 0:
		b.node(RoPEAt, turned, Use{qkv, first, g.Values[qkv].Cols}, b.all(rope), b.all(g.Pos))
	default:
		b.node(RoPE, turned, Use{qkv, first, g.Values[qkv].Cols}, b.all(rope))
	}
	if m.QKNorm == model.QKNormTurned {
		qkv = b.normQK(l, name+".qkv", qkv, p)
	}
	sinks := p.optional(m.Sinks)
	o, gates = b.tokens(name+".attn", width, g.DType), Use{qkv, 0, first}
	qkvs := Use{qkv, first, g.Values[qkv].Cols}
	if g.Context > 0 {
		kv := b.below.of(m, l, func() Use {
			return b.all(b.value(Value{Name: name + ".kv", Kind: Cache, DType: g.DType, Rows: 2 * heads.KVHeads * g.Context * max(g.Slots, 1), Cols: CacheCols(heads.HeadDim, m.CacheBits, g.DType)}))
		})
		if heads.CacheBits = m.CacheBits; g.Slots > 0 {
			heads.Seq = g.Context
		}
		b.node(AttentionAt, heads, trimmed(b.all(o), kv, qkvs, b.all(g.Pos), sinks)...)
		return o, gates
	}
	lse := b.tokens(name+".lse", m.Heads, F32)
	starts := absent
	if g.Documents != nil {
		heads.Document, starts = g.Documents.Length, b.all(g.Starts)
	}
	b.node(Attention, heads, trimmed(b.all(o), b.all(lse), Use{qkv, first, first + width}, b.below.of(m, l, func() Use { return Use{qkv, first + width, qkvs.Hi} }), starts, sinks)...)
	return o, gates
}

// trimmed leaves out trailing operands that are absent.
func trimmed(args ...Use) []Use {
	for args[len(args)-1] == absent {
		args = args[:len(args)-1]
	}
	return args
}

// linear appends y = x.w + bias + res, where weight and bias are the next parameters,
// and what an adapter adds to it.
func (b *builder) linear(y, x Use, p *next, bias bool, res Use) {
	w := p.param()
	weight := &b.g.Params[b.g.ParamOf(w.Value)]
	if name, ok := model.MagnitudeOf(b.m, weight.Name); ok {
		directed(b, y, x, w, p.optional(bias), res, name)
		return
	}
	b.node(Linear, Attr{WT: !b.m.InOut(), NF4: weight.NF4, FP8: weight.FP8}, y, x, w, p.optional(bias), res)
	b.adapter(weight.Name, y, x)
}

// adapter appends what the adapter of a weight, if it has one, adds to y = x.w.
func (b *builder) adapter(weight string, y, x Use) {
	if down, up, ok := b.m.Factors(weight); ok {
		v := &b.g.Values[y.Value]
		low := b.tokens(v.Name+".low"+part(v, y), b.m.LoRA.Of(weight).Rank, b.g.DType)
		x = dropped(b, v.Name+".kept"+part(v, y), x, down)
		b.node(Linear, Attr{WT: true}, b.all(low), x, b.param(down), absent, absent)
		b.add(y, low, up, b.m.LoRA.Scale(weight))
	}
}

// part returns the number of the part of a value that some of its columns are.
func part(v *Value, u Use) string { return strconv.Itoa(1 + slices.Index(v.Cuts, u.Lo)) }

// qkv appends what makes a layer's queries, keys and values, and their norms.
func (b *builder) qkv(l, x int, p *next) int {
	m, name := b.m, fmt.Sprintf("h%d", l)
	q, kv := m.Heads*model.HeadDimOf(m, l), model.KVHeadsOf(m, l)*model.HeadDimOf(m, l)
	if m.FusedQKV() {
		v := b.tokens(name+".qkv", q+2*kv, b.g.DType, q)
		b.linear(b.all(v), b.all(x), p, m.QKVBias, absent)
		return v
	}
	cuts := []int{q, q + kv}
	if model.Borrows(m, l) {
		v := b.tokens(name+".qkv", q, b.g.DType)
		b.linear(b.all(v), b.all(x), p, m.QKVBias, absent)
		return b.normQK(l, name, v, p)
	}
	if b.gates() > 0 {
		cuts, q = []int{q, 2 * q, 2*q + kv}, 2*q
	}
	ends := []int{q, q + kv, q + 2*kv} // of what each weight makes
	if model.KeysAreValues(m, l) {
		cuts, ends = cuts[:1], ends[:2]
	}
	v, bands, from := b.tokens(name+".qkv", ends[len(ends)-1], b.g.DType, cuts...), []Use(nil), 0
	for _, end := range ends {
		bands, from = append(bands, Use{v, from, end}), end
	}
	if b.g.Slabs > 0 && b.g.alikeKeys() {
		b.linears(bands[:1], b.all(x), p, m.QKVBias)
		first := p.i
		b.linears(bands[1:], b.all(x), p, m.QKVBias)
		for _, param := range b.list[first:p.i] {
			b.g.partial[b.g.Values[b.params[param.Name]].Param] = true
		}
	} else {
		b.linears(bands, b.all(x), p, m.QKVBias)
	}
	if m.QKNorm == model.NoQKNorm || m.QKNorm == model.QKNormTurned {
		return v
	}
	return b.normQK(l, name, v, p)
}

func (b *builder) feedForward(l, x, f int, p *next) int {
	m, name := b.m, fmt.Sprintf("h%d", l)
	act := -1
	if m.Gated() {
		up := b.tokens(name+".up", 2*f, b.g.DType, f)
		if m.FusedGate() {
			b.linear(b.all(up), b.all(x), p, m.MLPBias, absent)
		} else {
			b.linears([]Use{{up, 0, f}, {up, f, 2 * f}}, b.all(x), p, m.MLPBias)
		}
		if k := &m.Mup; k.Some() {
			scaleBy(b, Use{up, 0, f}, k.Gates)
			scaleBy(b, Use{up, f, 2 * f}, k.Down) // as what is projected into the stream
		}
		act = b.tokens(name+".act", f, b.g.DType)
		b.node(SwiGLU, Attr{Act: b.act}, b.all(act), b.all(up))
		return act
	}
	up := b.tokens(name+".up", f, b.g.DType)
	b.linear(b.all(up), b.all(x), p, m.MLPBias, absent)
	act = b.tokens(name+".act", f, b.g.DType)
	activate(b, l, b.all(act), b.all(up), p)
	return act
}

// head appends the final norm and, by chunks of rows, the logits.
func (b *builder) head(x int) {
	m, g := b.m, b.g
	b.segment("head", x)
	p := &next{b: b}
	for b.list[p.i].Layer != m.Layers {
		p.i++
	}
	y := b.norm("final", x, p)
	b.spread[y] = b.vocabParts > 0
	if by := m.Multipliers.Logits; by > 0 && by != 1 { // here, since there are fewer numbers than in the logits
		b.node(Scale, Attr{Scale: 1 / by}, b.all(y))
	}
	scaleBy(b, b.all(y), cmp.Or(m.Mup.Head, 1))
	if g.Vocabulary.Parts > 1 {
		headParts(b, y)
		return
	}
	w := b.param(b.list[0].Name)
	if !m.Tied {
		b.seg.Params = b.seg.Params[:len(b.seg.Params)-1]
		w = p.param()
	}
	b.chunk = true
	g.Logits = logitsFor(b, "logits", model.Outcomes(m))
	b.node(Linear, Attr{WT: true}, b.logits(), b.all(y), w, p.optional(m.HeadBias()), absent)
	b.adapter(m.HeadName(), b.logits(), b.all(y))
	if m.LogitCap > 0 {
		b.node(SoftCap, Attr{Limit: m.LogitCap}, b.logits())
	}
	b.chunk = false
}

// logitsFor makes logits of so many tokens of the vocabulary.
func logitsFor(b *builder, name string, tokens int) int {
	if cols := rounded(tokens, b.g.DType); cols > tokens {
		return b.tokens(name, cols, b.g.DType, tokens)
	}
	return b.tokens(name, tokens, b.g.DType)
}

// rounded returns the length of rows of n elements padded to multiples of rowAlign bytes.
func rounded(n int, d DType) int {
	per := rowAlign / int(d.Size())
	return (n + per - 1) / per * per
}

// rowAlign is the alignment of rows of logits in bytes. Vocabularies may be odd, such as
// 50257, but fast GPU products need rows aligned to 16 bytes, and prefer whole sectors.
const rowAlign = 64

// logits returns the columns of the vocabulary; no operator touches the padding.
func (b *builder) logits() Use { return Use{b.g.Logits, 0, b.g.LogitColumns()} }

// loss appends the loss to the head's chunks of rows.
func (b *builder) loss() {
	g := b.g
	sayTop(b)
	if g.Preference() > 0 {
		b.preference()
		return
	}
	if g.TeacherIDs >= 0 {
		distil(b)
		return
	}
	b.chunk = true
	g.Losses = b.tokens("losses", 1, F32)
	args := []Use{b.all(g.Losses), b.logits(), b.all(g.Targets), b.all(g.Scalars)}
	if b.vocabParts > 0 {
		parts := b.tokens("losses.parts", 2*b.vocabParts, F32)
		b.node(LossPart, Attr{}, b.all(parts), b.logits(), b.all(g.Targets))
		b.reduce(parts)
		args = append(args, absent, b.all(parts))
	}
	if g.Vocabulary.Parts > 1 {
		args = append(args, absent, b.all(b.lossParts))
	}
	if g.Regressed >= 0 {
		args = append(args, absent, absent, b.all(g.Regressed))
	}
	b.node(CrossEntropy, Attr{Grad: true, Limit: b.m.LogitCap}, args...)
	b.node(LossSum, Attr{}, b.all(g.Total), b.all(g.Losses))
	b.chunk = false
}
