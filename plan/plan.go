// Package plan has the decisions about how ranks run a graph, as one value: how the batch is cut, where each chunk of
// weights, gradients and optimizer state lives, what is kept of activations, which rank holds which stage of a pipeline.
//
//	search --decides--> plan --lower--> program
//
// A plan can be read, edited and printed; Validate says whether it makes sense for a graph. Nothing here knows how it was
// found, nor how instructions are made from it.
package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// Plan holds every decision about how ranks run a graph. It is a small JSON value that
// a person can read and edit. Lower turns it into one rank's instructions without
// further decisions.
type Plan struct {
	// Model and the sizes below identify what the plan was made for; Validate rejects
	// it for anything else.
	Model          string `json:"model"` // fingerprint, see Fingerprint
	SequenceLength int    `json:"sequence_length"`
	Precision      string `json:"precision"` // fp32 or bf16

	MicroBatch   int `json:"micro_batch"`   // sequences per micro-batch
	MicroBatches int `json:"micro_batches"` // per step
	// Group is the number of micro-batches that run layer by layer together: 1 is
	// depth-first (plain accumulation), MicroBatches is breadth-first (layered gradient
	// accumulation, 2106.02679), where each layer's weights are fetched once per pass.
	Group    int `json:"group"`
	HeadRows int `json:"head_rows"` // tokens whose logits exist at the same time
	// FeedRows is the number of tokens whose feed-forward is computed at a time; left out, all of a micro-batch.
	FeedRows int `json:"feed_rows,omitempty"`

	Chunks []Chunk `json:"chunks"`
	// Cache bounds the bytes of non-resident weights that are on the device at once
	// (Elixir's rCache; fixed-size blocks of one chunk each are a special case).
	// Prefetch is how many units before its use a chunk's transfer may start.
	Cache    int64 `json:"cache_bytes"`
	Prefetch int   `json:"prefetch"`

	// Ranks run the step together. Data-parallel ranks run the same program on
	// different sequences; pipeline ranks hold different segments.
	Ranks    int       `json:"ranks"`
	Pipeline *Pipeline `json:"pipeline,omitempty"`
	// Sequence is the number of ranks that share each sequence (see graph.BuildPart): ranks 0 to Sequence-1 share the first
	// ones, and so on. A micro-batch then has a part of each of its sequences. Left out, ranks have whole sequences.
	Sequence int `json:"sequence,omitempty"`
	// Tensor is the number of ranks that share each matrix (see graph.BuildSlab): ranks 0 to Tensor-1 have the slabs of one model and
	// compute with the same sequences or parts of them, and so on. With Sequence, as many such groups share sequences. Left out, ranks have whole matrices.
	Tensor int `json:"tensor,omitempty"`

	// VocabularyParts is the number of parts of the rows of embedding and head, of which one at a time is on the device (see
	// graph.BuildVocabulary). Left out, they are whole.
	VocabularyParts int `json:"vocabulary_parts,omitempty"`

	// Exchange says what ranks that share sequences exchange: with ExchangeHeads each attends to whole sequences with some heads. Left out,
	// each attends with its tokens, and keys and values travel.
	Exchange string `json:"exchange,omitempty"`
	// KVParts is the number of parts of its heads in which ranks that share sequences exchange what a layer's attention reads, one after the
	// other; left out, one.
	KVParts int `json:"kv_parts,omitempty"`
	// KVEager lets gradients of keys and values that other ranks send arrive while attention goes on with the next part, each in a buffer of
	// its own. Left out, each is added before the next arrives.
	KVEager bool `json:"kv_eager,omitempty"`

	// Activations is each layer's activation policy: what is kept, swapped or
	// recomputed. Slots is the number of layers whose activations are in transfer at
	// once (MEMO's rounding buffers).
	Activations []Retention `json:"activations"`
	Slots       int         `json:"slots"`

	// Optimizer is the rule of the updates; left out, it is AdamW.
	Optimizer optimizer.Optimizer `json:"optimizer,omitzero"`

	// State is the storage format of the optimizer state, see StateFormat; absent is
	// fp32.
	State StateFormat `json:"optimizer_state,omitempty"`

	// Batches are, in generation, the sequences whose caches are apart, each as many as the graph has slots. Micro-batches of one
	// are consecutive: one that generates, or one for each sequence whose prompt is read. Left out, there is one, on the device.
	Batches []Batch `json:"batches,omitempty"`

	// Defer leaves the updates of chunks whose gradients wait on the host for the norm to
	// the next step, which makes them while its forward pass begins, see deferred.
	Defer bool `json:"defer,omitempty"`
}

// Chunk is a run of consecutive parameters that move together. A frozen chunk has
// neither gradient nor state; the fields about them are ignored.
type Chunk struct {
	First int `json:"first"` // parameters First..Last-1 in the graph's order
	Last  int `json:"last"`
	// Weights is the tier of the copy that operators read, between uses, the disk only in generation; Grads the tier
	// where the gradient waits for the optimizer; State the tier of the optimizer's
	// moments. State on the device requires weights and gradients there, too.
	Weights device.Tier `json:"weights"`
	Grads   device.Tier `json:"grads"`
	State   device.Tier `json:"state"`
	// Update selects the processor that updates the chunk. Empty is the processor of
	// the tier that holds the state (for the disk: the host's cores). UpdateOnDevice is
	// the device; state that lives elsewhere is streamed through it. Indivisible parameters are updated there in any case.
	Update string `json:"update,omitempty"`
	// Lookup says whose cores look up rows of a table (see graph.Table) that is on the host: LookupOnHost, or, if it is empty, the
	// device, to which the whole chunk is then sent.
	Lookup string `json:"lookup,omitempty"`
	// Compact says that weights, waiting gradients and state have only the elements that a mask keeps, see graph.MaskLine; the device expands
	// weights where operators read them.
	Compact bool `json:"compact,omitempty"`
	// Shard says what of the chunk is sharded over the ranks that compute with it, see
	// Shardings.
	Shard string `json:"shard,omitempty"`
}

// LookupOnHost is a value of Chunk.Lookup.
const LookupOnHost = "host"

// Rule returns the rule by which a chunk is updated.
func (pl *Plan) Rule(g *graph.Graph, c int) *optimizer.Rule {
	return pl.Optimizer.For(g.Params[pl.Chunks[c].First].Indivisible)
}

// UpdateOnDevice is a value of Chunk.Update.
const UpdateOnDevice = "device"

// Shardings returns the values of Chunk.Shard; each includes those before it:
//
//	(empty)  every rank holds and updates everything
//	state    optimizer state and update (ZeRO-1): gradients are reduced once
//	         per step, weights are gathered after the update
//	grads    gradients too (ZeRO-2): reduced after every visit
//	weights  weights too (ZeRO-3): gathered before use
//
// The stages are those of Rajbhandari et al., 1910.02054.
func Shardings() []string { return shardings[:] }

var shardings = [...]string{"", "state", "grads", "weights"}

// ShardLevel returns the index of a sharding in Shardings, or -1.
func ShardLevel(shard string) int { return slices.Index(shardings[:], shard) }

// Pipeline divides the segments among ranks.
type Pipeline struct {
	// Schedule is the order of work, by the names of package schedule.
	Schedule string `json:"schedule"`
	// Ranks is the size of one pipeline and divides Plan.Ranks: the other pipelines run
	// the same program on other sequences. Rank r is the (r mod Ranks)-th of its
	// pipeline.
	Ranks int `json:"ranks"`
	// Stages holds each stage's first segment, ascending from 0. The schedule's
	// placement says which rank has which stages.
	Stages []int `json:"stages"`
	Slices int   `json:"slices"` // slices per sequence; 1 for most schedules
	// SliceRows holds the tokens of each slice, multiples of graph.SliceUnit. Empty: as
	// even as possible.
	SliceRows []int `json:"slice_rows,omitempty"`
	// Order, if given, replaces the schedule's order, in its own notation, one line per
	// rank: for orders found by a search, or of schedules that depend on times.
	Order []string `json:"order,omitempty"`
}

// PadElems is the multiple to which a chunk's records on disk are padded, in elements,
// so that they start and end on disk sectors; of moments in 8 bits it is four times as many.
const PadElems = 1024

// Hash identifies the plan: equal plans of equal models hash alike on any machine. It
// is 16 hexadecimal digits of the SHA-256 of the plan's JSON.
func (pl *Plan) Hash() string {
	text, err := json.Marshal(pl)
	if err != nil {
		panic("program: plan: " + err.Error()) // cannot fail: all fields are numbers and strings
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Layout cuts the parameters into chunks of at most elems elements; a larger parameter
// is a chunk by itself. A chunk is a list of consecutive parameters that are used by the
// same segments, so that it is needed as a whole, and that are all trained or all
// frozen, all indivisible or none, all in int8 or none, and all shared by ranks or none. Runs stay together (see Runs). All other parameters begin at multiples of 64
// bytes, as buffers do: a GPU library may add in another order if operands are aligned
// differently.
func Layout(g *graph.Graph, elems int64) []Chunk {
	users, within := segmentsOf(g), Runs(g)
	var list []Chunk
	var size int64
	for i := range g.Params {
		n := g.Stored(i).Elems()
		if i > 0 {
			c := &list[len(list)-1]
			if within[i] || mayShareChunk(g, users, i) && size+n <= elems && aligned(g, i-1, size) {
				c.Last, size = i+1, size+n
				continue
			}
		}
		list = append(list, Chunk{First: i, Last: i + 1})
		size = n
	}
	return list
}

// mayShareChunk reports whether parameter i and its predecessor may be in one chunk.
func mayShareChunk(g *graph.Graph, users [][]int, i int) bool {
	return g.Table(i) == g.Table(i-1) && g.Vocabulary.Part(i) == g.Vocabulary.Part(i-1) && slices.Equal(users[i], users[i-1]) && g.Params[i].Frozen == g.Params[i-1].Frozen && g.Params[i].Indivisible == g.Params[i-1].Indivisible && g.Divided(i) == g.Divided(i-1) && g.Terms(i) == g.Terms(i-1) && g.Stored(i).DType == g.Stored(i-1).DType
}

// aligned reports whether n elements, of which those of parameter i are the last, end at a multiple of 64 bytes.
func aligned(g *graph.Graph, i int, n int64) bool { return n*g.Stored(i).DType.Size()%64 == 0 }

// Runs reports for each parameter whether it is in a run with its predecessor. Runs consist of consecutive
// vectors, which are small, and of parameters that one operator reads as one or whose gradients one operator
// computes. A run is in one chunk under every plan, and sums over its elements treat it as one parameter.
func Runs(g *graph.Graph) []bool {
	users, within := segmentsOf(g), glued(g)
	var size int64 // of the run so far
	for i := range g.Params {
		vectors := i > 0 && g.Params[i-1].Vector && g.Params[i].Vector
		if within[i] = within[i] || vectors && mayShareChunk(g, users, i) && aligned(g, i-1, size); !within[i] {
			size = 0
		}
		size += g.Stored(i).Elems()
	}
	return within
}

// glued reports for each parameter whether one operator needs it and its predecessor in one chunk: the weights of
// queries, keys and values, say, or the gain and bias of a norm, whose gradients are computed together.
func glued(g *graph.Graph) []bool {
	list := make([]bool, len(g.Params))
	for i := range g.Values {
		if v := &g.Values[i]; v.Kind == graph.ParamValue {
			for k := 1; k < v.Params; k++ {
				list[v.Param+k] = true
			}
		}
	}
	for s := range g.Segments {
		for _, n := range g.Segments[s].Backward {
			last := -1
			for _, u := range n.Args {
				if u.Value < 0 || g.Values[u.Value].Kind != graph.ParamGrad {
					continue
				}
				v := &g.Values[u.Value]
				if v.Param == last+1 && last >= 0 {
					list[v.Param] = true
				}
				last = v.Param + v.Params - 1
			}
		}
	}
	return list
}

// segmentsOf lists for each parameter the segments that read it.
func segmentsOf(g *graph.Graph) [][]int {
	users := make([][]int, len(g.Params))
	for s := range g.Segments {
		for _, p := range g.Segments[s].Params {
			users[p] = append(users[p], s)
		}
	}
	return users
}

// Fingerprint identifies what a graph computes: family, sizes, frozen parameters, adapters, the loss of pairs.
func Fingerprint(g *graph.Graph) string {
	m := *g.Model
	frozen := ""
	if len(m.Frozen) > 0 {
		names := sha256.Sum256([]byte(strings.Join(m.Frozen, "\n")))
		frozen = fmt.Sprintf(" frozen %d/%x", len(m.Frozen), names[:4])
	}
	if l := m.LoRA; l != nil {
		names := sha256.Sum256([]byte(strings.Join(l.Weights, "\n")))
		scale := ""
		if s := l.Scale(""); s != 1 {
			scale = fmt.Sprintf("*%v", s)
		}
		if l.DoRA {
			scale += " dora"
		}
		if l.Dropout > 0 {
			scale += fmt.Sprintf(" dropout%v", l.Dropout)
		}
		if len(l.Own) > 0 { // printed in the order of names
			own := sha256.Sum256(fmt.Append(nil, l.Own))
			scale += fmt.Sprintf(" own %d/%x", len(l.Own), own[:4])
		}
		frozen += fmt.Sprintf(" lora %d%s of %d/%x", l.Rank, scale, len(l.Weights), names[:4])
		for _, more := range []struct {
			what  string
			names []string
		}{{"whole", l.Whole}, {"kept", l.Kept}, {"rows", l.Rows}} {
			if len(more.names) > 0 {
				names := sha256.Sum256([]byte(strings.Join(more.names, "\n")))
				frozen += fmt.Sprintf(" %s %d/%x", more.what, len(more.names), names[:4])
			}
		}
	}
	if m.NF4 {
		frozen += " nf4"
	}
	if m.FP8 {
		frozen += " fp8"
	}
	if m.Int8 {
		frozen += " int8"
	}
	if len(m.Largest) > 0 { // from which units follow; printed in the order of names
		units := sha256.Sum256(fmt.Append(nil, m.Largest))
		frozen += fmt.Sprintf(" units %x", units[:4])
	}
	if d := m.Distil; d != (model.Distil{}) {
		frozen += fmt.Sprintf(" distill%d temperature%v weight%v", d.Top, d.Temperature, d.Weight)
	}
	if a := m.Asked; a != (model.Asked{}) {
		frozen += fmt.Sprintf(" asked for %d temperature%v", a.Top, a.Temperature)
	}
	if m.Neftune > 0 {
		frozen += fmt.Sprintf(" neftune%v", m.Neftune)
	}
	if m.CacheBits > 0 {
		frozen += fmt.Sprintf(" caches in %d bits", m.CacheBits)
	}
	if m.Shares > 0 {
		frozen += fmt.Sprintf(" shared by %d", m.Shares)
	}
	if m.Files != (model.Files{}) {
		frozen += fmt.Sprintf(" from v%d tied%v", m.Files.Vocab, m.Files.Tied)
	}
	if m.Experts > 0 {
		frozen += fmt.Sprintf(" experts %d/%d normed%v balance%g", m.Active, m.Experts, m.NormedRoute, m.Balance)
		if m.Shared > 0 || m.SharedGate {
			frozen += fmt.Sprintf(" shared%d/%v", m.Shared, m.SharedGate)
		}
		if model.NormsExperts(&m) {
			frozen += " apart"
		}
		if m.Router != (model.Router{}) || m.Dense > 0 || m.DenseWidth > 0 {
			frozen += fmt.Sprintf(" router%v dense%d/%d", m.Router, m.Dense, m.DenseWidth)
		}
		if m.GateLimit > 0 {
			frozen += fmt.Sprintf(" gates%g*%g", m.GateLimit, m.GateAlpha)
		}
	}
	if beta := g.Preference(); beta > 0 {
		frozen += fmt.Sprintf(" preference %g", beta)
		if d := g.Documents; d.Pairs != graph.DPO {
			frozen += fmt.Sprintf(" by %v margin%g", d.Pairs, d.Margin)
		}
	}
	return fmt.Sprintf("%s l%d d%d h%d/%d/%d f%d v%d p%d %s eps%g theta%g%s window%d%s tied%v bias%v/%v/%v%s", m.Family, m.Layers, m.Width,
		m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions, m.Activation, m.NormEps, m.RopeTheta, ropeScaling(m.RopeScaling),
		m.Window, choices(&m), m.Tied, m.QKVBias, m.OutBias, m.MLPBias, frozen)
}

// ropeScaling names how rotary positions are scaled.
func ropeScaling(s *model.RopeScaling) string {
	if s == nil {
		return ""
	}
	text := fmt.Sprintf(" rope{Type:%s Factor:%v LowFreqFactor:%v HighFreqFactor:%v OriginalContext:%d}", s.Type, s.Factor, s.LowFreqFactor, s.HighFreqFactor, s.OriginalContext)
	if s.AllDim != 0 {
		text += fmt.Sprintf(" scores%v", s.AllDim)
	}
	if s.Share != 0 {
		text += fmt.Sprintf(" of %v", s.Share)
	}
	if s.Growth != 0 {
		text += fmt.Sprintf("+%v", s.Growth)
	}
	if s.Attention != 0 {
		lists := sha256.Sum256(fmt.Append(nil, s.Unrounded, s.Short, s.Long))
		text += fmt.Sprintf("*%v/%x", s.Attention, lists[:4])
	}
	return text
}

// choices lists the settings that few models have, each only if it is set.
func choices(m *model.Model) (s string) {
	for _, c := range []struct {
		name  string
		value any
	}{
		{"sliding", m.Sliding}, {"local", m.LocalTheta}, {"global", m.Global}, {"lent", m.Lent}, {"perlayer", m.PerLayer}, {"value_norm", m.ValueNorm}, {"layer_scale", m.LayerScale}, {"qknorm", m.QKNorm}, {"norms", m.Norms}, {"offset", m.UnitOffset},
		{"scaled", m.ScaledEmbed}, {"scalar", m.QueryScalar}, {"rotary", m.RotaryPct},
		{"unturned", m.NoRotary}, {"parallel", m.Parallel}, {"multipliers", m.Multipliers}, {"scorecap", m.ScoreCap}, {"logitcap", m.LogitCap},
		{"outgate", m.OutGate}, {"delta", m.Delta}, {"conv", m.Conv}, {"mamba", m.Mamba}, {"mup", m.Mup}, {"halves", m.Halves}, {"latent", m.Latent}, {"labels", len(m.Labels)}, {"regression", m.Regression},
	} {
		if !reflect.ValueOf(c.value).IsZero() {
			s += fmt.Sprintf(" %s%v", c.name, c.value)
		}
	}
	return s
}

// precisions maps names to the storage type of activations and working weights.
var precisions = map[string]graph.DType{"fp32": graph.F32, "bf16": graph.BF16}

// Precision returns the element type in which the named precision stores activations.
func Precision(name string) (graph.DType, error) {
	if t, ok := precisions[name]; ok {
		return t, nil
	}
	return 0, fmt.Errorf("unknown precision %q; hint: use fp32 or bf16", name)
}

// maxInstrs bounds a program: a plan that exceeds it is a mistake (10^7 instructions
// take gigabytes).
const maxInstrs = 10_000_000

// Validate checks field by field that the plan is feasible for the graph.
func (pl *Plan) Validate(g *graph.Graph) error {
	if fp := Fingerprint(g); pl.Model != fp {
		return fmt.Errorf("plan: the plan was made for another model\n  plan:  %s\n  model: %s\nhint: make a new plan, or leave `plan` out", pl.Model, fp)
	}
	if pl.SequenceLength != g.Sequence() {
		return fmt.Errorf("plan: sequence_length %d, but the run has %d; hint: make a new plan, or set sequence_length: %[1]d", pl.SequenceLength, g.Sequence())
	}
	if pl.Parts() != g.Parts() {
		return fmt.Errorf("plan: %d ranks share each sequence, but in the run it is %d; hint: make a new plan", pl.Parts(), g.Parts())
	}
	if pl.Sharers() != g.Shared() {
		return fmt.Errorf("plan: %d ranks share each matrix, but in the run it is %d; hint: make a new plan", pl.Sharers(), g.Shared())
	}
	if err := pl.validateVocabulary(g); err != nil {
		return err
	}
	switch t, err := Precision(pl.Precision); {
	case err != nil:
		return fmt.Errorf("plan: %w", err)
	case t != g.DType:
		return fmt.Errorf("plan: precision %q, but the run has %v; hint: make a new plan, or set precision: %[1]s", pl.Precision, g.DType)
	}
	if master, _ := pl.State.Types(); master != graph.F32 && g.DType != master {
		return fmt.Errorf("plan: optimizer_state %q stores weights in %v, but operators read them in %v; hint: use precision bf16 or another optimizer_state", pl.State, master, g.DType)
	}
	if pl.State == PackedMoments && (!pl.Optimizer.Rule().Elementwise || pl.Sharers() > 1) {
		return fmt.Errorf("plan: optimizer_state %q is for parameters that are updated element by element and that no ranks share; hint: use another optimizer_state", pl.State)
	}
	for _, f := range []struct {
		name   string
		v, max int
	}{
		{"micro_batch", pl.MicroBatch, 1 << 20}, {"micro_batches", pl.MicroBatches, 1 << 20},
		{"group", pl.Group, max(pl.MicroBatches, 1)}, {"head_rows", pl.HeadRows, 1 << 30}, {"prefetch", pl.Prefetch, 1 << 20},
		{"slots", pl.Slots, 1 << 20},
	} {
		if f.v < 1 || f.v > f.max {
			return fmt.Errorf("plan: %s is %d; hint: use a number from 1 to %d", f.name, f.v, f.max)
		}
	}
	if pl.MicroBatches%pl.Group != 0 {
		return fmt.Errorf("plan: group %d does not divide micro_batches %d; hint: set group to 1 or to another divisor of micro_batches", pl.Group, pl.MicroBatches)
	}
	rows := pl.MicroBatch * g.Seq
	if rows > 1<<30 {
		return fmt.Errorf("plan: a micro-batch of %d tokens is too large, at most %d are possible; hint: use a smaller micro_batch", rows, 1<<30)
	}
	if g.Seq%pl.HeadRows != 0 && pl.HeadRows%g.Seq != 0 {
		return fmt.Errorf("plan: head_rows %d does not fit the sequences; hint: use a divisor or a multiple of the %d tokens of a sequence on each rank", pl.HeadRows, g.Seq)
	}
	// Sums over tokens, which generation has none of, keep their bits only if they are cut where the graph requires.
	if g.Context == 0 && !(g.Takes(rows, rows*pl.MicroBatches) && g.Takes(pl.HeadRows, rows)) {
		return fmt.Errorf("plan: micro-batches of %d tokens with head_rows %d: sums over tokens in bf16 can be divided only at multiples of %d tokens; hint: use another micro_batch or head_rows", rows, pl.HeadRows, g.CutUnit())
	}
	if n := pl.FeedRows; n < 0 || n > 0 && (g.Seq%n != 0 && n%g.Seq != 0 || g.Context == 0 && !g.Takes(n, rows)) {
		return fmt.Errorf("plan: feed_rows %d does not fit the sequences; hint: use a divisor or a multiple of the %d tokens of a sequence on each rank, and a multiple of %d", n, g.Seq, g.CutUnit())
	}
	if err := pl.validateExchange(g); err != nil {
		return err
	}
	if !g.DividesHeads(pl.KVParts) && (g.Parts() > 1 || !graph.SplitsHeads(g, pl.KVParts)) { // one rank's are only cut, to be compared with several
		return fmt.Errorf("plan: the key and value heads cannot be exchanged in %d parts; hint: use a divisor of the heads of every layer, or leave kv_parts out", pl.KVParts)
	}
	if units := 40 * len(g.Segments) * pl.MicroBatches; units > maxInstrs {
		return fmt.Errorf("plan: a step would have about %d instructions, at most %d are possible; hint: use fewer, larger micro-batches", units, maxInstrs)
	}
	if !pl.Optimizer.Rule().Elementwise && !g.Model.Indivisible {
		return fmt.Errorf("plan: %v updates matrices as a whole, and this graph was built for an optimizer that does not; hint: leave out optimizer", pl.Optimizer)
	}
	// The gradient of a shared parameter is a sum over layers, then tokens, only if all tokens pass each layer before the next.
	if g.Model.Shares > 0 && (pl.Group != pl.MicroBatches || pl.Pipeline != nil) {
		return fmt.Errorf("plan: layers share parameters, but group is %d of %d micro-batches; hint: set group to micro_batches, without a pipeline", pl.Group, pl.MicroBatches)
	}
	if pl.Defer && pl.Pipeline != nil {
		return errors.New("plan: updates cannot be deferred in a pipeline; hint: leave out defer")
	}
	if err := pl.validateBatches(g); err != nil {
		return err
	}
	if err := pl.validateChunks(g); err != nil {
		return err
	}
	return pl.validateRanks(g)
}

func (pl *Plan) validateChunks(g *graph.Graph) error {
	at := 0
	users, within := segmentsOf(g), Runs(g)
	for i, c := range pl.Chunks {
		if c.First != at || c.Last <= c.First || c.Last > len(g.Params) {
			return fmt.Errorf("plan: chunk %d has first %d and last %d, but must begin at parameter %d and end within the model's %d; hint: let the chunks cover all parameters in order", i, c.First, c.Last, at, len(g.Params))
		}
		for p := c.First; p < c.Last; p++ {
			if !slices.Equal(users[p], users[c.First]) || g.Vocabulary.Part(p) != g.Vocabulary.Part(c.First) {
				return fmt.Errorf("plan: chunk %d holds %s and %s, which are used by different layers; hint: give each a chunk of its own", i, g.Params[c.First].Name, g.Params[p].Name)
			}
			if g.Params[p].Frozen != g.Params[c.First].Frozen {
				return fmt.Errorf("plan: chunk %d holds %s and %s, of which only one is frozen; hint: give each a chunk of its own", i, g.Params[c.First].Name, g.Params[p].Name)
			}
			if g.Divided(p) != g.Divided(c.First) || g.Terms(p) != g.Terms(c.First) {
				return fmt.Errorf("plan: chunk %d holds %s and %s, which ranks share in different ways; hint: give each a chunk of its own", i, g.Params[c.First].Name, g.Params[p].Name)
			}
			if g.Params[p].Indivisible != g.Params[c.First].Indivisible {
				return fmt.Errorf("plan: chunk %d holds %s and %s, of which %v updates only one as a whole; hint: give each a chunk of its own", i, g.Params[c.First].Name, g.Params[p].Name, pl.Optimizer)
			}
		}
		at = c.Last
		if within[c.First] {
			return fmt.Errorf("plan: chunk %d begins with %s, which cannot be separated from %s; hint: put both into one chunk", i, g.Params[c.First].Name, g.Params[c.First-1].Name)
		}
		if err := errors.Join(pl.validateTiers(g, i), pl.validateCompact(g, i)); err != nil {
			return err
		}
	}
	if at != len(g.Params) {
		return fmt.Errorf("plan: the chunks cover %d of %d parameters; hint: let the chunks cover all parameters in order", at, len(g.Params))
	}
	if need := pl.CacheNeeded(g); pl.Cache < need || pl.Cache > 1<<60 {
		return fmt.Errorf("plan: cache_bytes is %d; hint: use at least %d, the size of the weights that one layer reads", pl.Cache, need)
	}
	if len(pl.Activations) != g.Model.Layers {
		return fmt.Errorf("plan: activations has %d entries for %d layers; hint: give one for each layer", len(pl.Activations), g.Model.Layers)
	}
	for l, r := range pl.Activations {
		if err := r.check(); err != nil {
			return fmt.Errorf("plan: layer %d: %w", l, err)
		}
	}
	return nil
}

// validateTiers checks where chunk i is and who updates it.
func (pl *Plan) validateTiers(g *graph.Graph, i int) error {
	c := &pl.Chunks[i]
	switch {
	case c.Weights > device.DiskTier, c.Weights == device.DiskTier && g.Context == 0:
		return fmt.Errorf("plan: chunk %d: weights cannot be on %v; hint: use device or host", i, c.Weights)
	case c.Weights == device.DiskTier && c.Shard != "":
		return fmt.Errorf("plan: chunk %d: shard %q with weights on the disk; hint: leave out shard", i, c.Shard)
	case c.Grads > device.HostTier:
		return fmt.Errorf("plan: chunk %d: gradients cannot be on %v; hint: use device or host", i, c.Grads)
	case c.State > device.DiskTier:
		return fmt.Errorf("plan: chunk %d: state cannot be on %v; hint: use device, host or disk", i, c.State)
	case c.Lookup != "" && (c.Lookup != LookupOnHost || c.Weights != device.HostTier || c.Shard != ""):
		return fmt.Errorf("plan: chunk %d: lookup %q with weights on %v and shard %q; hint: use %q with weights on the host and no shard, or leave it out", i, c.Lookup, c.Weights, c.Shard, LookupOnHost)
	case c.Lookup != "" && !c.Tables(g):
		return fmt.Errorf("plan: chunk %d: lookup, but %s is trained or is read by more than the embedding; hint: leave out lookup", i, g.Params[c.First].Name)
	case g.Params[c.First].Frozen:
	case c.Weights == device.HostTier && (c.Shard == "state" || c.Shard == "grads") && pl.Ranks > 1:
		return fmt.Errorf("plan: chunk %d: shard %q with weights on the host, which are gathered through the device; hint: use shard \"weights\", or leave it out", i, c.Shard)
	case c.Update != "" && c.Update != UpdateOnDevice:
		return fmt.Errorf("plan: chunk %d: update cannot be %q; hint: use %q, or leave it out to update where the state is (on the host's cores if the state is on disk)", i, c.Update, UpdateOnDevice)
	case c.Update != "" && c.State == device.DeviceTier:
		return fmt.Errorf("plan: chunk %d: update %q, but its state is on the device already; hint: leave out update", i, c.Update)
	case c.State == device.DeviceTier && (c.Weights != device.DeviceTier || c.Grads != device.DeviceTier):
		return fmt.Errorf("plan: chunk %d: state on the device needs weights and gradients there too; hint: put all three on the device, or the state on the host", i)
	}
	return nil
}

// validateCompact checks that chunk i can be stored without what is 0.
func (pl *Plan) validateCompact(g *graph.Graph, i int) error {
	c := &pl.Chunks[i]
	_, moments := pl.State.Types()
	why := ""
	switch {
	case !c.Compact:
	case !c.Sparse(g):
		why = "no parameter of it is known to have zeros that stay"
	case pl.Ranks > 1:
		why = fmt.Sprintf("there are %d ranks", pl.Ranks)
	case !pl.Rule(g, i).Elementwise:
		why = fmt.Sprintf("%v updates its matrices as a whole", pl.Optimizer)
	case moments != graph.F32:
		why = fmt.Sprintf("optimizer_state %v rounds each element by its number", pl.State)
	}
	if why != "" {
		return fmt.Errorf("plan: chunk %d: compact, but %s; hint: leave out compact", i, why)
	}
	return nil
}

// Sparse reports whether a chunk is smaller without what is 0.
func (c *Chunk) Sparse(g *graph.Graph) bool {
	for i := c.First; i < c.Last; i++ {
		if _, less := graph.Kept(g, i); less {
			return true
		}
	}
	return false
}

// Tables reports whether all parameters of a chunk are tables, see graph.Table.
func (c *Chunk) Tables(g *graph.Graph) bool {
	for i := c.First; i < c.Last; i++ {
		if !g.Table(i) {
			return false
		}
	}
	return true
}

// Plain returns the plan for unlimited memory: one micro-batch, everything on the
// device, nothing recomputed. It is for one rank, or for those that share a sequence or matrices.
func Plain(g *graph.Graph, sequences int) *Plan {
	pl := &Plan{
		Model: Fingerprint(g), SequenceLength: g.Sequence(), Precision: "fp32",
		MicroBatch: sequences, MicroBatches: 1, Group: 1, HeadRows: sequences * g.Seq, Prefetch: 1, Slots: 2, Ranks: g.Parts() * g.Shared(),
		Chunks: Layout(g, 1<<62),
	}
	if n := g.Parts(); n > 1 {
		pl.Sequence = n
	}
	if n := g.Shared(); n > 1 {
		pl.Tensor = n
	}
	pl.VocabularyParts = g.Vocabulary.Parts
	if g.DType == graph.BF16 {
		pl.Precision = "bf16"
	}
	for range g.Model.Layers {
		pl.Activations = append(pl.Activations, Recomputed("none"))
	}
	return pl
}

const planHint = "; hint: a plan is the JSON that `athanor plan --out` writes"

// Parse reads a plan.json strictly. Validate checks it against a graph.
func Parse(text []byte) (*Plan, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	pl := Plan{Ranks: 1, Slots: 2}
	if err := d.Decode(&pl); err != nil {
		if strings.Contains(err.Error(), "hint:") {
			return nil, fmt.Errorf("plan: %w", err)
		}
		return nil, fmt.Errorf("plan: %w%s", err, planHint)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("plan: there is more text after the closing brace" + planHint)
	}
	return &pl, nil
}

// CheckRecompute returns an error message for an invalid recomputation choice, or "".
func CheckRecompute(choice string) string {
	if slices.Contains(Recomputations(), choice) {
		return ""
	}
	return fmt.Sprintf("unknown recompute %q; hint: use one of %s", choice, strings.Join(Recomputations(), ", "))
}
