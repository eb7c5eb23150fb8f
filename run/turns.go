package run

import (
	"context"
	"errors"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// turns are candidates that run on random text in turn, so that what else the
// machine does meets all: all at once in memory, or one at a time.
type turns struct {
	open     func(i int) (turn, error)
	list     []turn
	together bool
	now      int // the last one that ran, where only one is in memory
}

// turn is a candidate that is ready to run.
type turn struct {
	session  *benchSession
	devices  []device.Device
	programs []*program.Program
	steps    int
}

// takeTurns makes candidates ready, of which some may be nil; if not together, each
// when its turn comes, and the one before it no longer is. Close it.
func (m *Machine) takeTurns(ctx context.Context, g *graph.Graph, c *config.Config, list []*plan.Candidate, together bool) (t *turns, err error) {
	t = &turns{list: make([]turn, len(list)), together: together}
	t.open = func(i int) (r turn, err error) {
		if r.programs, err = m.Programs(ctx, g, c, list[i]); err != nil {
			return r, err
		}
		if r.devices, err = m.Open(r.programs); err != nil {
			return r, err
		}
		b := StepBench{Graph: g, Programs: r.programs, Devices: r.devices, Sequences: c.GlobalBatch}
		r.session, err = b.open()
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

// step executes the next step of a candidate.
func (t *turns) step(ctx context.Context, i int) (m MeasuredStep, err error) {
	if !t.together && t.list[i].session == nil {
		if err := t.list[t.now].close(); err != nil {
			return m, err
		}
		t.list[t.now], t.now = turn{}, i
		if t.list[i], err = t.open(i); err != nil {
			return m, err
		}
	}
	t.list[i].steps++
	return t.list[i].session.step(ctx, t.list[i].steps)
}

// Together, Step and Close are plan.Trials.
func (t *turns) Together() bool { return t.together }

// Step is step, but a first one that fetches memory comes before and does not count.
func (t *turns) Step(ctx context.Context, i int) (float64, error) {
	if t.list[i].steps == 0 {
		if _, err := t.step(ctx, i); err != nil {
			return 0, err
		}
	}
	s, err := t.step(ctx, i)
	return s.Seconds, err
}

// Close gives all memory back.
func (t *turns) Close() (err error) {
	for i := range t.list {
		err = errors.Join(err, t.list[i].close())
	}
	return err
}

func (t *turn) close() error {
	if t.session != nil {
		t.session.Close()
	}
	return closeAll(t.devices)
}

// exact reports whether a candidate's ranks have reached the peaks that were
// planned, to the byte.
func (t *turns) exact(i int) bool {
	for k, d := range t.list[i].devices {
		if s, ok := d.(device.Meter); !ok || s.Stats().Peak != t.list[i].programs[k].Height {
			return false
		}
	}
	return len(t.list[i].devices) > 0
}
