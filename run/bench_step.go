package run

import (
	"bufio"
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
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
	Warmup    int // steps before those that count
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

// Run executes the steps and returns those that count, fastest first.
func (b *StepBench) Run(ctx context.Context) ([]MeasuredStep, error) {
	s, err := b.open()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var list []MeasuredStep
	for n := 1; n <= b.Warmup+b.Steps; n++ {
		counts := n > b.Warmup
		if counts && b.Before != nil {
			if err := b.Before(); err != nil {
				return nil, err
			}
		}
		m, err := s.step(ctx, n)
		if err != nil {
			return nil, err
		}
		if counts {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b MeasuredStep) int { return cmp.Compare(a.Seconds, b.Seconds) })
	return list, nil
}

// benchSession is a step that is ready to be measured.
type benchSession struct {
	*Session
	rank            int
	device          device.Device // of the rank
	tokens, targets []int32
}

func (b *StepBench) open() (*benchSession, error) {
	s, err := Open(b.Graph, b.Devices, b.Programs)
	if err != nil {
		return nil, err
	}
	params := map[string]int{}
	for i, p := range b.Graph.Params {
		params[p.Name] = i
	}
	err = s.Load(func(name string, dst []float32) error {
		// Random numbers for billions of parameters take longer than the steps, so
		// they repeat; the period divides no width.
		const period = 99991
		n := min(len(dst), period)
		Initial(b.Graph.Params[params[name]], 1, dst[:n])
		for ; n < len(dst); n *= 2 {
			copy(dst[n:], dst[:n])
		}
		return nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	tokens, targets := b.text()
	return &benchSession{s, b.Rank, b.Devices[b.Rank], tokens, targets}, nil
}

// step runs step n, counted from 1.
func (s *benchSession) step(ctx context.Context, n int) (m MeasuredStep, err error) {
	before := s.issued()
	began := time.Now()
	out, err := s.Step(ctx, 0, s.tokens, s.targets, Scalars{Rate: 1e-4, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: len(s.targets)})
	if err != nil {
		return m, err
	}
	m = MeasuredStep{Seconds: time.Since(began).Seconds(), Loss: out.Loss, Issued: s.issued() - before}
	m.Timeline, err = out.Executed[s.rank].Timeline()
	return m, err
}

// issued returns how many calls the rank's driver has received in steps.
func (s *benchSession) issued() int64 {
	if d, ok := s.device.(device.Meter); ok {
		return d.Stats().Issued
	}
	return 0
}

// text returns random tokens and, as targets, their successors. Documents, if any,
// have exactly the length that predictions assume.
func (b *StepBench) text() (tokens, targets []int32) {
	r := rand.New(rand.NewPCG(3, 3))
	n := b.Sequences * b.Graph.Seq
	text := make([]int32, n+1)
	for i := range text {
		text[i] = int32(r.IntN(b.Graph.Model.Vocab))
		switch d := b.Graph.Documents; {
		case d == nil:
		case (i%b.Graph.Seq+1)%d.Length == 0:
			text[i] = d.End
		case text[i] == d.End:
			text[i] = (d.End + 1) % int32(b.Graph.Model.Vocab)
		}
	}
	return text[:n], text[1:]
}

// OpTime is the share of a step of one operator, or one kind of call.
type OpTime struct {
	Name    string  `json:"name"`
	Stream  string  `json:"stream"`
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds"`
	// Predicted is the simulated time; 0 without a prediction.
	Predicted float64 `json:"predicted_seconds,omitempty"`
	Share     float64 `json:"share"`    // of the step; streams overlap
	GFLOPS    float64 `json:"gflops"`   // 0: moves memory
	GBS       float64 `json:"gbytes"`   // of a perfect cache
	Fraction  float64 `json:"fraction"` // of the bound by peaks; above 1: from the cache. 0 for copies
}

// Breakdown sums a measured timeline by operator or, with byCall, by kind of call,
// longest first. The compute stream's remaining time is the last line, "idle".
// predicted may be nil.
func Breakdown(p *program.Program, m *MeasuredStep, predicted *sim.Timeline, peaks *Peaks, byCall bool) []OpTime {
	type sum struct {
		OpTime
		flops, bytes int64
		bound        float64
	}
	sums := map[string]*sum{}
	var dims []graph.Dim
	for i := range p.Instrs {
		in := &p.Instrs[i]
		call := p.Call(i)
		key := in.Stream.String() + " " + in.Op.String()
		if byCall {
			key = hardware.Key(&call)
		}
		s := sums[key]
		if s == nil {
			s = &sum{OpTime: OpTime{Name: strings.TrimPrefix(key, in.Stream.String()+" "), Stream: in.Stream.String()}}
			sums[key] = s
		}
		dims = p.Dims(in, dims)
		s.Calls++
		s.Seconds += m.Timeline.Spans[i].End - m.Timeline.Spans[i].Start
		if predicted != nil {
			s.Predicted += predicted.Spans[i].End - predicted.Spans[i].Start
		}
		s.flops += in.Op.FLOPs(&in.Attr, dims)
		s.bytes += in.Op.Bytes(&in.Attr, dims)
		if in.Op != graph.Copy {
			bound, _ := peaks.bound(in.Op, &in.Attr, dims)
			s.bound += bound
		}
	}
	var list []OpTime
	for _, s := range sums {
		t := max(s.Seconds, 1e-9)
		s.Share, s.GFLOPS, s.GBS, s.Fraction = s.Seconds/m.Seconds, float64(s.flops)/t/1e9, float64(s.bytes)/t/1e9, s.bound/t
		list = append(list, s.OpTime)
	}
	slices.SortFunc(list, func(a, b OpTime) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Name, b.Name))
	})
	idle := max(m.Seconds-m.Timeline.Busy[device.Compute], 0)
	last := OpTime{Name: "idle", Stream: device.Compute.String(), Seconds: idle, Share: idle / m.Seconds}
	if predicted != nil {
		last.Predicted = predicted.Makespan - predicted.Busy[device.Compute]
	}
	return append(list, last)
}

// PeakRSS returns the process's peak resident memory in bytes; 0 if the system does
// not report it.
func PeakRSS() int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if w := strings.Fields(lines.Text()); len(w) == 3 && w[0] == "VmHWM:" {
			kib, _ := strconv.ParseInt(w[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// BenchModel returns a known model, resized where sizes are given, with at least
// length positions. The feed-forward size scales with the width unless it is given.
func BenchModel(name string, sizes config.Model, length int) (*model.Model, error) {
	m, err := model.Known(name)
	if err != nil {
		return nil, err
	}
	set := func(field *int, v int) {
		if v != 0 {
			*field = v
		}
	}
	if sizes.Width > 0 {
		m.FeedForward = m.FeedForward * sizes.Width / m.Width
	}
	set(&m.Layers, sizes.Layers)
	set(&m.Width, sizes.Width)
	set(&m.Heads, sizes.Heads)
	set(&m.KVHeads, cmp.Or(sizes.KVHeads, sizes.Heads))
	if sizes.Width != 0 || sizes.Heads != 0 {
		m.HeadDim = m.Width / max(m.Heads, 1)
	}
	set(&m.FeedForward, sizes.FeedForward)
	set(&m.Vocab, sizes.Vocab)
	m.MaxPositions = max(m.MaxPositions, length)
	return m, m.Validate()
}
