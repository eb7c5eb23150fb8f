package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// How many ranks share each sequence, or each matrix, where the configuration leaves it open.
//
// Approach. Ranks that have whole sequences and matrices send each other nothing for activations, so as long as memory suffices sharing
// wins nothing. It is considered if no plan fits without it, or if the best one has one sequence at a time and still recomputes or swaps
// activations, or has ranks wait in a pipeline. Each number of ranks that can share a sequence or a matrix is dismissed if the messages
// with keys and values alone, or the sums, take too long beside the arithmetic; else a sketch says whether a search is worth its time. On the
// machine at hand the best plans of the divisions that were searched run a few steps each if the run is long enough (search.Trial).
//
// Matrices are shared only where nothing fits, there are fewer sequences than ranks, or weights come from the host at each use, of which
// each rank then fetches a part, with any number of sequences at a time: else ranks would add up results to no gain that sharding does not have too.
//
// Known weakness: where messages with keys and values would hide behind attention, sharing may be dismissed for them. Sketches may
// be slower than the plan that a search would find by more than sharing would win.

// enoughGain is the share of a step's time that sharing must win: what it is predicted to win is less certain than the rest.
const enoughGain = 0.05

// PlanAny is Plan with the first format of the optimizer's state with which anything fits, and with the numbers of ranks to a sequence
// and to a matrix that are fastest, if they are open: the result's plan says how many. If nothing fits, the error is that of the format
// that lacks least memory. A plan without the disk is preferred to one that would soon use it up and is hardly faster (see unworn).
func (t *Task) PlanAny(ctx context.Context, note func(string)) (*search.Result, error) {
	best, err := t.planShared(ctx, note)
	if err != nil || best.Best.Plan.PerSequence() > 1 {
		return best, err
	}
	return t.unworn(ctx, best, note)
}

// planShared is PlanAny without regard to the disk's wear.
func (t *Task) planShared(ctx context.Context, note func(string)) (*search.Result, error) {
	best, err := t.planAny(ctx, note, false)
	if t.Machine.Ranks() == 1 {
		if err != nil {
			return planInParts(ctx, t, note, err)
		}
		return best, nil
	}
	unequal := t.Spec.GlobalBatch%t.Machine.Ranks() != 0 // so without sharing there is at most a pipeline
	if err != nil && !unequal && !errors.Is(err, search.ErrDoesNotFit) {
		return best, err
	}
	sequences, matrices := true, true // what sharing may be worth its price
	if best != nil {
		pl := best.Best.Plan
		sequences, matrices = pressed(pl), pressed(pl) && (unequal || pl.Pipeline != nil) || streamed(pl)
	}
	sketches, lacks, bad := sketchDivisions(ctx, t, note, best, func(d division) bool {
		return (d.sequence == 1 || sequences) && (d.tensor == 1 || matrices)
	})
	if bad != nil {
		return nil, bad
	}
	if best == nil && len(lacks) > 0 && lack(lacks[0]) < lack(err) {
		err = lacks[0]
	}
	return searchDivisions(ctx, t, note, best, err, sketches)
}

// searchDivisions searches the divisions whose sketches are fast enough, and returns the best result, at first best or misfit. If the run is
// long enough to pay for it, the plans that are found run a few steps each, which decides.
func searchDivisions(ctx context.Context, t *Task, note func(string), best *search.Result, misfit error, sketches []sketched) (*search.Result, error) {
	bar, shares := math.Inf(1), false // what a division must beat; whether the best so far is one
	trial := t.trial()
	var found []*search.Result
	if best != nil {
		bar = (1 - enoughGain) * best.Fastest()
		found = append(found, best)
	}
	for i, s := range sketches {
		slack := 1.0
		if i < 2 && worthSearching(trial, s.result) || shares {
			slack += sketchSlack
		}
		if best != nil && (t.told() || formatOf(t, s.result) > formatOf(t, best)) || s.result.Best.Seconds() >= slack*bar {
			continue
		}
		r, err := s.task.planAny(ctx, note, false)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || best != nil && formatOf(t, r) > formatOf(t, best) {
			continue
		}
		if found = append(found, r); r.Fastest() < bar {
			best, misfit, bar, shares = r, nil, r.Fastest(), true
		}
	}
	if len(found) < 2 || trial == nil || !worthSearching(trial, best) || t.told() {
		return best, misfit
	}
	var list []*search.Candidate
	for _, r := range found {
		list = append(list, r.Best)
	}
	fastest, err := trial.Choose(ctx, list, note)
	if err != nil {
		return nil, err
	}
	return found[slices.IndexFunc(found, func(r *search.Result) bool { return r.Best == fastest })], nil
}

// formatOf returns the place of a plan's format of the optimizer's state among those that the configuration allows: where one fits, no later
// one is taken to be faster.
func formatOf(t *Task, r *search.Result) int {
	return slices.Index(t.Spec.OptimizerState, r.Best.Plan.State)
}

// worthSearching reports whether a run whose steps take as long as a plan's is so long that a division is searched, and tried, though its
// sketch is not the fastest: without trials, which is on a described machine, always.
func worthSearching(trial *search.Trial, r *search.Result) bool {
	return trial == nil || trial.Worth(r.Best.Seconds()) >= longSearch
}

// longSearch is what a search may take on a machine at hand, which times its operators.
const longSearch = 30 * time.Second

// sketchSlack is by how much a sketch may be behind the plan that a search would find. The two fastest are searched if they are no further
// behind what must be beaten, and the others, if they are no further behind the best division.
const sketchSlack = 0.1

// sketched is a division of ranks, and the sketch of its plan.
type sketched struct {
	task   *Task
	result *search.Result
}

// sketchDivisions sketches plans of all divisions that may be faster than the best plan so far, the fastest first, and returns what the
// others lack, the least first.
func sketchDivisions(ctx context.Context, t *Task, note func(string), best *search.Result, worth func(division) bool) (list []sketched, lacks []error, err error) {
	bound := math.Inf(1)
	if best != nil {
		bound = (1 - enoughGain) * best.Fastest()
	}
	try := func(d division) error {
		if !worth(d) || best != nil && t.told() {
			return nil
		}
		other, bad := t.divided(d)
		if bad != nil || !math.IsInf(bound, 1) && leastStep(other) > bound {
			return nil // they cannot be shared by so many, or not as fast
		}
		note(d.String())
		switch sketch, bad := other.planAny(ctx, note, true); {
		case ctx.Err() != nil:
			return ctx.Err()
		case bad == nil:
			list = append(list, sketched{other, sketch})
			bound = min(bound, (1+sketchSlack)*sketch.Best.Seconds())
		case errors.Is(bad, search.ErrDoesNotFit):
			lacks = append(lacks, bad)
		}
		return nil
	}
	most := 0
	for _, d := range t.divisions() {
		if err := try(d); err != nil {
			return nil, nil, err
		}
		most = max(most, d.sequence*d.tensor)
	}
	if len(list) > 0 { // both are tried with as many ranks as the best of either has
		most = slices.MinFunc(list, func(a, b sketched) int { return cmp.Compare(a.result.Best.Seconds(), b.result.Best.Seconds()) }).task.Spec.PerSequence()
	}
	for n := 2; n < most && !t.Spec.Given("plan.tensor") && !t.Spec.Given("plan.sequence"); n++ {
		if most%n == 0 {
			if err := try(division{most / n, n}); err != nil {
				return nil, nil, err
			}
		}
	}
	slices.SortStableFunc(list, func(a, b sketched) int { return cmp.Compare(a.result.Best.Seconds(), b.result.Best.Seconds()) })
	slices.SortStableFunc(lacks, func(a, b error) int { return cmp.Compare(lack(a), lack(b)) })
	return list, lacks, nil
}

// leastStep estimates what a step takes at least whose ranks exchange results between products: the arithmetic, and the messages. Sums
// hardly hide behind it; keys and values that are exchanged by parts of their heads do, so it is no bound for these.
func leastStep(t *Task) float64 {
	return search.LeastArithmetic(t.Request(), ForSearch(t.Machine)) + t.leastExchange()
}

// leastExchange returns the seconds of a step that no plan saves of what ranks exchange because they share sequences or matrices. A rank
// with a sequence's end receives the keys and values of the others for the forward pass, and again for the backward pass. Ranks that
// share matrices add up two results of each layer in either pass.
func (t *Task) leastExchange() (seconds float64) {
	n, m := t.Graph.Parts(), t.Graph.Model
	operand := func(cols int) []device.Operand {
		return []device.Operand{{DType: t.Graph.DType, Rows: t.Graph.Seq, Cols: cols, Stride: cols}}
	}
	cols := 2 * min(m.KVHeads*m.HeadDim, model.KVHeadsOf(m, m.Layers-1)*model.HeadDimOf(m, m.Layers-1)) // of the layers with the fewest
	for from := 1; from < n; from++ {
		seconds += 2 * t.Machine.Hardware.Cost(&device.Call{Op: graph.Recv, Stream: device.Recv, Args: operand(cols), Peers: []int{from}})
	}
	if n := t.Graph.Shared(); n > 1 {
		sum := device.Call{Op: graph.AllReduce, Stream: device.Collective, Args: operand(m.Width)}
		for r := range n {
			sum.Peers = append(sum.Peers, r)
		}
		return seconds + 4*t.Machine.Hardware.Cost(&sum)*float64(m.Layers*sequencesOfRank(t))
	}
	whole := 0 // layers without a window: others send only the keys within it
	for l := range m.Layers {
		if w := m.WindowOf(l); w == 0 || w >= t.Graph.Sequence() {
			whole++
		}
	}
	return seconds * float64(whole*sequencesOfRank(t))
}

// sequencesOfRank returns of how many sequences a rank has a part.
func sequencesOfRank(t *Task) int {
	return t.Spec.GlobalBatch * t.Graph.PerSequence() / t.Machine.Ranks()
}

// told reports whether what has been found is enough.
func (t *Task) told() bool {
	select {
	case <-t.Enough:
		return true
	default:
		return false
	}
}

// pressed reports whether a plan gives up time because one sequence at a time takes too much memory, or has ranks wait in a pipeline
// for want of sequences. With several sequences at a time, fewer would need less memory too.
func pressed(pl *plan.Plan) bool {
	return pl.MicroBatch == 1 && (pl.Pipeline != nil || lean(pl))
}

// streamed reports whether weights come from the host at each use, and activations take too much memory as well.
func streamed(pl *plan.Plan) bool {
	return lean(pl) && slices.ContainsFunc(pl.Chunks, func(c plan.Chunk) bool { return c.Weights != device.DeviceTier && c.Lookup == "" })
}

// lean reports whether activations are recomputed or swapped.
func lean(pl *plan.Plan) bool {
	return slices.ContainsFunc(pl.Activations, func(keep plan.Retention) bool { return keep != plan.Recomputed("none") })
}

// division says how many ranks share each sequence, and how many each matrix.
type division struct{ sequence, tensor int }

func (d division) String() string {
	if d.tensor > 1 && d.sequence > 1 {
		return fmt.Sprintf("%d ranks to a matrix, %d groups of them to a sequence", d.tensor, d.sequence)
	}
	if d.tensor > 1 {
		return fmt.Sprintf("%d ranks to a matrix", d.tensor)
	}
	return fmt.Sprintf("%d ranks to a sequence", d.sequence)
}

// divisions lists how ranks may share sequences or matrices besides what the graph says, as far as that is open.
func (t *Task) divisions() (list []division) {
	p, ranks := &t.Spec.Plan, t.Machine.Ranks()
	if t.Graph.PerSequence() > 1 || p.File != "" || p.Schedule != "" || p.Pipeline > 1 || p.Slices > 1 || len(p.Stages) > 0 {
		return nil
	}
	for n := 2; n <= ranks; n++ {
		if ranks%n != 0 || t.Spec.GlobalBatch%(ranks/n) != 0 {
			continue
		}
		if !t.Spec.Given("plan.tensor") {
			list = append(list, division{1, n})
		}
		if !t.Spec.Given("plan.sequence") {
			list = append(list, division{n, 1})
		}
	}
	return list
}

// Divide returns the task with that many ranks to a sequence and to a matrix: t itself if they are so many, an error if they cannot be.
func Divide(t *Task, sequence, tensor int) (*Task, error) {
	if t.Graph.Parts() == sequence && t.Graph.Shared() == tensor {
		return t, nil
	}
	return t.divided(division{sequence, tensor})
}

// divided returns the task with ranks that share sequences or matrices.
func (t *Task) divided(d division) (*Task, error) {
	spec := t.Spec.WithShare(d.sequence, d.tensor)
	g, err := BuildGraph(spec, t.Graph.Model, t.Graph.Documents)
	return &Task{Machine: t.Machine.Deal(spec.PerSequence(), 1), Graph: g, Spec: spec, Enough: t.Enough}, err
}
