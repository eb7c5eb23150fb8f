package planner

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
)

// What to train in M bytes (Lin et al., 2206.15472).
//
// Approach. Parameters are divided into groups, and somebody measures what training each group alone gains. What a set of groups takes
// is what the compiler says: the set's model, with all else frozen, is lowered under the leanest plan, and its height is the answer to
// the byte. So it contains weights, the optimizer's state and gradients of the set, the activations that it needs, and those that the
// backward pass needs down to its deepest group. The best set is found exactly (knapsack.go).
//
//	groups x gains --knapsack, weighed by Lower--> set --freeze--> graph --search, with M bytes--> plan
//
// The run's plan is the fastest within the memory, which at worst is the leanest one. Nothing waits elsewhere.
//
// Groups learn in part the same, so together they gain less than the sum. How much less is taken from a trial of a chosen set: that
// overlap p for which the p-norm of the gains is what was gained, 1 if they add up. The largest norm is the largest sum of p-th powers, so
// the knapsack stays what it is.
//
// Known weakness: gains of few steps say little about many.

// TensorGroup is parameters that are trained or frozen together.
type TensorGroup struct {
	Name   string   `json:"name"`
	Params []string `json:"parameters"`
	Bytes  int64    `json:"bytes"` // of the optimizer's state and, with clipping, of the gradient, which wait for the end of the step
	Alone  int64    `json:"alone"` // device memory of a run that trains it alone
	Gain   float64  `json:"gain"`  // by which the loss fell in a trial
	Tried  bool     `json:"tried"` // there was a trial; else the gain is 0 or, if there was none of any group, Bytes
	Chosen bool     `json:"chosen"`

	held  int64 // bytes of the optimizer's state
	layer int   // the first that it has a part of; -1: before the layers
}

// Partition is the parameters of a task in groups, deepest first.
type Partition struct {
	Task   *Task // which trains all of them
	Groups []TensorGroup
}

// kinds of groups, by what is said of them.
const (
	embeddings = "embedding"
	attention  = "attention"
	mlp        = "mlp"
	vectors    = "norms, biases"
	head       = "head"
)

// NewPartition divides the parameters of a task: of each kind, those of span consecutive layers are a group.
func NewPartition(t *Task, span int) *Partition {
	m := t.Graph.Model
	var list []TensorGroup
	at := map[string]int{}
	add := func(name string, i int, p *model.Param) {
		k, ok := at[name]
		if !ok {
			k, at[name] = len(list), len(list)
			list = append(list, TensorGroup{Name: name, layer: p.Layer})
		}
		g := &list[k]
		g.Params = append(g.Params, p.Name)
		n, o, format := t.Graph.Stored(i).Elems(), t.Spec.Optimizer, t.Spec.OptimizerState[0]
		_, moments := format.Types()
		more := len(o.For(p.Indivisible).Moments) - len(o.Rule().Moments) // of what Muon leaves to AdamW
		state := n * (plan.StateBytes(o, format, t.Graph.Stored(i).DType) + int64(more)*moments.Size())
		g.held, g.Bytes = g.held+state, g.Bytes+state
		if t.Spec.Clip > 0 {
			g.Bytes += n * graph.F32.Size()
		}
	}
	for i := range t.Graph.Params {
		switch p := &t.Graph.Params[i]; {
		case p.Layer < 0:
			add(embeddings, i, p)
		case p.Layer >= m.Layers:
			add(head, i, p)
		default:
			first := p.Layer / span * span
			layers := fmt.Sprint(first)
			if last := min(first+span, m.Layers) - 1; last > first {
				layers += fmt.Sprintf("-%d", last)
			}
			add(kindOf(m, p)+" "+layers, i, p)
		}
	}
	return &Partition{t, list}
}

// kindOf returns the kind of a layer's parameter.
func kindOf(m *model.Model, p *model.Param) string {
	n := &m.Family.Tensors
	for _, name := range []string{n.QKV, n.Q, n.K, n.V, n.AttnOut} {
		if name != "" && strings.HasSuffix(p.Name, name+".weight") && !p.Vector {
			return attention
		}
	}
	if p.Vector {
		return vectors
	}
	return mlp
}

// Alone returns the set of one group.
func (p *Partition) Alone(i int) []bool {
	set := make([]bool, len(p.Groups))
	set[i] = true
	return set
}

// Chosen returns the set of the chosen groups.
func (p *Partition) Chosen() []bool {
	set := make([]bool, len(p.Groups))
	for i := range p.Groups {
		set[i] = p.Groups[i].Chosen
	}
	return set
}

// Training returns the task in which only a set of groups is trained.
func (p *Partition) Training(set []bool) (*Task, error) {
	var frozen []string
	for i := range p.Groups {
		if !set[i] {
			frozen = append(frozen, p.Groups[i].Params...)
		}
	}
	t := *p.Task
	t.Spec = t.Spec.WithFrozen(frozen)
	var err error
	t.Graph, err = BuildGraph(t.Spec, t.Graph.Model, t.Graph.Documents)
	return &t, err
}

// Leanest returns the plan with everything on the device that takes the least of it.
func (t *Task) Leanest(ctx context.Context) (best *search.Candidate, err error) {
	for _, pl := range t.leanPlans() {
		c, err := search.Evaluate(ctx, t.Request(), pl, ForSearch(t.Machine), "the leanest plan")
		if err != nil {
			return nil, err
		}
		if best == nil || c.Program.Height[device.DeviceTier] < best.Program.Height[device.DeviceTier] {
			best = c
		}
	}
	return best, nil
}

// leanPlans lists the plans with everything on the device of which one takes the least of it: sequences are computed one by one, layers
// are recomputed, and each parameter has a chunk of its own. Either sequences pass the whole model one by one, so that the activations of
// one are there at a time, or all pass a layer before the next, so that without clipping the gradients of one layer are.
func (t *Task) leanPlans() []*plan.Plan {
	req := t.Request()
	b := t.Graph.CutSequences()
	if t.Spec.GlobalBatch%b != 0 {
		b = t.Spec.GlobalBatch
	}
	pl := plan.Plain(t.Graph, b)
	pl.MicroBatches, pl.HeadRows = t.Spec.GlobalBatch/b, req.LeastHead(b*t.Graph.Seq)
	pl.Chunks, pl.Optimizer, pl.State = plan.Layout(t.Graph, 1), req.Optimizer, t.Spec.OptimizerState[0]
	for l := range pl.Activations {
		pl.Activations[l] = plan.Recomputed("full")
	}
	if pl.MicroBatches == 1 || t.Spec.Clip > 0 { // for whose norm all gradients wait
		return []*plan.Plan{pl}
	}
	layered := *pl
	layered.Group = pl.MicroBatches
	return []*plan.Plan{pl, &layered}
}

// patience is how many sets are weighed before the best so far is taken, some ten seconds for a model of twelve layers.
const patience = 600

// Fill chooses the groups to train, by their gains, that fit into the device's memory, and returns the memory that the leanest plan
// takes to train them, and how much more another choice might gain, by the sum: 0 unless the search was broken off. The error is a *search.Misfit if none fits. It fills in what each takes alone.
func (p *Partition) Fill(ctx context.Context, overlap float64) (bytes int64, missed float64, err error) {
	limit := p.Task.Machine.Capacity[device.DeviceTier]
	k := knapsack{limit: limit, patience: patience, base: weight{live: math.MaxInt64},
		weigh: func(set []bool) (weight, error) { return p.weigh(ctx, set) },
		fits: func(set []bool) (bool, error) {
			c, err := p.lean(ctx, set)
			return err == nil && c.Program.Height[device.DeviceTier] <= limit, err
		}}
	for i := range p.Task.Graph.Params {
		k.base.deep += p.Task.Graph.Stored(i).Bytes()
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		k.items = append(k.items, item{math.Pow(max(g.Gain, 0), overlap), g.held, g.Bytes, g.layer})
		w, err := p.weigh(ctx, p.Alone(i))
		if err != nil {
			return 0, 0, err
		}
		k.base.live = min(k.base.live, w.live-g.held)
	}
	if err := p.Weigh(ctx); err != nil {
		return 0, 0, err
	}
	set, err := k.fill()
	if err != nil {
		return 0, 0, err
	}
	if set == nil {
		return 0, 0, p.tooLittle(ctx)
	}
	for i := range p.Groups {
		p.Groups[i].Chosen = set[i]
	}
	c, err := p.lean(ctx, set)
	if err != nil {
		return 0, 0, err
	}
	return c.Program.Height[device.DeviceTier], max(0, math.Pow(k.missed, 1/overlap)-math.Pow(k.most, 1/overlap)), nil
}

// PredictGain returns what the chosen groups are predicted to gain, at an overlap.
func (p *Partition) PredictGain(overlap float64) float64 {
	var sum float64
	for _, g := range p.Groups {
		if g.Chosen {
			sum += math.Pow(max(g.Gain, 0), overlap)
		}
	}
	return math.Pow(sum, 1/overlap)
}

// Overlap returns the overlap at which the chosen groups are predicted to gain what they have gained, at least 1, and mostOverlap where
// they gained no more than one of them alone.
func (p *Partition) Overlap(gained float64) float64 {
	least, most := 1.0, float64(mostOverlap)
	for range 40 {
		if mid := (least + most) / 2; p.PredictGain(mid) > gained {
			least = mid
		} else {
			most = mid
		}
	}
	return (least + most) / 2
}

// mostOverlap is an overlap at which only the largest gain of several counts.
const mostOverlap = 16

// weigh returns what the leanest plan takes at least to train a set, by lowering it as far as what is live when. Two micro-batches
// one after the other stand for more, of which none takes less.
func (p *Partition) weigh(ctx context.Context, set []bool) (weight, error) {
	t, err := p.Training(set)
	if err != nil {
		return weight{}, err
	}
	layer := math.MaxInt
	for i := range p.Groups {
		if set[i] {
			layer = min(layer, p.Groups[i].layer)
		}
	}
	least := weight{math.MaxInt64, math.MaxInt64}
	opt := t.Request().Options
	opt.Unplaced = true
	for _, pl := range t.leanPlans() {
		if pl.Group == 1 {
			pl.MicroBatches = min(pl.MicroBatches, 2)
		}
		prog, err := lower.Lower(ctx, t.Graph, pl, opt)
		if err != nil {
			return least, err
		}
		w := liveBytes(prog, func(chunk int) bool { return t.Graph.Params[pl.Chunks[chunk].First].Layer == layer })
		least = weight{min(least.live, w.live), min(least.deep, w.deep)}
	}
	return least, nil
}

// liveBytes returns the most bytes that are live on the device at any moment, and while a gradient of some chunks is.
func liveBytes(prog *program.Program, of func(chunk int) bool) (w weight) {
	live := prog.Lifetimes()
	grows, there := make([]int64, len(prog.Instrs)+1), make([]int, len(prog.Instrs)+1) // differences from one instruction to the next
	for b, buf := range prog.Buffers {
		if buf.Tier != device.DeviceTier || live[b][0] >= live[b][1] {
			continue
		}
		grows[live[b][0]] += buf.Size
		grows[live[b][1]] -= buf.Size
		var chunk int
		if _, err := fmt.Sscanf(buf.Name, "grad.c%d", &chunk); err == nil && of(chunk) {
			there[live[b][0]]++
			there[live[b][1]]--
		}
	}
	var bytes int64
	gradients := 0
	for i := range prog.Instrs {
		bytes, gradients = bytes+grows[i], gradients+there[i]
		if w.live = max(w.live, bytes); gradients > 0 {
			w.deep = max(w.deep, bytes)
		}
	}
	return w
}

// Weigh fills in what each group takes alone.
func (p *Partition) Weigh(ctx context.Context) error {
	for i := range p.Groups {
		c, err := p.lean(ctx, p.Alone(i))
		if err != nil {
			return err
		}
		p.Groups[i].Alone = c.Program.Height[device.DeviceTier]
	}
	return nil
}

// lean returns the leanest plan that trains a set.
func (p *Partition) lean(ctx context.Context, set []bool) (*search.Candidate, error) {
	t, err := p.Training(set)
	if err != nil {
		return nil, err
	}
	return t.Leanest(ctx)
}

// tooLittle is the error of memory in which nothing can be trained that gains anything.
func (p *Partition) tooLittle(ctx context.Context) error {
	least := 0
	for i := range p.Groups {
		if p.Groups[i].Alone < p.Groups[least].Alone {
			least = i
		}
	}
	g := &p.Groups[least]
	if g.Alone <= p.Task.Machine.Capacity[device.DeviceTier] {
		return p.Task.Spec.Fault("train_within", "no group of parameters that fits lowers the loss on held-out text; hint: use another learning_rate, or more memory")
	}
	c, err := p.lean(ctx, p.Alone(least))
	if err != nil {
		return err
	}
	e := search.NewMisfit(c)
	e.Hint = fmt.Sprintf("set train_within=%d, in which %s can be trained, or more", g.Alone, g.Name)
	return e
}
