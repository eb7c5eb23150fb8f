package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// How many ranks share each sequence, where the configuration leaves it open.
//
// Approach. Ranks that have whole sequences send each other nothing for activations, so as long as memory suffices sharing wins
// nothing. It is considered if no plan fits without it, or if the best one has one sequence at a time and still recomputes or swaps
// activations, or has ranks wait in a pipeline. Each number of ranks that can share a sequence is dismissed if the messages with
// keys and values alone take too long; else a sketch says whether a search is worth its time.
//
// Known weakness: sketches may be slower than the plan that a search would find by more than sharing would win.

// enoughGain is the share of a step's time that sharing must win: what it is predicted to win is less certain than the rest.
const enoughGain = 0.05

// PlanAny is Plan with the first format of the optimizer's state with which anything fits, and with the number of ranks to a sequence
// that is fastest, if that is open: the result's plan says how many. If nothing fits, the error is that of the format that lacks
// least memory. A plan without the disk is preferred to one that would soon use it up and is hardly faster (see unworn).
func (t *Task) PlanAny(ctx context.Context, note func(string)) (*search.Result, error) {
	best, err := t.planShared(ctx, note)
	if err != nil || best.Best.Plan.Parts() > 1 {
		return best, err
	}
	return t.unworn(ctx, best, note)
}

// planShared is PlanAny without regard to the disk's wear.
func (t *Task) planShared(ctx context.Context, note func(string)) (*search.Result, error) {
	best, err := t.planAny(ctx, note, false)
	unequal := t.Spec.GlobalBatch%t.Machine.Ranks() != 0 // so without sharing there is at most a pipeline
	if err == nil && !pressed(best.Best.Plan) || err != nil && !unequal && !errors.Is(err, search.ErrDoesNotFit) {
		return best, err
	}
	for _, n := range t.shares() {
		if best != nil && t.told() {
			break
		}
		other, bad := t.shared(n)
		if bad != nil || best != nil && other.leastExchange() > (1-enoughGain)*best.Fastest() {
			continue // its sequences cannot be shared by so many, or not as fast
		}
		note(fmt.Sprintf("%d ranks to a sequence", n))
		sketch, bad := other.planAny(ctx, note, true)
		if bad == nil && (best == nil || sketch.Best.Seconds() < (1-enoughGain)*best.Fastest()) {
			sketch, bad = other.planAny(ctx, note, false)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case bad == nil && (best == nil || sketch.Fastest() < (1-enoughGain)*best.Fastest()):
			best, err = sketch, nil
		case best == nil && lack(bad) < lack(err):
			err = bad
		}
	}
	return best, err
}

// leastExchange returns the seconds of a step in which a rank with a sequence's end receives the keys and values of the others,
// which it does for the forward pass and again for the backward pass: no plan that shares sequences is faster.
func (t *Task) leastExchange() (seconds float64) {
	n, m := t.Graph.Parts(), t.Graph.Model
	part := device.Operand{DType: t.Graph.DType, Rows: t.Graph.Seq, Cols: 2 * m.KVHeads * m.HeadDim, Stride: 2 * m.KVHeads * m.HeadDim}
	for from := 1; from < n; from++ {
		seconds += t.Machine.Hardware.Cost(&device.Call{Op: graph.Recv, Stream: device.Recv, Args: []device.Operand{part}, Peers: []int{from}})
	}
	sequences := t.Spec.GlobalBatch * n / t.Machine.Ranks() // that a rank has a part of
	return seconds * float64(2*m.Layers*sequences)
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
	return pl.MicroBatch == 1 && (pl.Pipeline != nil || slices.ContainsFunc(pl.Activations, func(keep plan.Retention) bool { return keep != plan.Recomputed("none") }))
}

// shares lists how many ranks may share each sequence besides what the graph says, if that is open.
func (t *Task) shares() (list []int) {
	p, ranks := &t.Spec.Plan, t.Machine.Ranks()
	if t.Graph.PerSequence() > 1 || t.Spec.Given("plan.sequence") || p.File != "" || p.Schedule != "" || p.Pipeline > 1 || p.Slices > 1 || len(p.Stages) > 0 {
		return nil
	}
	for n := 2; n <= ranks; n++ {
		if ranks%n == 0 && t.Spec.GlobalBatch%(ranks/n) == 0 {
			list = append(list, n)
		}
	}
	return list
}

// shared returns the task with n ranks to a sequence.
func (t *Task) shared(n int) (*Task, error) {
	spec := t.Spec.WithShare(n, 1)
	g, err := BuildGraph(spec, t.Graph.Model, t.Graph.Documents)
	return &Task{t.Machine, g, spec, t.Enough}, err
}
