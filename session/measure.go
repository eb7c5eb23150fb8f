package session

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// StepBench measures the steps of a training program on random text, with initial
// parameters.
type StepBench struct {
	Graph     *graph.Graph
	Programs  []*program.Program
	Devices   []device.Device
	Rank      int // whose timeline is recorded
	Sequences int // per step
	Warmup    int // steps before those that count; the first has no deferred updates to make
	Steps     int
	// Before, if not nil, is called before every step that counts.
	Before func() error
}

// MeasuredStep is one step of a StepBench. It owns its timeline.
type MeasuredStep struct {
	Seconds  float64
	Loss     float64
	Issued   int64 // calls of the rank's driver; see device.Stats
	Timeline *sim.Timeline
}

// Run executes the steps and returns those that count, fastest first. Where timing calls costs time, as it does on a
// GPU, they run untimed, as in training, and all get the timeline of one additional step.
func (b *StepBench) Run(ctx context.Context) ([]MeasuredStep, error) {
	s, err := b.Open()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	untimed := s.session.SetClock(false)
	var list []MeasuredStep
	for n := 1; n <= b.Warmup+b.Steps; n++ {
		counts := n > b.Warmup
		if counts && b.Before != nil {
			if err := b.Before(); err != nil {
				return nil, err
			}
		}
		m, err := s.next(ctx, !untimed)
		if err != nil {
			return nil, err
		}
		if counts {
			list = append(list, m)
		}
	}
	if s.session.SetClock(true) {
		m, err := s.Next(ctx)
		if err != nil {
			return nil, err
		}
		for i := range list {
			list[i].Timeline = m.Timeline
		}
	}
	slices.SortFunc(list, func(a, b MeasuredStep) int { return cmp.Compare(a.Seconds, b.Seconds) })
	return list, nil
}

// Stepper runs the steps of a StepBench one by one, when its caller asks.
type Stepper struct {
	session *Session
	rank    int // whose timeline is recorded
	steps   int // done
	batch   Batch
}

// Open prepares the steps to be run one by one. Close the result before the devices.
func (b *StepBench) Open() (*Stepper, error) {
	s, err := Open(b.Graph, b.Devices, b.Programs)
	if err != nil {
		return nil, err
	}
	return b.stepper(s)
}

// stepper takes ownership of a session and fills its parameters.
func (b *StepBench) stepper(s *Session) (*Stepper, error) {
	err := s.Load(func(p model.Param, _ int, dst []float32) error {
		// Random numbers for billions of parameters take longer than the steps, so
		// they repeat; the period divides no width.
		const period = 99991
		n := min(len(dst), period)
		Initial(p, 1, 0, dst[:n])
		repeat(dst, n)
		p.Thin(dst)
		return nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	step := &Stepper{session: s, rank: b.Rank}
	step.batch = b.text()
	return step, nil
}

// repeat repeats the first n numbers up to the end of dst, on several cores if dst is long.
func repeat(dst []float32, n int) {
	most := 64 * n // numbers per part: 25 MB
	for ; n < min(len(dst), most); n *= 2 {
		copy(dst[n:], dst[:n])
	}
	var all sync.WaitGroup
	for at := most; at < len(dst); at += most {
		all.Go(func() { copy(dst[at:min(at+most, len(dst))], dst) })
	}
	all.Wait()
}

// Close closes the session. The devices stay open.
func (s *Stepper) Close() { s.session.Close() }

// Next runs the next step.
func (s *Stepper) Next(ctx context.Context) (MeasuredStep, error) { return s.next(ctx, true) }

func (s *Stepper) next(ctx context.Context, timed bool) (m MeasuredStep, err error) {
	s.steps++
	before := s.issued()
	began := clock.Now()
	out, err := s.session.Step(ctx, 0, s.batch, Scalars{Rate: 1e-4, Step: s.steps, Beta1: 0.9, Beta2: 0.95, Targets: len(s.batch.Targets)})
	if err != nil {
		return m, err
	}
	m = MeasuredStep{Seconds: clock.Since(began).Seconds(), Loss: out.Loss, Issued: s.issued() - before}
	if timed {
		m.Timeline, err = out.Executed[s.rank].Timeline()
	}
	return m, err
}

// issued returns how many calls the rank's driver has received in steps.
func (s *Stepper) issued() int64 {
	if d, ok := s.session.Devices[s.rank].(device.Meter); ok {
		return d.Stats().Issued
	}
	return 0
}

// text returns random tokens and, as targets, their successors. Documents, if any,
// have exactly the length that predictions assume.
func (b *StepBench) text() Batch {
	r := rand.New(rand.NewPCG(3, 3))
	n, seq := b.Sequences*b.Graph.Sequence(), b.Graph.Sequence()
	text, starts := make([]int32, n+1), make([]int32, n)
	for i := range text {
		text[i] = int32(r.IntN(b.Graph.Model.Vocab))
		switch d := b.Graph.Documents; {
		case d == nil:
		case (i%seq+1)%d.Length == 0:
			text[i] = d.End
		case text[i] == d.End:
			text[i] = (d.End + 1) % int32(b.Graph.Model.Vocab)
		}
		if at := i % seq; i < n && b.Graph.Documents != nil {
			starts[i] = int32(at - at%b.Graph.Documents.Length)
		}
	}
	return Batch{text[:n], text[1:], starts}
}
