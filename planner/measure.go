package planner

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// profileBudget is the time to spend on timing the operators of a candidate, see
// hardware.Profile.
const profileBudget = 3 * time.Second

// Hour returns what other work leaves of a machine that is at hand; nil for another.
func Hour(m *machine.Machine) *search.Hour {
	if !m.AtHand() {
		return nil
	}
	timed, now := m.Paces()
	return &search.Hour{Timed: timed, Now: now}
}

// measure times those operators of a candidate that a machine's description lacks, in
// arenas of the candidate's size and on all ranks at once, and as many times as there are jobs, since they share cores and
// memory.
func measure(m *machine.Machine, c *search.Candidate) error {
	known := true
	for _, p := range c.Programs {
		for i := range p.Instrs {
			call := p.Call(i)
			if _, ok := m.Hardware.Times[hardware.Key(&call)]; !ok && !call.Op.Info().Between {
				known = false
				break
			}
		}
	}
	if known {
		return nil
	}
	n := m.Ranks() * m.Jobs()
	programs := make([]*program.Program, n)
	for r := range programs {
		programs[r] = c.Programs[r%len(c.Programs)]
	}
	pace := m.Pace()
	devices, err := m.OneAtATime().Open(programs)
	if err != nil {
		return err
	}
	defer session.CloseAll(devices)
	for r, d := range devices {
		if err := exec.Reserve(d, programs[r]); err != nil {
			return err
		}
	}
	times, errs := make([][]hardware.Measurement, n), make([]error, n)
	var all sync.WaitGroup
	for r, d := range devices {
		all.Go(func() { times[r], errs[r] = hardware.Profile(programs[r].Calls(), d, profileBudget) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	list := slices.Concat(times[:len(c.Programs)]...)
	if m.Hardware.AtOnce > 0 && m.Hardware.AtOnce < m.Ranks() {
		for i := range list {
			list[i].Gap = 0 // it includes waiting for other ranks' turns
		}
	}
	m.Learn(list, min(pace, m.Pace()))
	return nil
}
