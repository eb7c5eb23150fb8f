package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// pinPipeline validates and adds the configuration's pipeline decisions.
func (m *Machine) pinPipeline(p *plan.Pins, g *graph.Graph, c *config.Config) error {
	p.Schedule, p.Pipeline, p.Stages, p.Slices = c.Plan.Schedule, c.Plan.Pipeline, c.Plan.Stages, c.Plan.Slices
	segments := len(g.Segments)
	switch {
	case c.Given("plan.pipeline") && p.Pipeline < 1:
		return c.Fault("plan.pipeline", fmt.Sprintf("%d ranks; hint: a divisor of ranks %d, 1 for none", p.Pipeline, m.ranks))
	case p.Pipeline > 0 && m.ranks%p.Pipeline != 0:
		return c.Fault("plan.pipeline", fmt.Sprintf("%d does not divide ranks %d; hint: a divisor, the rest are replicas", p.Pipeline, m.ranks))
	case p.Schedule != "" && !slices.Contains(schedule.Names(), p.Schedule):
		hint := suggest.Hint(p.Schedule, schedule.Names())
		if hint == "" {
			hint = fmt.Sprintf("; hint: one of %v", schedule.Names())
		}
		return c.Fault("plan.schedule", fmt.Sprintf("%q is not known%s", p.Schedule, hint))
	case c.Given("plan.slices") && (p.Slices < 1 || p.Slices > g.Seq):
		return c.Fault("plan.slices", fmt.Sprintf("%d slices of %d tokens; hint: at least 1, at most one per token", p.Slices, g.Seq))
	case len(p.Stages) > segments:
		return c.Fault("plan.stages", fmt.Sprintf("%d stages, but the model has %d segments; hint: at least one segment for each (embedding, layers, head)", len(p.Stages), segments))
	case len(p.Stages) > 0 && p.Stages[0] != 0:
		return c.Fault("plan.stages", fmt.Sprintf("the first stage begins with segment %d; hint: 0, the embedding", p.Stages[0]))
	case p.Pipeline > 0 && len(p.Stages)%p.Pipeline != 0:
		return c.Fault("plan.stages", fmt.Sprintf("%d stages on %d ranks; hint: as many on each", len(p.Stages), p.Pipeline))
	case p.Pipeline > segments:
		return c.Fault("plan.pipeline", fmt.Sprintf("%d ranks, but the model has %d segments; hint: at most one rank for each", p.Pipeline, segments))
	}
	for i := 1; i < len(p.Stages); i++ {
		if p.Stages[i] <= p.Stages[i-1] || p.Stages[i] >= segments {
			return c.Fault("plan.stages", fmt.Sprintf("stage %d begins with segment %d; hint: ascending, below %d", i, p.Stages[i], segments))
		}
	}
	if p.Slices > 1 || p.Schedule == "seq1f1b" {
		if err := checkSlices(p, g, c); err != nil {
			return err
		}
	}
	return m.checkPipeline(p, c)
}

// checkSlices refuses decisions that are incompatible with sequence slices.
func checkSlices(p *plan.Pins, g *graph.Graph, c *config.Config) error {
	key := "plan.slices"
	if p.Slices == 0 {
		key = "plan.schedule"
	}
	most := max(g.Seq/graph.SliceUnit(g.Seq), 1)
	switch {
	case max(p.Slices, 2) > most:
		return c.Fault(key, fmt.Sprintf("%d slices of %d tokens, which are cut at multiples of %d; hint: at most %d", max(p.Slices, 2), g.Seq, graph.SliceUnit(g.Seq), most))
	case g.DType != graph.F32:
		return c.Fault(key, "slices need precision fp32, since in bf16 every slice would round the gradients of keys; hint: another schedule")
	case g.Preference() > 0:
		return c.Fault(key, "slices of sequences, but preference is about whole ones; hint: another schedule")
	case g.Model.Balance > 0:
		return c.Fault(key, "slices of sequences, but expert_balance is about whole ones; hint: another schedule, or expert_balance: 0")
	case p.MicroBatch > 1:
		return c.Fault(key, fmt.Sprintf("slices of a micro-batch of %d sequences; hint: plan.micro_batch=1", p.MicroBatch))
	case p.Schedule != "" && p.Schedule != "seq1f1b":
		return c.Fault(key, fmt.Sprintf("slices, but the schedule is %s; hint: plan.schedule=seq1f1b", p.Schedule))
	}
	if take := program.SlicesTake(g); p.Recompute != "" && !slices.Contains(take, p.Recompute) {
		return c.Fault(key, fmt.Sprintf("slices read what earlier ones made, but plan.recompute is %s; hint: %s", p.Recompute, strings.Join(take, " or ")))
	}
	return nil
}

// checkPipeline refuses pipelines that contradict other decisions, or have no
// schedule.
func (m *Machine) checkPipeline(p *plan.Pins, c *config.Config) error {
	key := ""
	for _, k := range []string{"stages", "slices", "schedule", "pipeline"} {
		if c.Given("plan." + k) {
			key = "plan." + k
		}
	}
	if key == "" || key == "plan.pipeline" && p.Pipeline == 1 && p.Schedule == "" && len(p.Stages) == 0 && p.Slices < 2 {
		return nil
	}
	switch {
	case m.ranks == 1:
		return c.Fault(key, "there is one rank; hint: set ranks, a pipeline has at least two")
	case p.Pipeline == 1:
		return c.Fault("plan.pipeline", "1 is no pipeline, but other decisions are about one; hint: leave either out")
	case p.Group > 1:
		return c.Fault("plan.group", fmt.Sprintf("%d with a pipeline, whose schedule says what comes when; hint: leave it out", p.Group))
	case p.Policy != "":
		return c.Fault("plan.policy", "it does not know of pipelines; hint: leave either out")
	}
	if err := plan.PossiblePipeline(p, m.ranks, c.GlobalBatch); err != nil {
		return c.Fault(key, err.Error())
	}
	return nil
}
