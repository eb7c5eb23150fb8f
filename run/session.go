package run

import (
	"context"
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Session is a model on a device: programs that share one set of arenas, the
// first of which owns the parameters. It is used by one goroutine.
type Session struct {
	Graph   *graph.Graph
	Device  device.Device
	engines []*exec.Engine
	progs   []*program.Program
}

// Open reserves the arenas and prepares the programs. All but the first must
// have been lowered with the first as their base. Close the session, then the
// device.
func Open(g *graph.Graph, d device.Device, progs ...*program.Program) (*Session, error) {
	s := &Session{Graph: g, Device: d, progs: progs}
	if err := exec.Reserve(d, progs...); err != nil {
		return nil, err
	}
	for _, p := range progs {
		e, err := exec.New(p, d)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.engines = append(s.engines, e)
	}
	if g.Rope >= 0 {
		if err := s.engines[0].WriteFloats("rope", graph.RopeTable(g.Model, g.Values[g.Rope].Rows)); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Close ends the engines. The device stays open.
func (s *Session) Close() {
	for _, e := range s.engines {
		e.Close()
	}
}

// Engine of program i, in the order given to Open.
func (s *Session) Engine(i int) *exec.Engine { return s.engines[i] }

// Program i, in the order given to Open.
func (s *Session) Program(i int) *program.Program { return s.progs[i] }

// Scalars are what changes from step to step.
type Scalars struct {
	Rate         float64 // learning rate
	Step         int     // of the optimizer, from 1: the bias correction
	Beta1, Beta2 float64
	Targets      int // target tokens in the global batch, the loss's denominator
}

// Outcome of a step.
type Outcome struct {
	Loss    float64 // mean over the target tokens
	Norm    float64 // of the gradient before clipping; 0 without optimizer
	Seconds float64
	// Executed has the timeline of this step, until the next one.
	Executed exec.Result
}

// Step runs program i on a batch of tokens and targets (one per row and
// position; a negative target does not count).
func (s *Session) Step(ctx context.Context, i int, tokens, targets []int32, sc Scalars) (Outcome, error) {
	e := s.engines[i]
	values := make([]float32, graph.NumScalars)
	values[graph.ScalarLR] = float32(sc.Rate)
	values[graph.ScalarCorrection1] = float32(1 - math.Pow(sc.Beta1, float64(sc.Step)))
	values[graph.ScalarCorrection2] = float32(1 - math.Pow(sc.Beta2, float64(sc.Step)))
	values[graph.ScalarLossScale] = 1 / float32(max(sc.Targets, 1))
	if err := e.WriteInts("batch.tokens", tokens); err != nil {
		return Outcome{}, err
	}
	if err := e.WriteInts("batch.targets", targets); err != nil {
		return Outcome{}, err
	}
	if err := e.WriteFloats("scalars", values); err != nil {
		return Outcome{}, err
	}
	r, err := e.Step(ctx)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Seconds: r.Seconds, Executed: r}
	total := make([]float64, 1)
	if err := e.ReadBuffer("loss.total", total); err != nil {
		return out, err
	}
	out.Loss = total[0] / float64(max(sc.Targets, 1))
	if i == 0 && s.has(i, "clip") {
		clip := make([]float64, 2)
		if err := e.ReadBuffer("clip", clip); err != nil {
			return out, err
		}
		out.Norm = clip[1]
	}
	return out, nil
}

// has reports whether program i has a buffer of that name.
func (s *Session) has(i int, name string) bool {
	for k := range s.progs[i].Buffers {
		if s.progs[i].Buffers[k].Name == name {
			return true
		}
	}
	return false
}

// Load fills every parameter from a function that reads one by its Hugging Face name
// into dst, and clears the optimizer's moments.
func (s *Session) Load(read func(name string, dst []float32) error) error {
	for i, p := range s.Graph.Params {
		buf := make([]float32, p.Elems())
		if err := read(p.Name, buf); err != nil {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		if err := s.engines[0].WriteHome(i, "p", buf); err != nil {
			return err
		}
		clear(buf)
		for _, kind := range []string{"m", "v"} {
			if s.engines[0].HomeLen(i, kind) == 0 {
				continue // a program that does not train
			}
			if err := s.engines[0].WriteHome(i, kind, buf); err != nil {
				return err
			}
		}
	}
	return nil
}
