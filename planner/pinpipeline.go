package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
	"github.com/athanor-llm/athanor/search"
)

// pinPipeline validates and adds the configuration's pipeline decisions.
func (t *Task) pinPipeline(p *search.Pins) error {
	spec, g, ranks := t.Spec, t.Graph, t.Machine.Ranks()
	p.Schedule, p.Pipeline, p.Stages, p.Slices = spec.Plan.Schedule, spec.Plan.Pipeline, spec.Plan.Stages, spec.Plan.Slices
	segments := len(g.Segments)
	switch {
	case spec.Given("plan.pipeline") && p.Pipeline < 1:
		return spec.Fault("plan.pipeline", fmt.Sprintf("%d ranks; hint: use a divisor of ranks %d, or 1 for no pipeline", p.Pipeline, ranks))
	case p.Pipeline > 0 && ranks%p.Pipeline != 0:
		return spec.Fault("plan.pipeline", fmt.Sprintf("%d does not divide ranks %d; hint: use a divisor (replicas of the pipeline take the other ranks)", p.Pipeline, ranks))
	case p.Schedule != "" && !slices.Contains(schedule.Names(), p.Schedule):
		hint := suggest.Hint(p.Schedule, schedule.Names())
		if hint == "" {
			hint = "; hint: use one of " + strings.Join(schedule.Names(), ", ")
		}
		return spec.Fault("plan.schedule", fmt.Sprintf("there is no schedule %q%s", p.Schedule, hint))
	case spec.Given("plan.slices") && (p.Slices < 1 || p.Slices > g.Seq):
		return spec.Fault("plan.slices", fmt.Sprintf("a sequence of %d tokens cannot be cut into %d slices; hint: use at least 1 and at most one per token", g.Seq, p.Slices))
	case len(p.Stages) > segments:
		return spec.Fault("plan.stages", fmt.Sprintf("%d stages, but the model has only %d segments (embedding, layers, head); hint: give each stage at least one segment", len(p.Stages), segments))
	case len(p.Stages) > 0 && p.Stages[0] != 0:
		return spec.Fault("plan.stages", fmt.Sprintf("the first stage begins with segment %d; hint: begin it with segment 0, the embedding", p.Stages[0]))
	case p.Pipeline > 0 && len(p.Stages)%p.Pipeline != 0:
		return spec.Fault("plan.stages", fmt.Sprintf("%d stages cannot be divided evenly among the %d ranks of a pipeline; hint: give each rank the same number of stages", len(p.Stages), p.Pipeline))
	case p.Pipeline > segments:
		return spec.Fault("plan.pipeline", fmt.Sprintf("%d ranks, but the model has only %d segments (embedding, layers, head); hint: use at most one rank per segment", p.Pipeline, segments))
	}
	for i := 1; i < len(p.Stages); i++ {
		if p.Stages[i] <= p.Stages[i-1] || p.Stages[i] >= segments {
			return spec.Fault("plan.stages", fmt.Sprintf("stage %d begins with segment %d; hint: list the first segments of the stages in ascending order, all below %d", i, p.Stages[i], segments))
		}
	}
	if p.Slices > 1 || p.Schedule == "seq1f1b" {
		if err := t.checkSlices(p); err != nil {
			return err
		}
	}
	return t.checkPipeline(p)
}

// checkSlices refuses decisions that are incompatible with sequence slices.
func (t *Task) checkSlices(p *search.Pins) error {
	spec, g := t.Spec, t.Graph
	key := "plan.slices"
	if p.Slices == 0 {
		key = "plan.schedule"
	}
	most := max(g.Seq/graph.SliceUnit(g.Seq), 1)
	switch {
	case max(p.Slices, 2) > most:
		return spec.Fault(key, fmt.Sprintf("a sequence of %d tokens cannot be cut into %d slices at multiples of %d tokens; hint: use at most %d", g.Seq, max(p.Slices, 2), graph.SliceUnit(g.Seq), most))
	case g.DType != graph.F32:
		return spec.Fault(key, "slices of sequences need precision: fp32, since in bf16 every slice would round the gradients of keys; hint: set precision: fp32, or use a schedule without slices")
	case model.Remembers(g.Model):
		return spec.Fault(key, fmt.Sprintf("slices of sequences do not work with %s, whose layers hand states from token to token; hint: use a schedule without slices", g.Model.Family))
	case g.Preference() > 0:
		return spec.Fault(key, "slices of sequences do not work with preference, which needs whole sequences; hint: use a schedule without slices")
	case g.Model.Balance > 0:
		return spec.Fault(key, "slices of sequences do not work with expert_balance, which needs whole sequences; hint: use a schedule without slices, or set expert_balance: 0")
	case p.MicroBatch > 1:
		return spec.Fault(key, fmt.Sprintf("slices of sequences need micro-batches of one sequence, not of %d; hint: set plan.micro_batch=1", p.MicroBatch))
	case p.Schedule != "" && p.Schedule != "seq1f1b":
		return spec.Fault(key, fmt.Sprintf("the schedule %s does not slice sequences; hint: set plan.schedule=seq1f1b, or leave plan.slices out", p.Schedule))
	}
	if take := plan.SlicesTake(g); p.Recompute != "" && !slices.Contains(take, p.Recompute) {
		return spec.Fault(key, fmt.Sprintf("slices of sequences read what earlier slices computed, which plan.recompute=%s does not keep; hint: set plan.recompute to %s", p.Recompute, strings.Join(take, " or ")))
	}
	return nil
}

// checkPipeline refuses pipelines that contradict other decisions, or have no
// schedule.
func (t *Task) checkPipeline(p *search.Pins) error {
	spec, ranks := t.Spec, t.Machine.Ranks()
	key := ""
	for _, k := range []string{"stages", "slices", "schedule", "pipeline"} {
		if spec.Given("plan." + k) {
			key = "plan." + k
		}
	}
	if key == "" || key == "plan.pipeline" && p.Pipeline == 1 && p.Schedule == "" && len(p.Stages) == 0 && p.Slices < 2 {
		return nil
	}
	switch {
	case ranks == t.Graph.PerSequence():
		return spec.Fault(key, fmt.Sprintf("a pipeline needs at least two ranks with other layers, but all %d ranks have the same; hint: set ranks", ranks))
	case model.Crosses(t.Graph.Model):
		return spec.Fault(key, fmt.Sprintf("layers of %s read keys and values, or rows, of layers below that the ranks of a pipeline do not send; hint: leave out the pipeline", t.Graph.Model.Family))
	case t.Graph.Parts() > 1 && p.Exchange == plan.ExchangeKeys:
		return spec.Fault(key, fmt.Sprintf("in a pipeline ranks cannot exchange keys, whose messages and the pipeline's would wait for each other; hint: use a plan.exchange of %s, or leave it out", plan.ExchangeHeads))
	case t.Graph.Parts() > 1 && !graph.ExchangesHeads(t.Graph, p.KVParts):
		return spec.Fault(key, fmt.Sprintf("in a pipeline ranks that share sequences exchange heads, and those of each layer cannot be divided among %d; hint: leave out plan.sequence or the pipeline", t.Graph.Parts()))
	case t.Graph.Parts() > 1 && (p.Slices > 1 || p.Schedule == "seq1f1b"):
		return spec.Fault(key, "ranks cannot share sequences that are cut into slices; hint: leave out plan.sequence or plan.slices")
	case p.Pipeline == 1:
		return spec.Fault("plan.pipeline", "1 means no pipeline, but other keys of `plan` configure one; hint: leave out either")
	case p.Group > 1:
		return spec.Fault("plan.group", fmt.Sprintf("%d does not work with a pipeline, whose schedule sets the order of micro-batches; hint: leave plan.group out", p.Group))
	case p.Policy != "":
		return spec.Fault("plan.policy", "activation policies do not work with pipelines; hint: leave out plan.policy or the pipeline")
	}
	if err := search.PossiblePipeline(p, ranks/t.Graph.PerSequence(), spec.GlobalBatch); err != nil {
		return spec.Fault(key, err.Error())
	}
	return nil
}
