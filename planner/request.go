package planner

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
)

// BuildGraph builds the graph that a job describes. A model that has adapters already keeps them.
func BuildGraph(spec *job.Spec, m *model.Model, docs *graph.Documents) (*graph.Graph, error) {
	part := *m
	switch {
	case len(spec.Freeze) > 0 && m.LoRA != nil:
		return nil, spec.Fault("freeze", "the model is an adapter, and only the adapter is trained; hint: leave freeze out, or `athanor merge` the adapter first")
	case len(spec.Freeze) > 0:
		if err := part.Freeze(spec.Freeze...); err != nil {
			return nil, spec.Fault("freeze", err.Error())
		}
	}
	if spec.LoRA.Rank > 0 {
		if err := adapt(&part, spec); err != nil {
			return nil, spec.Fault("lora", err.Error())
		}
	}
	part.Neftune = spec.NeftuneAlpha
	if d := spec.Distill; d.Teacher != "" {
		part.Distil = model.Distil{Top: d.Top, Temperature: d.Temperature, Weight: d.Weight}
		if err := model.CheckDistil(&part); err != nil {
			return nil, spec.Fault("distill", err.Error())
		}
	}
	if spec.Quantize == config.NF4 {
		if err := part.Quantize(); err != nil {
			return nil, spec.Fault("quantize", err.Error())
		}
	}
	if spec.FP8 {
		if err := model.MultiplyFP8(&part); err != nil {
			return nil, spec.Fault("precision", err.Error())
		}
	}
	if spec.Int8 {
		if err := model.HoldInt8(&part); err != nil {
			return nil, spec.Fault("precision", err.Error())
		}
	}
	if part.Masked && !slices.ContainsFunc(part.Params(), func(p model.Param) bool { return p.Masked }) {
		return nil, spec.Fault("keep_mask", "no matrix of the layers is trained, so all zeros stay as they are; hint: leave keep_mask out, or freeze less")
	}
	if err := checkShare(spec, &part, docs); err != nil {
		return nil, err
	}
	if err := checkVocabulary(spec, &part, docs); err != nil {
		return nil, err
	}
	if spec.Vocabulary > 1 {
		return graph.BuildVocabulary(&part, spec.SequenceLength, spec.Vocabulary, spec.Precision, docs)
	}
	g, err := graph.BuildDivided(&part, spec.SequenceLength, spec.Share, max(spec.Tensor, 1), spec.Precision, docs)
	if err != nil {
		key := "sequence_length"
		if spec.Preference.Beta > 0 && !m.Rotary() {
			key = "preference"
		}
		return nil, spec.Fault(key, err.Error())
	}
	return g, nil
}

// checkSlabs refuses matrices that ranks cannot share.
func checkSlabs(spec *job.Spec, m *model.Model) error {
	if state, settled := spec.State(); spec.Tensor > 1 && settled && state == plan.PackedMoments {
		return fmt.Errorf("blocks of optimizer_state %s would be other blocks in a part of a matrix; hint: use bf16_moments, or leave plan.tensor out", state)
	}
	return graph.CheckSlabs(m, spec.Tensor)
}

// checkShare refuses sequences that ranks cannot share as plan.sequence asks, and matrices as plan.tensor does.
func checkShare(spec *job.Spec, m *model.Model, docs *graph.Documents) error {
	ranks := max(spec.Ranks, 1)
	for _, d := range []struct {
		key, what, others string
		given, n          int
		check             func() error
	}{
		{"plan.sequence", "a sequence", "other ranks share other sequences", spec.Plan.Sequence, spec.Share, func() error { return graph.CheckParts(m, spec.SequenceLength, spec.Share, docs) }},
		{"plan.tensor", "matrices", "other ranks have other sequences", spec.Plan.Tensor, spec.Tensor, func() error { return checkSlabs(spec, m) }},
	} {
		switch {
		case spec.Given(d.key) && d.given < 1:
			return spec.Fault(d.key, fmt.Sprintf("%d ranks cannot share %s; hint: use a divisor of ranks, or 1 for none that share", d.given, d.what))
		case ranks%d.n != 0:
			return spec.Fault(d.key, fmt.Sprintf("%d does not divide ranks %d; hint: use a divisor (%s), or set ranks", d.n, ranks, d.others))
		}
		if err := d.check(); err != nil {
			return spec.Fault(d.key, err.Error())
		}
	}
	groups := ranks / spec.PerSequence()
	switch {
	case groups*spec.PerSequence() != ranks:
		return spec.Fault("plan.tensor", fmt.Sprintf("%d ranks cannot be divided into groups of %d, of which %d share each sequence and %d each matrix; hint: use a plan.sequence and a plan.tensor whose product divides ranks", ranks, spec.PerSequence(), spec.Share, spec.Tensor))
	case spec.Tensor > 1 && spec.Plan.Pipeline < 2 && spec.GlobalBatch%groups != 0:
		return spec.Fault("plan.tensor", fmt.Sprintf("%d leaves %d groups of ranks, which do not divide global_batch %d; hint: use a global_batch that is a multiple of %[2]d", spec.Tensor, groups, spec.GlobalBatch))
	}
	return nil
}

// adapt gives a model the configured adapters. If it already has some, they must be the same; what the
// configuration leaves open is taken from them.
func adapt(m *model.Model, spec *job.Spec) error {
	has, lora, targets := m.LoRA, model.LoRA{Rank: spec.LoRA.Rank, Alpha: spec.LoRA.Alpha, RSLoRA: spec.LoRA.RSLoRA, DoRA: spec.LoRA.DoRA, Dropout: spec.LoRA.Dropout}, spec.LoRA.Targets
	if has != nil && lora.Alpha == 0 && !lora.RSLoRA {
		lora.Alpha, lora.RSLoRA = has.Alpha, has.RSLoRA
	}
	if has != nil {
		lora.DoRA, lora.Own = lora.DoRA || has.DoRA, has.Own
	}
	if has != nil && len(targets) == 0 {
		targets = has.Weights
	}
	whole := spec.LoRA.Whole
	if (has == nil || len(whole) > 0) && model.Classifies(m) && !slices.Contains(whole, model.ScoreModule) { // as PEFT has it
		whole = append(slices.Clip(whole), model.ScoreModule)
	}
	err := m.Adapt(lora, targets...)
	if err == nil && (has == nil || len(whole) > 0) {
		err = m.TrainWhole(whole...)
	} else if err == nil {
		m.LoRA.Whole = has.Whole
	}
	if err != nil || has == nil {
		return err
	}
	if asked := m.LoRA; asked.Rank != has.Rank || asked.Scale("") != has.Scale("") || asked.DoRA != has.DoRA || !slices.Equal(asked.Weights, has.Weights) || !slices.Equal(asked.Whole, has.Whole) {
		return fmt.Errorf("%v, but the model is an adapter that has %v; hint: leave lora out to keep those of the adapter, or merge it into a model first: `athanor merge %s FOLDER`", asked, has, spec.Model.Name)
	}
	noisy := *has
	noisy.Dropout = spec.LoRA.Dropout
	m.LoRA = &noisy
	return nil
}

// StepOptions returns the options for lowering a training program, without
// capacities.
func StepOptions(spec *job.Spec) lower.Options {
	return lower.Options{Beta1: spec.Beta1, Beta2: spec.Beta2, Eps: spec.Epsilon, Decay: spec.WeightDecay, Muon: spec.Muon, Clip: spec.Clip, Capacity: program.NoLimits,
		Scratch: &lower.Scratch{}}
}

// Request translates a task into a search request, without pins.
func (t *Task) Request() *search.Request {
	state, _ := t.Spec.State()
	return &search.Request{Graph: t.Graph, GlobalBatch: t.Spec.GlobalBatch * t.Graph.PerSequence(), Ranks: t.Machine.Ranks(), Options: StepOptions(t.Spec), Optimizer: t.Spec.Optimizer, State: state,
		HeadUnit: t.Machine.HeadUnit(t.Graph.Seq), Enough: t.Enough, Early: t.Early}
}
