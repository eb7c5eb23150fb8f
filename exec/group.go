package exec

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Group steps the engines of joined ranks together, one goroutine per rank.
//
// When one rank fails, the devices end the others' rounds, and the step's error is that
// of the rank that failed first. A hung rank is found by its own watchdog: an engine
// whose streams wait only for peers does not blame itself, and does not time out while
// any rank progresses. If all ranks wait for peers, they are deadlocked, which is
// reported after twice the patience.
type Group struct {
	engines []*Engine
	starts  []chan struct{}
	done    chan struct{} // once per rank and step
	results []Result
	errs    []error // the failed rank's cause; for the others, a device.PeerError with the rank they waited for
}

// PeerLostError is the error of a step of several ranks, one of which failed.
type PeerLostError struct {
	Rank  int
	Instr int // failed instruction, -1 if none in particular
	Err   error
}

func (e *PeerLostError) Error() string { return fmt.Sprintf("rank %d is lost: %v", e.Rank, e.Err) }

func (e *PeerLostError) Unwrap() error { return e.Err }

// StepError is the error of one rank's step.
type StepError struct {
	Rank  int
	Instr int    // failed instruction, -1 if none in particular
	Name  string // what it is called
	Err   error
}

func (e *StepError) Error() string {
	if e.Instr < 0 {
		return fmt.Sprintf("exec: rank %d: %v", e.Rank, e.Err)
	}
	return fmt.Sprintf("exec: rank %d: %s: %v", e.Rank, e.Name, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// NewGroup joins engines, by rank, whose devices are already joined. The group uses
// them exclusively until Close, which does not close them.
func NewGroup(engines []*Engine) *Group {
	g := &Group{
		engines: engines,
		done:    make(chan struct{}, len(engines)),
		results: make([]Result, len(engines)), errs: make([]error, len(engines)),
	}
	for r, e := range engines {
		e.peers = engines
		start := make(chan struct{})
		g.starts = append(g.starts, start)
		go func() {
			for range start {
				// Once one rank has started a step, all must start it.
				g.results[r], g.errs[r] = e.Step(context.Background())
				if g.errs[r] != nil && g.blamed(r) < 0 {
					g.abandon(r)
				}
				g.done <- struct{}{}
			}
		}()
	}
	return g
}

// Step executes all programs once and returns the results by rank, valid until the next
// step. A cancelled context prevents any rank from starting. The error is that of the
// rank that failed first, as a *PeerLostError if there are several ranks.
func (g *Group) Step(ctx context.Context) ([]Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, c := range g.starts {
		c <- struct{}{}
	}
	for range g.starts {
		<-g.done
	}
	r, err := g.culprit()
	if err == nil {
		return g.results, nil
	}
	if len(g.engines) == 1 {
		return nil, err
	}
	lost := &PeerLostError{Rank: g.engines[r].program.Rank, Instr: -1, Err: err}
	var step *StepError
	if errors.As(g.errs[r], &step) {
		lost.Instr = step.Instr
	}
	return nil, lost
}

// abandon ends the steps of the ranks that may be waiting for the failed one. Ranks of its
// process know already; a host that does not answer cannot tell the others.
func (g *Group) abandon(failed int) {
	for r, e := range g.engines {
		if a, ok := e.device.(device.Aborter); ok && r != failed {
			a.Abort(device.Lost(g.engines[failed].program.Rank, g.errs[failed]))
		}
	}
}

// culprit returns the rank that made the step fail and the error to report: its own or,
// if it was lost after completing its part, that of a rank that missed it. Ranks of
// another process may name a rank that is itself a victim; then the rank named by the
// victim counts.
func (g *Group) culprit() (rank int, err error) {
	own, named, by := -1, -1, -1
	for r, err := range g.errs {
		if err == nil {
			continue
		}
		switch peer := g.blamed(r); {
		case peer < 0:
			if own < 0 {
				own = r
			}
		case named < 0 || g.errs[peer] != nil:
			named, by = peer, r
		}
	}
	for range g.errs {
		if named < 0 || g.blamed(named) < 0 {
			break
		}
		named, by = g.blamed(named), named
	}
	switch {
	case named >= 0 && g.errs[named] != nil:
		return named, g.errs[named]
	case own >= 0:
		return own, g.errs[own]
	case named >= 0:
		return named, g.errs[by]
	}
	return -1, nil
}

// blamed returns the rank that a rank's error names as lost; -1: none.
func (g *Group) blamed(r int) int {
	var peer *device.PeerError
	if errors.As(g.errs[r], &peer) && peer.Rank >= 0 && peer.Rank < len(g.errs) && peer.Rank != r {
		return peer.Rank
	}
	return -1
}

// Timelines returns the timelines of the latest step, by rank, on one clock. They are
// valid until the next step.
func (g *Group) Timelines() ([]*sim.Timeline, error) {
	spans := make([][]device.Span, len(g.engines))
	programs := make([]*program.Program, len(g.engines))
	for r, e := range g.engines {
		spans[r], programs[r] = e.spans, e.program
	}
	return sim.NewAll(programs, spans)
}

// Close stops the group's goroutines. No step may be in progress.
func (g *Group) Close() {
	for _, c := range g.starts {
		close(c)
	}
	for _, e := range g.engines {
		e.peers = nil
	}
	g.starts = nil
}
