package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Act is a class of the values that a layer saves for its backward pass, by the cost of
// recomputing them.
type Act uint8

const (
	InputAct     Act = iota // the layer's input: everything else can be recomputed from it
	AttentionAct            // attention's output and softmax denominators: most of the arithmetic at long sequences
	LinearAct               // outputs of matrix products
	LightAct                // outputs of norms, activation functions and routers: memory-bound, not compute-bound
	NumActs
)

var acts = [...]string{"input", "attention", "linear", "light"}

func (a Act) String() string { return acts[a] }

// actOf returns the class of an operator's output.
func actOf(op graph.Op) Act {
	switch op {
	case graph.Attention, graph.ShortConv, graph.DeltaRule, graph.StateScan:
		return AttentionAct
	case graph.LayerNorm, graph.RMSNorm, graph.Gain, graph.Act, graph.XIELU, graph.SwiGLU, graph.Gate, graph.Decay, graph.TimeSteps, graph.Route, graph.HeadCols:
		return LightAct
	}
	return LinearAct
}

// Saved returns the bytes that a layer saves for its backward pass, by class, for the
// given number of tokens.
func Saved(g *graph.Graph, layer, rows int) (bytes [NumActs]int64) {
	seg := &g.Segments[1+layer]
	for _, v := range seg.Saved {
		val := &g.Values[v]
		bytes[ActOfValue(seg, v)] += int64(rows) * int64(val.Cols) * val.DType.Size()
	}
	return bytes
}

// actOfValue returns the class of a value that a layer saves.
func ActOfValue(seg *graph.Segment, v int) Act {
	if v == seg.In {
		return InputAct
	}
	maker := slices.IndexFunc(seg.Forward, func(n graph.Node) bool { return n.Writes(v) })
	return actOf(seg.Forward[maker].Op)
}

// Fate is the activation policy of a class between the forward and the backward pass.
// The first Share of each micro-batch's tokens waits in Tier; the rows of the others
// are recomputed just before use. On the device, Share is 1 (kept) or 0 (recomputed).
type Fate struct {
	Tier  device.Tier
	Share float64
}

// Kept and Remade are the two policies that need no link.
var (
	Kept   = Fate{device.DeviceTier, 1}
	Remade = Fate{device.DeviceTier, 0}
)

// Swapped reports whether any row leaves the device.
func (f Fate) Swapped() bool { return f.Tier != device.DeviceTier && f.Share > 0 }

func (f Fate) String() string {
	switch {
	case f == Kept:
		return "kept"
	case f.Share == 0:
		return "recomputed"
	case f.Share == 1:
		return f.Tier.String()
	}
	return f.Tier.String() + " " + strconv.FormatFloat(f.Share, 'g', -1, 64)
}

func parseFate(s string) (Fate, error) {
	switch s {
	case "kept":
		return Kept, nil
	case "recomputed", "remade": // the latter in plans of earlier versions
		return Remade, nil
	}
	name, share, partial := strings.Cut(s, " ")
	t, err := device.ParseTier(name)
	if err != nil || t == device.DeviceTier {
		return Fate{}, fmt.Errorf("cannot be %q; hint: use kept, recomputed, host or disk, the last two also with a share of the tokens, such as `host 0.5`", s)
	}
	f := Fate{t, 1}
	if partial {
		if f.Share, err = strconv.ParseFloat(share, 64); err != nil || !(f.Share > 0 && f.Share <= 1) {
			return Fate{}, fmt.Errorf("cannot be %q; hint: use a share of the tokens above 0 and at most 1", s)
		}
	}
	return f, nil
}

// Retention is a layer's activation policy by class. As text it is one of the names of
// Recomputations, or the classes that are not kept, such as
//
//	input host, attention host, linear host 0.4375, light recomputed
//
// The policy of MEMO (2407.12117, section 4.1) swaps all of input and attention, and
// one share of the rest.
type Retention [NumActs]Fate

// retentions lists the named policies, which swap nothing.
//
//	none      everything is kept
//	light     cheap values are recomputed
//	attention all but the input and attention's output, which costs most at
//	          long sequences
//	full      all but the input
var retentions = []struct {
	name string
	keep Retention
}{
	{"none", Retention{Kept, Kept, Kept, Kept}},
	{"light", Retention{Kept, Kept, Kept, Remade}},
	{"attention", Retention{Kept, Kept, Remade, Remade}},
	{"full", Retention{Kept, Remade, Remade, Remade}},
}

// Recomputations returns the names of the policies that only keep and recompute, from
// least work to least memory.
func Recomputations() []string {
	var list []string
	for _, r := range retentions {
		list = append(list, r.name)
	}
	return list
}

// SlicesTake lists the names of the policies allowed where sequences are sliced: those that
// swap nothing and keep keys and values, which later slices read. Where keys and values are
// results of norms (Qwen3), only "none" qualifies, and so where the backward pass needs neither of a layer (with adapters behind its attention
// only): attention would be repeated.
func SlicesTake(g *graph.Graph) []string {
	seg := &g.Segments[1]
	attends := func(n graph.Node) bool { return n.Op == graph.Attention }
	for l := range g.Model.Layers {
		for _, n := range Recomputed("light").RepeatedNodes(&g.Segments[1+l]) {
			if attends(*n) {
				return []string{"none"}
			}
		}
	}
	i := slices.IndexFunc(seg.Forward, attends)
	if i < 0 || ActOfValue(seg, seg.Forward[i].Args[graph.AttentionKV].Value) != LightAct {
		return []string{"none", "light"}
	}
	return []string{"none"}
}

// Recomputed returns the named policy. It panics on other names.
func Recomputed(name string) Retention {
	i := slices.Index(Recomputations(), name)
	return retentions[i].keep
}

// SwapOf returns the policy that swaps input, attention's output and a share of the
// rest to a tier, and recomputes the other rows.
func SwapOf(t device.Tier, share float64) Retention {
	rest := Fate{t, share}
	if share == 0 {
		rest = Remade
	}
	return Retention{{t, 1}, {t, 1}, rest, rest}
}

func (r Retention) String() string {
	for _, n := range retentions {
		if r == n.keep {
			return n.name
		}
	}
	var parts []string
	for a, f := range r {
		if f != Kept {
			parts = append(parts, Act(a).String()+" "+f.String())
		}
	}
	return strings.Join(parts, ", ")
}

// MarshalText encodes policies as strings in plans.
func (r Retention) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText decodes the text of MarshalText.
func (r *Retention) UnmarshalText(text []byte) error {
	*r = retentions[0].keep
	if i := slices.Index(Recomputations(), string(text)); i >= 0 {
		*r = retentions[i].keep
		return nil
	}
	for _, part := range strings.Split(string(text), ",") {
		name, fate, _ := strings.Cut(strings.TrimSpace(part), " ")
		a := slices.Index(acts[:], name)
		if a < 0 {
			return fmt.Errorf("unknown activations %q; hint: use one of %s, or say what becomes of %s, such as `input host, light recomputed`", text,
				strings.Join(Recomputations(), ", "), strings.Join(acts[:], ", "))
		}
		f, err := parseFate(strings.TrimSpace(fate))
		if err != nil {
			return fmt.Errorf("activations: %s %w", name, err)
		}
		r[a] = f
	}
	return r.check()
}

// check rejects impossible policies: rows of the input come from another layer, and
// attention mixes rows.
func (r Retention) check() error {
	for a, f := range r {
		whole := f.Share == 1
		switch {
		case f.Tier >= device.NumTiers || !(f.Share >= 0 && f.Share <= 1) || f.Tier != device.DeviceTier && f.Share == 0:
			return fmt.Errorf("activations: %v is %v with share %v; hint: use a share of the tokens from 0 to 1", Act(a), f.Tier, f.Share)
		case f.Tier == device.DeviceTier && !whole && f.Share != 0:
			return fmt.Errorf("activations: only a part of %v is kept on the device; hint: keep all of it there or nothing; parts can be on host or disk", Act(a))
		case Act(a) == InputAct && !whole:
			return fmt.Errorf("activations: input cannot be %v, because nothing in the layer recomputes it; hint: keep or swap all of it", f)
		case Act(a) == AttentionAct && !whole && f.Share != 0:
			return fmt.Errorf("activations: attention cannot be %v, because it mixes tokens; hint: keep, swap or recompute all of it", f)
		}
	}
	return nil
}

// Swapped reports whether any activation of the layer leaves the device.
func (r Retention) Swapped() bool { return slices.ContainsFunc(r[:], Fate.Swapped) }

// RepeatedNodes lists, in order, the forward operators that the backward pass of a layer
// repeats: those that compute saved values that are absent and, transitively, their
// absent inputs. A class swapped in part counts as absent.
func (r Retention) RepeatedNodes(seg *graph.Segment) (list []*graph.Node) {
	again := map[int]bool{}
	var need func(v int)
	need = func(v int) {
		if v < 0 || v == seg.In || again[v] || slices.Contains(seg.Saved, v) && r[ActOfValue(seg, v)].Share == 1 {
			return
		}
		for i := range seg.Forward {
			if n := &seg.Forward[i]; n.Writes(v) {
				again[v] = true
				for _, use := range n.Args {
					need(use.Value)
				}
			}
		}
	}
	for _, v := range seg.Saved {
		need(v)
	}
	for i := range seg.Forward {
		n := &seg.Forward[i]
		if slices.ContainsFunc(n.Args, func(u graph.Use) bool { return again[u.Value] && n.Writes(u.Value) }) {
			list = append(list, n)
		}
	}
	return list
}

// SwapParts is the granularity of shares: the number of parts into which a
// micro-batch's tokens can be divided between swapping and recomputation.
const SwapParts = 64

// rowUnit returns the token rows per atom: the largest number compatible with
// everything that cuts the tokens, at most 1/64 of them if only some are swapped.
func (pl *Plan) RowUnit(seq int) int {
	unit := min(seq, pl.HeadRows)
	if pl.FeedRows > 0 {
		unit = GCD(unit, pl.FeedRows)
	}
	if pl.Parts() > 1 {
		unit = GCD(unit, seq/2) // a part consists of two runs
	}
	if pl.Pipeline != nil && pl.Pipeline.Slices > 1 {
		for _, n := range pl.Pipeline.RowsPerSlice(seq) {
			unit = GCD(unit, n)
		}
	}
	partial := func(f Fate) bool { return f.Share > 0 && f.Share < 1 }
	if !slices.ContainsFunc(pl.Activations, func(r Retention) bool { return slices.ContainsFunc(r[:], partial) }) {
		return unit
	}
	for d := 1; d <= unit; d++ {
		if unit%d == 0 && unit/d*SwapParts <= max(pl.MicroBatch*seq, SwapParts) {
			return unit / d
		}
	}
	return 1
}

// GCD returns the greatest common divisor of two positive numbers.
func GCD(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
