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

// turns are candidates that are ready to run on random text, all at once in
// memory, so that their steps can take turns: what else the machine does meets all.
type turns []turn

// turn is one of them; without a candidate it is empty.
type turn struct {
	session  *benchSession
	devices  []device.Device
	programs []*program.Program
	steps    int
}

// takeTurns opens the candidates, of which some may be nil. Close it.
func (m *Machine) takeTurns(ctx context.Context, g *graph.Graph, c *config.Config, list []*plan.Candidate) (t turns, err error) {
	t = make(turns, len(list))
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	for i, cand := range list {
		if cand == nil {
			continue
		}
		if t[i].programs, err = m.Programs(ctx, g, c, cand); err != nil {
			return nil, err
		}
		if t[i].devices, err = m.Open(t[i].programs); err != nil {
			return nil, err
		}
		b := StepBench{Graph: g, Programs: t[i].programs, Devices: t[i].devices, Sequences: c.GlobalBatch}
		if t[i].session, err = b.open(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// step executes the next step of a candidate.
func (t turns) step(ctx context.Context, i int) (MeasuredStep, error) {
	t[i].steps++
	return t[i].session.step(ctx, t[i].steps)
}

// exact reports whether a candidate's ranks have reached the peaks that were
// planned, to the byte.
func (t turns) exact(i int) bool {
	for k, d := range t[i].devices {
		if s, ok := d.(interface{ Stats() device.Stats }); !ok || s.Stats().Peak != t[i].programs[k].Height {
			return false
		}
	}
	return len(t[i].devices) > 0
}

func (t turns) close() (err error) {
	for i := range t {
		if t[i].session != nil {
			t[i].session.Close()
		}
		err = errors.Join(err, closeAll(t[i].devices))
	}
	return err
}
