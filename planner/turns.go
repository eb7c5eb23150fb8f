package planner

import (
	"context"
	"errors"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// Turns runs candidates in turn on random text, so that other load on the machine
// affects all alike. All are in memory at once, or one at a time. It implements
// search.Trials.
type Turns struct {
	open     func(i int) (turn, error)
	list     []turn
	together bool
	now      int // the candidate in memory, if only one is
}

// turn is a candidate that is ready to run.
type turn struct {
	steps    *session.Stepper
	devices  []device.Device
	programs []*program.Program
	warm     bool // a step has been run
}

// TakeTurns prepares candidates to run; nil ones are skipped. If together is set, all are opened now; otherwise
// each is opened for its turn, after the previous one is closed. Ranks share sequences and matrices as each plan says. The caller closes the
// result.
func (k *Task) TakeTurns(ctx context.Context, list []*search.Candidate, together bool) (t *Turns, err error) {
	t = &Turns{list: make([]turn, len(list)), together: together}
	t.open = func(i int) (r turn, err error) {
		own, err := Divide(k, list[i].Plan.Parts(), list[i].Plan.Sharers())
		if err != nil {
			return r, err
		}
		if r.programs, err = own.Programs(ctx, list[i]); err != nil {
			return r, err
		}
		if r.devices, err = Deal(k.Machine, list[i].Plan).Open(r.programs); err != nil {
			return r, err
		}
		b := session.StepBench{Graph: own.Graph, Programs: r.programs, Devices: r.devices, Sequences: k.Spec.GlobalBatch}
		r.steps, err = b.Open()
		return r, err
	}
	for i := range list {
		if list[i] == nil || !together {
			continue
		}
		if t.list[i], err = t.open(i); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// Next runs the next step of candidate i.
func (t *Turns) Next(ctx context.Context, i int) (m session.MeasuredStep, err error) {
	if !t.together && t.list[i].steps == nil {
		if err := t.list[t.now].close(); err != nil {
			return m, err
		}
		t.list[t.now], t.now = turn{}, i
		if t.list[i], err = t.open(i); err != nil {
			return m, err
		}
	}
	t.list[i].warm = true
	return t.list[i].steps.Next(ctx)
}

// AllResident reports whether all candidates are in memory at once.
func (t *Turns) AllResident() bool { return t.together }

// Step runs a step of candidate i and returns its seconds. A first, uncounted step
// warms up its memory.
func (t *Turns) Step(ctx context.Context, i int) (float64, error) {
	if !t.list[i].warm {
		if _, err := t.Next(ctx, i); err != nil {
			return 0, err
		}
	}
	s, err := t.Next(ctx, i)
	return s.Seconds, err
}

// Close frees all memory.
func (t *Turns) Close() (err error) {
	for i := range t.list {
		err = errors.Join(err, t.list[i].close())
	}
	return err
}

func (t *turn) close() error {
	if t.steps != nil {
		t.steps.Close()
	}
	return session.CloseAll(t.devices)
}

// Exact reports whether the peaks of all ranks of candidate i equal the planned
// ones, to the byte.
func (t *Turns) Exact(i int) bool {
	for k, d := range t.list[i].devices {
		if s, ok := d.(device.Meter); !ok || s.Stats().Peak != t.list[i].programs[k].Height {
			return false
		}
	}
	return len(t.list[i].devices) > 0
}
