package session

import (
	"context"
	"errors"
	"slices"

	"github.com/athanor-llm/athanor/program"
)

// A step may leave updates for the next one, see plan.Plan.Defer. Parameters are then up to date only after the next step has
// begun, or after Settle.

// settled tells the next step of all ranks that there are no deferred updates.
func (s *Session) settled() error {
	s.pending = false
	for r := range s.ranks {
		if k := &s.ranks[r]; k.progs[0].Defers() {
			if err := k.engines[0].WriteFloats(program.Clip, []float32{0, 0}); err != nil {
				return err
			}
		}
	}
	return nil
}

// defers reports whether step 0 leaves updates for the next one.
func (s *Session) defers() bool {
	return slices.ContainsFunc(s.ranks, func(k rank) bool { return k.progs[0].Defers() })
}

// Settle makes the updates that the latest step has left for the next one. Read, Write and other steps call it themselves.
func (s *Session) Settle(ctx context.Context) error {
	if !s.pending {
		return nil
	}
	if s.settles == len(s.groups) {
		return errors.New("the latest step has deferred updates, and there are no programs for them; hint: use OpenDeferred")
	}
	for r := range s.ranks {
		if err := s.ranks[r].engines[s.settles].WriteFloats(program.PendingScalars, s.latest); err != nil {
			return err
		}
	}
	if _, err := s.groups[s.settles].Step(ctx); err != nil {
		return err
	}
	return s.settled()
}
