package planner

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// Levers. Some keys decide how much memory a run takes and how much it sends, and also what is learnt or how exactly.
// So the search never touches them; they are offered, with what they change: where nothing fits, and where the device
// waits for copies.
//
//	economies      each added to those before it: bf16, state in bf16, no clipping
//	alternatives   each by itself: moments in bf16 or 8 bits, adapters, adapters on 4 bits, half the length, twice the batch
//	resorts        where nothing fits: moments in 8 bits without clipping and, of the CPU, weights in int8 besides
//
// Each is judged by a bound of its memory and then by a sketch (search.Request.Sketch), so the run with these keys takes
// at most as long as is said.

// lever is a change of a run by its keys.
type lever struct {
	name, set string
	price     string // what else changes
	with      func(*job.Spec) *job.Spec
	idle      func(*job.Spec) bool // the run is so already, or cannot be
}

// economies, in an order in which each can be added to those before it: there is no state in bf16 alone without bf16.
var economies = []lever{
	{"bf16", "precision=bf16", "computed in bf16",
		func(s *job.Spec) *job.Spec { return s.WithPrecision(graph.BF16) },
		func(s *job.Spec) bool { return s.Precision == graph.BF16 || s.Int8 }},
	{"state in bf16", "optimizer_state=bf16", "weights and moments rounded to bf16, stochastically",
		func(s *job.Spec) *job.Spec { return s.WithState(plan.BF16State) },
		func(s *job.Spec) bool { return s.OptimizerState[0] == plan.BF16State || s.Int8 }},
	unclipped,
}

// unclipped uses up gradients as soon as they are there.
var unclipped = lever{"no clipping", "gradient_clipping=0", "gradients used as they come",
	func(s *job.Spec) *job.Spec { return s.WithoutClipping() },
	func(s *job.Spec) bool { return s.Clip == 0 || s.SkipSpikes > 0 }}

// eightBits keeps moments in 8 bits; see mayPack.
var eightBits = lever{name: "moments in 8 bits", set: "optimizer_state=" + plan.PackedMoments.String(), price: "moments rounded to 8 bits, with a scale per block",
	with: func(s *job.Spec) *job.Spec { return s.WithState(plan.PackedMoments) }}

// int8 holds matrices in a byte per weight.
var int8 = lever{"weights in int8", "precision=" + config.Int8, "weights rounded to int8, by chance",
	func(s *job.Spec) *job.Spec { return s.WithInt8() },
	func(s *job.Spec) bool {
		return s.Int8 || machine.OnGPU(s.Machine()) || s.LoRA.Rank > 0 || s.Quantize == config.NF4 || s.KeepMask
	}}

// usualRank is the rank of adapters that are offered.
const usualRank = 16

// adapters trains adapters instead of the model.
var adapters = lever{"adapters", fmt.Sprintf("lora={rank: %d}", usualRank), "only adapters are trained",
	func(s *job.Spec) *job.Spec { return s.WithAdapters(usualRank) },
	func(s *job.Spec) bool {
		return s.LoRA.Rank > 0 || len(s.Freeze) > 0 || s.Model.Name == "" || s.Int8 || s.KeepMask || s.TrainWithin > 0 || s.TieLayers > 0
	}}

// fourBits holds weights that are not trained in 4 bits.
var fourBits = lever{"4-bit weights", "quantize=" + config.NF4, "weights that are not trained rounded to 4 bits",
	func(s *job.Spec) *job.Spec { return s.WithQuantized() },
	func(s *job.Spec) bool { return s.LoRA.Rank == 0 || s.Quantize == config.NF4 || s.FP8 }}

// and adds a lever to those before it.
func (l lever) and(next lever) lever {
	if l.with == nil {
		return next
	}
	return lever{l.name + ", " + next.name, l.set + " " + next.set, l.price + ", " + next.price,
		func(s *job.Spec) *job.Spec { return next.with(l.with(s)) }, nil}
}

// economise lists the economies that change a run, each with all before it.
func economise(s *job.Spec) (list []lever) {
	var all lever
	for _, l := range economies {
		if !l.idle(s) {
			all = all.and(l)
			list = append(list, all)
		}
	}
	return list
}

// alternatives lists other changes. state is the format of the state that is used, or was tried last.
func alternatives(s *job.Spec, state plan.StateFormat) (list []lever) {
	if state == plan.FP32State && len(s.Optimizer.Moments()) > 0 {
		list = append(list, lever{name: "moments in bf16", set: "optimizer_state=" + plan.BF16Moments.String(), price: "moments rounded to bf16, stochastically",
			with: func(s *job.Spec) *job.Spec { return s.WithState(plan.BF16Moments) }})
	}
	if mayPack(s, state) {
		list = append(list, eightBits)
	}
	if !adapters.idle(s) {
		if list = append(list, adapters); !s.FP8 {
			list = append(list, adapters.and(fourBits))
		}
	} else if !fourBits.idle(s) {
		list = append(list, fourBits)
	}
	if n := s.SequenceLength / 2; n > 0 {
		list = append(list, lever{name: "half the sequence length", set: fmt.Sprintf("sequence_length=%d global_batch=%d", n, 2*s.GlobalBatch), price: "less context",
			with: func(s *job.Spec) *job.Spec { return s.WithSequence(n).WithBatch(2 * s.GlobalBatch) }})
	}
	return list
}

// resorts lists the combinations that need least. They slow a run down that fits without them.
func resorts(s *job.Spec, state plan.StateFormat) (list []lever) {
	if !mayPack(s, state) {
		return nil
	}
	least := eightBits
	if !unclipped.idle(s) {
		least = least.and(unclipped)
		list = append(list, least)
	}
	if !int8.idle(s) {
		list = append(list, int8.and(least))
	}
	return list
}

// mayPack reports whether a run with moments in this format may have them in 8 bits.
func mayPack(s *job.Spec, state plan.StateFormat) bool {
	r := s.Optimizer.Rule()
	return (state == plan.FP32State || state == plan.BF16Moments) && r.Elementwise && len(r.Moments) > 0 && s.Tensor <= 1 && s.DelinkAt == 0
}

// larger is twice the batch: what is sent once per step serves more tokens.
func larger(s *job.Spec) lever {
	return lever{name: "twice the batch", set: fmt.Sprintf("global_batch=%d", 2*s.GlobalBatch), price: "half as many updates per token",
		with: func(s *job.Spec) *job.Spec { return s.WithBatch(2 * s.GlobalBatch) }}
}

// mayChange reports whether keys may be offered: a run that has begun, and a given plan, are what they are.
func (t *Task) mayChange() bool { return t.Spec.Plan.File == "" && t.Spec.Begun == nil }

// pull returns the task with a lever; nil if the model has no such form.
func (t *Task) pull(l lever) *supposition {
	spec := l.with(t.Spec)
	g, err := BuildGraph(spec, t.Graph.Model, t.Graph.Documents)
	if err != nil {
		return nil
	}
	return &supposition{WhatIf: search.WhatIf{Change: l.name, Set: l.set, Price: l.price}, Task: Task{Machine: t.Machine.Suppose(), Graph: g, Spec: spec}}
}

// pullEach returns the task with each of the levers that it has.
func (t *Task) pullEach(levers []lever) (list []*supposition) {
	for _, l := range levers {
		if w := t.pull(l); w != nil {
			list = append(list, w)
		}
	}
	return list
}

// insists is what a supposition brings that other decisions of the user exclude.
const insists = "not with the decisions of `plan`"

// sketch finds how fast a supposed run is at least, by a sketch.
func (w *supposition) sketch(ctx context.Context) error {
	if !w.mayFit() {
		w.Brings = "does not fit: weights and what trains them are larger than the memory"
		return nil
	}
	r, err := Sketch(ctx, &w.Task)
	var short *search.Misfit
	var fault *config.Error
	switch {
	case errors.As(err, &short):
		w.Brings = fmt.Sprintf("does not fit: it needs %s of %v memory", size.Format(short.Need), short.Tier)
	case errors.As(err, &fault):
		w.Brings = insists
	case err != nil:
		return err
	default:
		w.AtMost = true
		w.take(r.Best, r.Best.Label)
	}
	return nil
}

// take notes a plan of a supposed run.
func (w *supposition) take(c *search.Candidate, brings string) {
	w.best, w.Seconds, w.Brings = c, c.Seconds(), brings
	w.TokenRate = w.tokens() / w.Seconds
}

// mayFit reports whether bounds leave it open that the task fits, with the optimizer's state in the smallest format allowed.
func (t *Task) mayFit() bool {
	req := t.Request()
	req.State = smallestState(t.Spec)
	return search.MayFit(req, ForSearch(t.Machine))
}

// waiting is the share of a step for which the device may wait for copies before levers are offered that make the wait
// shorter.
const waiting = 0.25

// Quicker returns the keys with which the run takes least time, with what they change, where the device of the present
// plan waits for copies much of a step; nil if there are none, or if they gain little.
func (t *Task) Quicker(ctx context.Context, now *search.Candidate) (*search.WhatIf, error) {
	all := economise(t.Spec)
	if now.Idle() < waiting || !t.mayChange() || len(all) == 0 || now.Plan.Pipeline != nil {
		return nil, nil
	}
	w := t.pull(all[len(all)-1])
	if w == nil {
		return nil, nil
	}
	if err := w.sketch(ctx); err != nil || w.Seconds == 0 {
		return nil, err
	}
	const worth = 0.8 // of the present time
	if w.Gain = w.Seconds/now.Seconds() - 1; w.Seconds > worth*now.Seconds() {
		return nil, nil
	}
	return &w.WhatIf, nil
}
