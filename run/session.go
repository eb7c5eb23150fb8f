package run

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Session is a model on the devices of all ranks: steps that share one set of
// arenas, the first of which owns the parameters. It is used by one goroutine.
type Session struct {
	Graph   *graph.Graph
	Devices []device.Device // by rank
	ranks   []rank
	groups  []*exec.Group // of all ranks' engines, by step
	starts  []int32       // of the documents in the latest batch
}

// rank is what a session has of one rank, by step.
type rank struct {
	engines []*exec.Engine
	progs   []*program.Program
}

// Open reserves the arenas and prepares the programs: of each step one for each
// device. All steps but the first must have been lowered with the first as
// their base. Those that have not, and ranks whose plans differ, are refused. Close
// the session, then the devices.
func Open(g *graph.Graph, devices []device.Device, steps ...[]*program.Program) (*Session, error) {
	for _, step := range steps {
		if err := agree(step, ""); err != nil {
			return nil, err
		}
	}
	for _, step := range steps[1:] {
		for r := range step {
			if err := program.Beside(steps[0][r], step[r]); err != nil {
				return nil, err
			}
		}
	}
	s := &Session{Graph: g, Devices: devices, ranks: make([]rank, len(devices))}
	for r, d := range devices {
		for _, step := range steps {
			s.ranks[r].progs = append(s.ranks[r].progs, step[r])
		}
		if err := exec.Reserve(d, s.ranks[r].progs...); err != nil {
			s.Close()
			return nil, err
		}
		for _, p := range s.ranks[r].progs {
			e, err := exec.New(p, d)
			if err != nil {
				s.Close()
				return nil, err
			}
			s.ranks[r].engines = append(s.ranks[r].engines, e)
		}
	}
	for i := range steps {
		engines := make([]*exec.Engine, len(devices))
		for r := range engines {
			engines[r] = s.ranks[r].engines[i]
		}
		s.groups = append(s.groups, exec.NewGroup(engines))
	}
	if err := s.begin(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// begin checks that the ranks have all of the parameters between them, and
// fills the constants.
func (s *Session) begin() error {
	for i := range s.Graph.Params {
		if n := s.covered(i, "p"); n != s.Graph.Params[i].Elems() {
			return fmt.Errorf("the ranks have %d of the %d elements of parameter %s", n, s.Graph.Params[i].Elems(), s.Graph.Params[i].Name)
		}
	}
	if s.Graph.Rope < 0 {
		return nil
	}
	table := graph.RopeTable(s.Graph.Model, s.Graph.Values[s.Graph.Rope].Rows)
	for r := range s.ranks {
		e := s.ranks[r].engines[0]
		if e.BufferLen("rope") == 0 {
			continue
		}
		if err := e.WriteFloats("rope", table); err != nil {
			return err
		}
	}
	return nil
}

// covered counts the elements of a parameter's state that some rank has.
func (s *Session) covered(param int, kind string) (n int64) {
	seen := map[[2]int]bool{}
	for r := range s.ranks {
		for _, p := range s.ranks[r].engines[0].Parts(param, kind) {
			if !seen[p] {
				seen[p] = true
				n += int64(p[1] - p[0])
			}
		}
	}
	return n
}

// Close ends the engines. The devices stay open.
func (s *Session) Close() {
	for _, g := range s.groups {
		g.Close()
	}
	for r := range s.ranks {
		for _, e := range s.ranks[r].engines {
			e.Close()
		}
	}
}

// Engine of step i on the first rank.
func (s *Session) Engine(i int) *exec.Engine { return s.ranks[0].engines[i] }

// Program of step i on the first rank.
func (s *Session) Program(i int) *program.Program { return s.ranks[0].progs[i] }

// Scalars are what changes from step to step.
type Scalars struct {
	Rate         float64 // learning rate
	Step         int     // of the optimizer, from 1: the bias correction
	Beta1, Beta2 float64
	Targets      int // target tokens in the global batch, the loss's denominator
	Seed         uint64
}

// Outcome of a step.
type Outcome struct {
	Loss    float64 // mean over the target tokens
	Norm    float64 // of the gradient before clipping; 0 without optimizer
	Seconds float64
	// Executed has the timeline of this step on each rank, until the next one.
	Executed []exec.Result
}

// Step runs step i on a batch of tokens and targets (one per row and
// position; a negative target does not count).
func (s *Session) Step(ctx context.Context, i int, tokens, targets []int32, sc Scalars) (Outcome, error) {
	var values [graph.NumScalars]float32
	values[graph.ScalarLR] = float32(sc.Rate)
	values[graph.ScalarCorrection1] = float32(1 - math.Pow(sc.Beta1, float64(sc.Step)))
	values[graph.ScalarCorrection2] = float32(1 - math.Pow(sc.Beta2, float64(sc.Step)))
	values[graph.ScalarLossScale] = 1 / float32(max(sc.Targets, 1))
	values[graph.ScalarChance] = graph.Chance(sc.Seed, sc.Step)
	if d := s.Graph.Documents; d != nil {
		s.starts = slices.Grow(s.starts[:0], len(tokens))[:len(tokens)]
		data.Starts(s.starts, tokens, s.Graph.Seq, d.End)
	}
	for r := range s.ranks {
		if err := s.ranks[r].feed(i, tokens, targets, s.starts, values[:]); err != nil {
			return Outcome{}, err
		}
	}
	results, err := s.groups[i].Step(ctx)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Executed: results}
	var total, clip [2]float64
	for r := range s.ranks {
		e := s.ranks[r].engines[i]
		out.Seconds = max(out.Seconds, out.Executed[r].Seconds)
		if e.BufferLen("loss.total") > 0 {
			if err := e.ReadBuffer("loss.total", total[:1]); err != nil {
				return out, err
			}
			out.Loss += total[0]
		}
		if i == 0 && e.BufferLen("clip") > 0 { // the same on all
			if err := e.ReadBuffer("clip", clip[:]); err != nil {
				return out, err
			}
			out.Norm = clip[1]
		}
	}
	out.Loss /= float64(max(sc.Targets, 1))
	return out, nil
}

// Timelines of the latest step i by rank, on one clock, until the next one.
func (s *Session) Timelines(i int) ([]*sim.Timeline, error) { return s.groups[i].Timelines() }

// feed writes what a rank's program reads: its rows of the batch.
func (k *rank) feed(i int, tokens, targets, starts []int32, scalars []float32) error {
	e, first := k.engines[i], k.progs[i].BatchRow
	for _, in := range []struct {
		name string
		all  []int32
	}{{"batch.tokens", tokens}, {"batch.targets", targets}, {"batch.starts", starts}} {
		n := e.BufferLen(in.name)
		if n == 0 {
			continue
		}
		if first+n > len(in.all) {
			return fmt.Errorf("%s: rank %d takes rows %d to %d of %d", in.name, k.progs[i].Rank, first, first+n, len(in.all))
		}
		if err := e.WriteInts(in.name, in.all[first:first+n]); err != nil {
			return err
		}
	}
	return e.WriteFloats("scalars", scalars)
}

// Read reads a parameter's state of one kind from wherever it is.
func (s *Session) Read(param int, kind string, dst []float32) error {
	for r := range s.ranks {
		if err := s.ranks[r].engines[0].ReadHome(param, kind, dst); err != nil {
			return s.lost(r, err)
		}
	}
	return nil
}

// Write writes a parameter's state of one kind to all ranks that have some of it.
func (s *Session) Write(param int, kind string, src []float32) error {
	for r := range s.ranks {
		if err := s.ranks[r].engines[0].WriteHome(param, kind, src); err != nil {
			return s.lost(r, err)
		}
	}
	return nil
}

// lost is the error of one rank between steps: if there are others, it is lost to
// them.
func (s *Session) lost(r int, err error) error {
	if len(s.ranks) == 1 {
		return err
	}
	return &exec.PeerLostError{Rank: r, Instr: -1, Err: err}
}

// Load fills every parameter from a function that reads one by its Hugging Face name
// into dst, all of it, and clears the optimizer's moments.
func (s *Session) Load(read func(name string, dst []float32) error) error {
	var room []float32 // of the largest so far: fresh memory takes longer than what is done with it
	for i, p := range s.Graph.Params {
		room = slices.Grow(room[:0], int(p.Elems()))
		buf := room[:p.Elems()]
		if err := read(p.Name, buf); err != nil {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		if err := s.Write(i, "p", buf); err != nil {
			return err
		}
		clear(buf)
		for _, kind := range []string{"m", "v"} {
			if err := s.Write(i, kind, buf); err != nil {
				return err
			}
		}
	}
	return nil
}
