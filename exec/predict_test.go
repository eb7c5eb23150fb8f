package exec_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/sim"
)

// BenchmarkPrediction prints predicted next to measured step time for device
// budgets from everything down to a tenth of it: the machine is probed, the
// fastest plan searched, its operators profiled, the step simulated and then
// executed. Run it on a quiet machine; what another process takes between the
// profile and the steps shows as an error of the prediction.
//
//	go test -run - -bench Prediction -benchtime 10x ./exec
func BenchmarkPrediction(b *testing.B) {
	const batch = 4
	m, err := family.Known("gpt2")
	if err != nil {
		b.Fatal(err)
	}
	m.Layers, m.Width, m.Heads, m.KVHeads, m.FeedForward, m.Vocab, m.MaxPositions = 4, 256, 4, 4, 1024, 4096, 256
	g, err := graph.Build(m, m.MaxPositions, graph.F32)
	if err != nil {
		b.Fatal(err)
	}
	options := lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits}
	plain, err := lower.Lower(b.Context(), g, plan.Plain(g, batch), options)
	if err != nil {
		b.Fatal(err)
	}
	h := probe(b)
	for _, percent := range []int64{100, 80, 60, 50, 40, 30, 25, 20, 15, 10} {
		b.Run(fmt.Sprintf("device=%d%%", percent), func(b *testing.B) {
			o := options
			o.Capacity = [device.NumTiers]int64{plain.Height[device.DeviceTier] * percent / 100, 1 << 30, 1 << 30}
			best, err := search.Search(b.Context(), &search.Request{Graph: g, GlobalBatch: batch, Options: o},
				&search.Machine{Capacity: o.Capacity, Cost: h, Measure: func(c *search.Candidate) error { return profile(b, h, c.Program) }}, nil)
			if err != nil {
				b.Skip(err)
			}
			predict(b, h, best.Best.Program)
		})
	}
}

// predict profiles, simulates and executes one program.
func predict(b *testing.B, h *hardware.Hardware, p *program.Program) {
	if err := profile(b, h, p); err != nil {
		b.Fatal(err)
	}
	predicted, err := sim.Run(p, h)
	if err != nil {
		b.Fatal(err)
	}
	d := open(b)
	defer d.Close()
	if err := exec.Reserve(d, p); err != nil {
		b.Fatal(err)
	}
	e, err := exec.New(p, d)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	var times []float64
	for b.Loop() {
		r, err := e.Step(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, r.Seconds)
	}
	slices.Sort(times)
	median := times[len(times)/2]
	b.ReportMetric(1e3*predicted.Makespan, "predicted-ms")
	b.ReportMetric(1e3*median, "measured-ms")
	b.ReportMetric(median/predicted.Makespan, "ratio")
}

func open(b *testing.B) *cpu.Device {
	return cpu.New(cpu.Options{DiskPath: filepath.Join(b.TempDir(), "disk")})
}

func probe(b *testing.B) *hardware.Hardware {
	d := open(b)
	defer d.Close()
	h, err := hardware.Probe(d, hardware.Memory{Device: 1 << 30, Host: 1 << 30, Disk: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	h.AtOnce = 1
	fresh := open(b)
	defer fresh.Close()
	if err := hardware.ProbeContention(fresh, h); err != nil {
		b.Fatal(err)
	}
	return h
}

func profile(b *testing.B, h *hardware.Hardware, p *program.Program) error {
	d := open(b)
	defer d.Close()
	if err := exec.Reserve(d, p); err != nil {
		return err
	}
	times, err := hardware.Profile(p.Calls(), d, 2*time.Second)
	if err == nil {
		h.Add(times)
	}
	return err
}
