package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// pins validates and returns the plan decisions that the configuration makes.
func (t *Task) pins() (search.Pins, error) {
	spec, g := t.Spec, t.Graph
	p := search.Pins{MicroBatch: spec.Plan.MicroBatch, Group: spec.Plan.Group, HeadRows: spec.Plan.HeadRows, FeedRows: spec.Plan.FeedRows, KVParts: spec.Plan.KVParts, Exchange: spec.Plan.Exchange, Recompute: spec.Plan.Recompute,
		Cache: int64(spec.Plan.Cache), Prefetch: spec.Plan.Prefetch, Slots: spec.Plan.Slots, Policy: spec.Plan.Policy, Update: spec.Plan.Update, Sequence: spec.Plan.Sequence, Tensor: spec.Plan.Tensor}
	if n := g.Parts(); n > 1 {
		p.Sequence = n
	}
	if n := g.Shared(); n > 1 {
		p.Tensor = n
	}
	p.VocabularyParts = g.Vocabulary.Parts
	if err := t.pinTiers(&p); err != nil {
		return p, err
	}
	if p.Update != "" && !slices.Contains(search.Updaters(), p.Update) {
		return p, spec.Fault("plan.update", fmt.Sprintf("%q is not known; hint: use one of %s, or leave it out", p.Update, strings.Join(search.Updaters(), ", ")))
	}
	if b := p.MicroBatch; b < 0 || b > 0 && spec.GlobalBatch%b != 0 {
		return p, spec.Fault("plan.micro_batch", fmt.Sprintf("%d does not divide global_batch %d; hint: use a divisor", b, spec.GlobalBatch))
	}
	batch, ranks := t.Request().GlobalBatch, t.Machine.Ranks()
	if most := batch / ranks; p.MicroBatch > most && batch%ranks == 0 && !pipelined(&spec.Plan) { // else only pipelines are looked for
		return p, spec.Fault("plan.micro_batch", fmt.Sprintf("%d, but a rank has only %d sequences of a step; hint: use at most that, or plan.pipeline", p.MicroBatch, most))
	}
	for _, d := range []struct {
		key     string
		n, most int64
	}{
		{"group", int64(p.Group), 1 << 20}, {"head_rows", int64(p.HeadRows), 1 << 30}, {"feed_rows", int64(p.FeedRows), 1 << 30},
		{"cache_bytes", p.Cache, math.MaxInt64}, {"prefetch", int64(p.Prefetch), 1 << 20},
	} {
		if d.n < 0 || d.n > d.most {
			return p, spec.Fault("plan."+d.key, fmt.Sprintf("%d is out of range; hint: use from 1 to %d, or leave it out", d.n, d.most))
		}
	}
	if n := p.KVParts; n < 0 || n > 0 && (g.Parts() == 1 || !g.DividesHeads(n)) {
		return p, spec.Fault("plan.kv_parts", fmt.Sprintf("keys and values cannot be exchanged in %d parts; hint: use a divisor of the key and value heads of each layer, with a plan.sequence of at least 2, or leave it out", n))
	}
	if err := pinShared(t, &p); err != nil {
		return p, err
	}
	if err := checkExchange(t, &p); err != nil {
		return p, err
	}
	if err := t.checkRows(&p); err != nil {
		return p, err
	}
	if need := cacheNeeded(g); p.Cache > 0 && p.Cache < need && (p.Weights == nil || *p.Weights != device.DeviceTier) {
		return p, spec.Fault("plan.cache_bytes", fmt.Sprintf("%d bytes is too small; hint: use at least %d, the weights that one layer reads, or leave it out", p.Cache, need))
	}
	if p.Recompute != "" {
		if bad := plan.CheckRecompute(p.Recompute); bad != "" {
			return p, spec.Fault("plan.recompute", bad)
		}
	}
	if err := t.pinPipeline(&p); err != nil {
		return p, err
	}
	return p, t.pinActivations(&p)
}

// cacheNeeded is the least cache_bytes with which all weights can be streamed.
func cacheNeeded(g *graph.Graph) int64 {
	pl := plan.Plain(g, 1)
	for i := range pl.Chunks {
		pl.Chunks[i].Weights = device.HostTier
	}
	return pl.CacheNeeded(g)
}

// pinTiers validates and adds the tiers in which the configuration wants weights, gradients and the optimizer's
// state.
func (t *Task) pinTiers(p *search.Pins) error {
	spec := t.Spec
	for _, pin := range []struct {
		key, name string
		to        **device.Tier
	}{{"plan.weights", spec.Plan.Weights, &p.Weights}, {"plan.grads", spec.Plan.Grads, &p.Grads}, {"plan.state", spec.Plan.State, &p.State}} {
		if pin.name == "" {
			continue
		}
		tier, err := device.ParseTier(pin.name)
		if err != nil {
			return spec.Fault(pin.key, err.Error())
		}
		if t.Machine.Capacity[tier] == 0 {
			return spec.Fault(pin.key, fmt.Sprintf("there is no %v memory; hint: check limits.%v and limits.disk_path", tier, tier))
		}
		*pin.to = &tier
	}
	return nil
}

// pinShared refuses what layers that share parameters cannot have: all micro-batches pass a layer together. So a group is a rank's batch.
func pinShared(t *Task, p *search.Pins) error {
	own, batch := t.Spec.Plan, t.Request().GlobalBatch/t.Machine.Ranks()
	switch {
	case t.Graph.Model.Shares == 0:
	case pipelined(&own):
		return t.Spec.Fault("plan.pipeline", "layers that share parameters cannot be in a pipeline; hint: leave out tie_layers, or pipeline, stages, schedule and slices")
	case p.Group > 0 && batch%p.Group == 0 && p.MicroBatch == 0:
		p.MicroBatch = batch / p.Group
	case p.Group > 0 && p.Group*p.MicroBatch != batch:
		return t.Spec.Fault("plan.group", "where layers share parameters, all micro-batches pass a layer together; hint: leave out plan.group, or tie_layers")
	}
	return nil
}

// pipelined reports whether a configuration asks for a pipeline.
func pipelined(p *config.Plan) bool {
	return p.Pipeline > 1 || p.Slices > 1 || p.Schedule != "" || len(p.Stages) > 0
}

// checkExchange refuses what ranks that share sequences cannot exchange.
func checkExchange(t *Task, p *search.Pins) error {
	n, parts := t.Graph.Parts(), max(p.KVParts, 1)
	why := ""
	switch {
	case p.Exchange == "" || p.Exchange == plan.ExchangeKeys && n > 1:
		return nil
	case p.Exchange != plan.ExchangeKeys && p.Exchange != plan.ExchangeHeads:
		why = fmt.Sprintf("%q is not known; hint: use %s or %s, or leave it out", p.Exchange, plan.ExchangeKeys, plan.ExchangeHeads)
	case n == 1:
		why = "no ranks share sequences; hint: set plan.sequence to at least 2, or leave it out"
	case !graph.ExchangesHeads(t.Graph, 1):
		why = fmt.Sprintf("%d ranks cannot divide the heads of each layer, or share key heads evenly; hint: let fewer ranks share a sequence, or use %s", n, plan.ExchangeKeys)
	case !graph.ExchangesHeads(t.Graph, parts):
		why = fmt.Sprintf("the ranks' heads cannot be divided in %d parts; hint: leave out plan.kv_parts", parts)
	default:
		return nil
	}
	return t.Spec.Fault("plan.exchange", why)
}

// checkRows refuses micro-batches, blocks of the head and tiles of feed-forwards at which sums over tokens
// cannot be cut.
func (t *Task) checkRows(p *search.Pins) error {
	spec, g := t.Spec, t.Graph
	rowsOf := []struct {
		key string
		n   int
	}{{"plan.head_rows", p.HeadRows}, {"plan.feed_rows", p.FeedRows}}
	for _, r := range rowsOf {
		if r.n > 0 && g.Seq%r.n != 0 && r.n%g.Seq != 0 {
			return spec.Fault(r.key, fmt.Sprintf("%d is neither a divisor nor a multiple of %s; hint: use either, or leave it out", r.n, lengthOf(g)))
		} else if req := t.Request(); !req.HeadFits(r.n) {
			return spec.Fault(r.key, fmt.Sprintf("%d is not a multiple of %d tokens, at which sums on a GPU are cut; hint: use a multiple, or leave it out", r.n, req.HeadUnit))
		}
	}
	batch := max(t.Request().GlobalBatch/t.Machine.Ranks(), 1)
	rows := g.Seq * cmp.Or(p.MicroBatch, batch)
	if !g.Takes(rows, g.Seq*batch) {
		return spec.Fault("plan.micro_batch", fmt.Sprintf("%d makes micro-batches of %d tokens, not of a multiple of %d, at which sums in bf16 are cut; hint: use an even number, or all of the batch", p.MicroBatch, rows, g.CutUnit()))
	}
	for _, r := range rowsOf {
		if !g.Takes(r.n, rows) {
			return spec.Fault(r.key, fmt.Sprintf("%d is not a multiple of %d tokens, at which sums in bf16 are cut; hint: use a multiple, or leave it out", r.n, g.CutUnit()))
		}
	}
	return nil
}

// lengthOf says how many tokens of a sequence a rank has.
func lengthOf(g *graph.Graph) string {
	if g.Parts() == 1 {
		return fmt.Sprintf("sequence_length %d", g.Seq)
	}
	return fmt.Sprintf("the %d tokens that a rank has of a sequence", g.Seq)
}

// pinActivations validates and adds the configuration's activation policies.
func (t *Task) pinActivations(p *search.Pins) error {
	spec, m := t.Spec, t.Machine
	layers := t.Graph.Model.Layers
	tier, err := device.ParseTier(cmp.Or(spec.Plan.SwapTier, device.HostTier.String()))
	swaps := spec.Plan.Swap != nil || spec.Plan.Policy != ""
	switch {
	case err != nil || tier == device.DeviceTier:
		return spec.Fault("plan.swap_tier", fmt.Sprintf("%q is no tier to swap to; hint: use host or disk", spec.Plan.SwapTier))
	case spec.Plan.SwapTier != "" && spec.Plan.Swap == nil:
		return spec.Fault("plan.swap_tier", "plan.swap is not set, so nothing is swapped; hint: set plan.swap, or leave plan.swap_tier out")
	case spec.Plan.Policy != "" && !slices.Contains(search.ActivationRules(), spec.Plan.Policy):
		return spec.Fault("plan.policy", fmt.Sprintf("%q is not known; hint: use %s, or leave it out", spec.Plan.Policy, strings.Join(search.ActivationRules(), ", ")))
	case spec.Plan.Policy != "" && spec.Plan.Recompute != "":
		return spec.Fault("plan.policy", "a policy also decides what is recomputed; hint: leave plan.recompute out")
	case spec.Plan.Slots < 0 || spec.Plan.Slots > 1<<10:
		return spec.Fault("plan.slots", fmt.Sprintf("%d is out of range; hint: use from 1 to %d; 2 is enough unless links are slow", spec.Plan.Slots, 1<<10))
	case swaps && m.Capacity[device.HostTier] == 0:
		key := "plan.swap"
		if spec.Plan.Swap == nil {
			key = "plan.policy"
		}
		return spec.Fault(key, "there is no host memory to swap to; hint: check limits.host")
	case swaps && m.Capacity[tier] == 0:
		return spec.Fault("plan.swap_tier", fmt.Sprintf("there is no %v memory; hint: check limits.%v and limits.disk_path", tier, tier))
	}
	if len(spec.Plan.Swap) > 0 { // else leave it nil, see search.Pins.Open
		p.Activations = map[int]plan.Retention{}
	}
	for l, share := range spec.Plan.Swap {
		switch {
		case l >= layers:
			return spec.Fault("plan.swap", fmt.Sprintf("there is no layer %d; hint: layers are numbered from 0 to %d", l, layers-1))
		case l != config.EveryLayer:
			p.Activations[l] = plan.SwapOf(tier, share)
		}
	}
	if share, ok := spec.Plan.Swap[config.EveryLayer]; ok {
		for l := range layers - search.MemoKept {
			p.Activations[l] = plan.SwapOf(tier, share)
		}
	}
	return nil
}
