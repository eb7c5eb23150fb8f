package program

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Plan is everything that is decided about how ranks run a graph. It is a small
// JSON value that a person can read and edit; Lower turns it into the instructions
// of a rank without deciding anything more.
type Plan struct {
	// Model and the sizes below are what the plan was made for; a plan for
	// something else is refused.
	Model          string `json:"model"` // fingerprint, see Fingerprint
	SequenceLength int    `json:"sequence_length"`
	Precision      string `json:"precision"` // fp32 or bf16

	MicroBatch   int `json:"micro_batch"`   // sequences per micro-batch
	MicroBatches int `json:"micro_batches"` // per step
	// Group micro-batches run layer by layer together: 1 is depth-first
	// (plain accumulation), MicroBatches is breadth-first (layered gradient
	// accumulation, 2106.02679): each layer's weights come in once per pass.
	Group    int `json:"group"`
	HeadRows int `json:"head_rows"` // tokens whose logits exist at once

	Chunks []Chunk `json:"chunks"`
	// Cache bounds the bytes of weights that live on the host and are on the
	// device at once (Elixir's rCache; one block of a fixed size per chunk is a
	// special case); Prefetch is how many units ahead of its use a chunk is sent for.
	Cache    int64 `json:"cache_bytes"`
	Prefetch int   `json:"prefetch"`

	// Ranks run the step together. Data-parallel ones do the same with other
	// sequences; with Pipeline, they hold different segments.
	Ranks    int       `json:"ranks"`
	Pipeline *Pipeline `json:"pipeline,omitempty"`

	// Activations says per layer what of them is kept for the backward pass, what
	// waits in another tier and what is made again. Slots is how many layers'
	// activations come or go at once (MEMO's rounding buffers).
	Activations []Retention `json:"activations"`
	Slots       int         `json:"slots"`

	// State is how the optimizer's state is stored, see StateNames; empty is fp32.
	State string `json:"optimizer_state,omitempty"`
}

// How the optimizer's state may be stored. Unlike all else in a plan but the
// precision, it changes results: what is bf16 is rounded by chance after every step
// (see graph.Chance), in the mean to what it is in fp32.
//
//	fp32          weights and moments in fp32: 12 bytes for an element
//	bf16_moments  weights in fp32, moments in bf16: 8
//	bf16          everything in bf16: 4, and the weights are those that operators read
var states = [...]struct {
	name            string
	master, moments graph.DType
}{{"fp32", graph.F32, graph.F32}, {"bf16_moments", graph.F32, graph.BF16}, {"bf16", graph.BF16, graph.BF16}}

// StateNames are the choices of Plan.State, from most memory to least.
func StateNames() (list []string) {
	for _, s := range states {
		list = append(list, s.name)
	}
	return list
}

// StateTypes are the types that a Plan.State stores the weights that are updated in,
// and their moments.
func StateTypes(state string) (master, moments graph.DType) {
	for _, s := range states {
		if s.name == state {
			return s.master, s.moments
		}
	}
	return states[0].master, states[0].moments
}

// StateBytes are those of an element's moments, and of its weight where operators
// read another of the given type.
func StateBytes(state string, weights graph.DType) int64 {
	master, moments := StateTypes(state)
	n := 2 * moments.Size()
	if master != weights {
		n += master.Size()
	}
	return n
}

// Chunk is a run of consecutive parameters that move together. A frozen one has
// neither gradient nor state; what is said of them does not count.
type Chunk struct {
	First int `json:"first"` // parameters First..Last-1 in order of first use
	Last  int `json:"last"`
	// Weights is where the copy that operators read lives between uses; Grads
	// where the gradient waits for the optimizer; State where the optimizer's
	// moments live. Each is the same or further from the device than the one
	// before, except that resident weights may have their state anywhere.
	Weights device.Tier `json:"weights"`
	Grads   device.Tier `json:"grads"`
	State   device.Tier `json:"state"`
	// Update says what updates the chunk: nothing said, the processor of the tier
	// that its state is on, the host's cores where that is the disk; UpdateOnDevice,
	// the device, and state that lives elsewhere is streamed through it.
	Update string `json:"update,omitempty"`
	// Shard says what of the chunk is divided among the ranks that compute with
	// it, see Shardings.
	Shard string `json:"shard,omitempty"`
}

// UpdateOnDevice is a choice of Chunk.Update.
const UpdateOnDevice = "device"

// Shardings are the choices of Chunk.Shard, each with what stands before it:
//
//	(empty)  every rank has all of it and updates all of it
//	state    optimizer state and update (ZeRO-1): gradients are reduced once
//	         per step, weights are gathered after the update
//	grads    gradients too (ZeRO-2): reduced after every visit
//	weights  weights too (ZeRO-3): gathered before use
//
// The stages are those of Rajbhandari et al., 1910.02054.
func Shardings() []string { return shardings[:] }

var shardings = [...]string{"", "state", "grads", "weights"}

// ShardLevel is how much a sharding divides: its place in Shardings, or -1.
func ShardLevel(shard string) int { return slices.Index(shardings[:], shard) }

// Pipeline divides the segments among ranks.
type Pipeline struct {
	// Schedule is the order of work, by the names of package schedule.
	Schedule string `json:"schedule"`
	// Ranks of one pipeline. Plan.Ranks is a multiple: the others do the same
	// with other sequences. Rank r is the (r mod Ranks)-th of its pipeline.
	Ranks int `json:"ranks"`
	// Stages are the segments that each stage begins with, ascending, the first
	// 0; the schedule's placement says which rank has which stages.
	Stages []int `json:"stages"`
	Slices int   `json:"slices"` // of a sequence; 1 for most schedules
	// SliceRows are the tokens of each slice, multiples of graph.SliceUnit; empty:
	// as even as that allows.
	SliceRows []int `json:"slice_rows,omitempty"`
	// Order, if given, is the schedule's orders in its own notation, one line
	// per rank: those of a search, or of the schedules that depend on times.
	Order []string `json:"order,omitempty"`
}

// PadElems is what the elements of a chunk's records on disk are padded to a
// multiple of, so that they start and end on disk sectors.
const PadElems = 1024

// Hash identifies the plan: equal for equal plans of equal models, on whatever
// machine. It is 16 hexadecimal digits of the SHA-256 of its JSON.
func (pl *Plan) Hash() string {
	text, err := json.Marshal(pl)
	if err != nil {
		panic("program: plan: " + err.Error()) // all fields are numbers and words
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Agree checks that all ranks, in order, have the same hash of what they are
// about to do, and names one that has not.
func Agree(hashes []string) error {
	for r, h := range hashes {
		if h != hashes[0] {
			return fmt.Errorf("rank %d has plan %q, rank 0 has %q; hint: all ranks need the same plan.json, model, data and seed", r, h, hashes[0])
		}
	}
	return nil
}

// Layout cuts the parameters into chunks of at most elems elements (a larger
// parameter is a chunk by itself): runs of consecutive parameters that are
// used by the same segments, so that a chunk is wanted as a whole, and all
// trained or all frozen. Parameters whose gradients one operator makes stay
// together.
func Layout(g *graph.Graph, elems int64) []Chunk {
	users, glued := segmentsOf(g), glued(g)
	var list []Chunk
	var size int64
	for i, p := range g.Params {
		n := p.Elems()
		if i > 0 {
			c := &list[len(list)-1]
			if slices.Equal(users[i], users[i-1]) && p.Frozen == g.Params[i-1].Frozen && size+n <= elems || glued[i] {
				c.Last, size = i+1, size+n
				continue
			}
		}
		list = append(list, Chunk{First: i, Last: i + 1})
		size = n
	}
	return list
}

// glued says for each parameter whether one operator makes its gradient and that
// of the parameter before it: gain and bias of a norm.
func glued(g *graph.Graph) []bool {
	list := make([]bool, len(g.Params))
	for s := range g.Segments {
		for _, n := range g.Segments[s].Backward {
			last := -1
			for _, u := range n.Args {
				if u.Value < 0 || g.Values[u.Value].Kind != graph.ParamGrad {
					continue
				}
				if p := g.Values[u.Value].Param; p == last+1 && last >= 0 {
					list[p] = true
				}
				last = g.Values[u.Value].Param
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

// Fingerprint identifies what a graph computes: family, sizes, what is frozen.
func Fingerprint(g *graph.Graph) string {
	m := *g.Model
	scaling := ""
	if m.RopeScaling != nil {
		scaling = fmt.Sprintf(" rope%+v", *m.RopeScaling)
	}
	frozen := ""
	if len(m.Frozen) > 0 {
		names := sha256.Sum256([]byte(strings.Join(m.Frozen, "\n")))
		frozen = fmt.Sprintf(" frozen %d/%x", len(m.Frozen), names[:4])
	}
	return fmt.Sprintf("%s l%d d%d h%d/%d/%d f%d v%d p%d %s eps%g theta%g%s window%d tied%v bias%v/%v/%v%s", m.Family, m.Layers, m.Width,
		m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions, m.Activation, m.NormEps, m.RopeTheta, scaling,
		m.Window, m.Tied, m.QKVBias, m.OutBias, m.MLPBias, frozen)
}

// precisions are the storage types of activations and working weights.
var precisions = map[string]graph.DType{"fp32": graph.F32, "bf16": graph.BF16}

// Precision returns the element type that a precision stores activations in.
func Precision(name string) (graph.DType, error) {
	if t, ok := precisions[name]; ok {
		return t, nil
	}
	return 0, fmt.Errorf("unknown precision %q; hint: fp32 or bf16", name)
}

// maxInstrs bounds a program: beyond it a plan is a mistake (10^7 instructions
// are some gigabytes of program).
const maxInstrs = 10_000_000

// Validate checks that the plan is possible for the graph, field by field.
func (pl *Plan) Validate(g *graph.Graph) error {
	if fp := Fingerprint(g); pl.Model != fp {
		return fmt.Errorf("plan: it was made for another model\n  plan:  %s\n  model: %s\nhint: make a new plan, or leave `plan` out", pl.Model, fp)
	}
	if pl.SequenceLength != g.Seq {
		return fmt.Errorf("plan: sequence_length %d, but the run has %d; hint: make a new plan", pl.SequenceLength, g.Seq)
	}
	if t, err := Precision(pl.Precision); err != nil || t != g.DType {
		return fmt.Errorf("plan: precision %q, but the run has %v; hint: make a new plan", pl.Precision, g.DType)
	}
	if pl.State != "" && (pl.State == states[0].name || !slices.Contains(StateNames(), pl.State)) {
		return fmt.Errorf("plan: optimizer_state %q; hint: one of %v, or leave it out for %s", pl.State, StateNames()[1:], states[0].name)
	}
	if master, _ := StateTypes(pl.State); master != graph.F32 && g.DType != master {
		return fmt.Errorf("plan: optimizer_state %q, but operators read weights in %v; hint: precision bf16", pl.State, g.DType)
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
			return fmt.Errorf("plan: %s is %d; hint: from 1 to %d", f.name, f.v, f.max)
		}
	}
	if pl.MicroBatches%pl.Group != 0 {
		return fmt.Errorf("plan: group %d does not divide micro_batches %d; hint: 1, or all of them", pl.Group, pl.MicroBatches)
	}
	rows := pl.MicroBatch * g.Seq
	if rows > 1<<30 {
		return fmt.Errorf("plan: a micro-batch of %d tokens; hint: fewer sequences", rows)
	}
	if g.Seq%pl.HeadRows != 0 && pl.HeadRows%g.Seq != 0 {
		return fmt.Errorf("plan: head_rows %d; hint: a divisor or a multiple of sequence_length %d", pl.HeadRows, g.Seq)
	}
	// Sums over tokens keep their bits only if they are cut where the graph says.
	if !g.Takes(rows, rows*pl.MicroBatches) || !g.Takes(pl.HeadRows, rows) {
		return fmt.Errorf("plan: micro-batches of %d tokens, %d of them at a time in the head: sums in bf16 are cut at multiples of %d; hint: another micro_batch or head_rows", rows, pl.HeadRows, g.CutUnit())
	}
	if units := 40 * len(g.Segments) * pl.MicroBatches; units > maxInstrs {
		return fmt.Errorf("plan: about %d instructions; hint: larger micro-batches", units)
	}
	if err := pl.validateChunks(g); err != nil {
		return err
	}
	return pl.validateRanks(g)
}

func (pl *Plan) validateChunks(g *graph.Graph) error {
	at := 0
	users, glued := segmentsOf(g), glued(g)
	for i, c := range pl.Chunks {
		if c.First != at || c.Last <= c.First || c.Last > len(g.Params) {
			return fmt.Errorf("plan: chunk %d has parameters %d to %d, expected to start at %d of %d; hint: chunks cover all parameters in order", i, c.First, c.Last, at, len(g.Params))
		}
		for p := c.First; p < c.Last; p++ {
			if !slices.Equal(users[p], users[c.First]) {
				return fmt.Errorf("plan: chunk %d holds %s and %s, which are used by different layers; hint: a chunk for each", i, g.Params[c.First].Name, g.Params[p].Name)
			}
			if g.Params[p].Frozen != g.Params[c.First].Frozen {
				return fmt.Errorf("plan: chunk %d holds %s and %s, of which one is frozen; hint: a chunk for each", i, g.Params[c.First].Name, g.Params[p].Name)
			}
		}
		at = c.Last
		if i > 0 && glued[c.First] && pl.Ranks > 1 {
			return fmt.Errorf("plan: chunk %d begins with %s, whose gradient is made together with that of %s; hint: one chunk for both", i, g.Params[c.First].Name, g.Params[c.First-1].Name)
		}
		switch {
		case c.Weights > device.HostTier:
			return fmt.Errorf("plan: chunk %d: weights on %v; hint: device or host", i, c.Weights)
		case c.Grads > device.HostTier:
			return fmt.Errorf("plan: chunk %d: gradients on %v; hint: device or host", i, c.Grads)
		case c.State > device.DiskTier:
			return fmt.Errorf("plan: chunk %d: state on %v; hint: device, host or disk", i, c.State)
		case g.Params[c.First].Frozen:
		case c.Weights == device.HostTier && (c.Shard == "state" || c.Shard == "grads") && pl.Ranks > 1:
			return fmt.Errorf("plan: chunk %d: weights on the host are gathered through the device; hint: shard \"weights\", or none", i)
		case c.Update != "" && c.Update != UpdateOnDevice:
			return fmt.Errorf("plan: chunk %d: update %q; hint: %q, or leave it out for where the state is, the host's cores if that is on disk", i, c.Update, UpdateOnDevice)
		case c.Update != "" && c.State == device.DeviceTier:
			return fmt.Errorf("plan: chunk %d: update %q, but its state is on the device already; hint: leave update out", i, c.Update)
		case c.State == device.DeviceTier && (c.Weights != device.DeviceTier || c.Grads != device.DeviceTier):
			return fmt.Errorf("plan: chunk %d: state on the device needs weights and gradients there too; hint: all three on the device, or the state on the host", i)
		}
	}
	if at != len(g.Params) {
		return fmt.Errorf("plan: chunks cover %d of %d parameters; hint: chunks cover all parameters in order", at, len(g.Params))
	}
	if need := pl.CacheNeeded(g); pl.Cache < need || pl.Cache > 1<<60 {
		return fmt.Errorf("plan: cache_bytes is %d; hint: at least %d, the weights that one layer reads", pl.Cache, need)
	}
	if len(pl.Activations) != g.Model.Layers {
		return fmt.Errorf("plan: activations has %d entries for %d layers; hint: one for each layer", len(pl.Activations), g.Model.Layers)
	}
	for l, r := range pl.Activations {
		if err := r.check(); err != nil {
			return fmt.Errorf("plan: layer %d: %w", l, err)
		}
	}
	return nil
}

// Plain is the plan of someone who has all the memory: one micro-batch,
// everything on the device, nothing recomputed.
func Plain(g *graph.Graph, sequences int) *Plan {
	pl := &Plan{
		Model: Fingerprint(g), SequenceLength: g.Seq, Precision: "fp32",
		MicroBatch: sequences, MicroBatches: 1, Group: 1, HeadRows: sequences * g.Seq, Prefetch: 1, Slots: 2, Ranks: 1,
		Chunks: Layout(g, 1<<62),
	}
	if g.DType == graph.BF16 {
		pl.Precision = "bf16"
	}
	for range g.Model.Layers {
		pl.Activations = append(pl.Activations, Recomputed("none"))
	}
	return pl
}

const planHint = "; hint: a plan is the JSON that `athanor plan --out` writes"

// ParsePlan reads a plan.json strictly. Validate checks it against a graph.
func ParsePlan(text []byte) (*Plan, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	pl := Plan{Ranks: 1, Slots: 2}
	if err := d.Decode(&pl); err != nil {
		return nil, fmt.Errorf("plan: %w%s", err, planHint)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("plan: something follows after the closing brace" + planHint)
	}
	return &pl, nil
}

// CheckRecompute says what is wrong with a choice of recomputation, or nothing.
func CheckRecompute(choice string) string {
	if slices.Contains(Recomputations(), choice) {
		return ""
	}
	return fmt.Sprintf("recompute %q; hint: one of %v", choice, Recomputations())
}
