package bench

import (
	"bufio"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/sim"
)

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
func Breakdown(p *program.Program, m *session.MeasuredStep, predicted *sim.Timeline, peaks *Peaks, byCall bool) []OpTime {
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

// Model returns a known model, resized where sizes are given, with at least
// length positions. The feed-forward size scales with the width unless it is given.
func Model(name string, sizes config.Model, length int) (*model.Model, error) {
	m, err := family.Known(name)
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
		m.Mamba = m.Mamba.Resize(m.Width, sizes.Width)
	}
	set(&m.Layers, sizes.Layers)
	set(&m.Width, sizes.Width)
	set(&m.Heads, sizes.Heads)
	set(&m.KVHeads, cmp.Or(sizes.KVHeads, sizes.Heads))
	if sizes.Width != 0 || sizes.Heads != 0 {
		m.HeadDim = m.Width / max(m.Heads, 1)
	}
	set(&m.FeedForward, sizes.FeedForward)
	set(&m.Experts, sizes.Experts)
	set(&m.Active, sizes.Active)
	set(&m.Vocab, sizes.Vocab)
	m.MaxPositions = max(m.MaxPositions, length)
	return m, m.Validate()
}
