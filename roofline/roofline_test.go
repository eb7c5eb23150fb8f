package roofline_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/roofline"
	"github.com/athanor-llm/athanor/sim"
)

// TestIntensity: a product of m tokens with 4096 x 4096 weights in 16 bits has the intensity 2mkn/(2(mk+kn+mn)): 1.00 for
// one token, 62.06 for 64, 682.67 for 1024 FLOP/B.
func TestIntensity(t *testing.T) {
	const k, n = 4096, 4096
	for m, want := range map[int]string{1: "1.00", 64: "62.06", 1024: "682.67"} {
		dims := []graph.Dim{{DType: graph.BF16, Rows: m, Cols: n}, {DType: graph.BF16, Rows: m, Cols: k}, {DType: graph.BF16, Rows: n, Cols: k}, {}, {}}
		flops, moved := graph.Linear.FLOPs(&graph.Attr{}, dims), graph.Linear.Bytes(&graph.Attr{}, dims)
		if got := fmt.Sprintf("%.2f", float64(flops)/float64(moved)); got != want || flops != int64(2*m*k*n) {
			t.Errorf("%d tokens: %s FLOP/B, expected %s", m, got, want)
		}
	}
}

// TestRidges: ridges are peak by bandwidth: with the rates of data sheets 153 FLOP/B on an A100-80 and 206 on an H200. What
// described machines have is further right by the part of the sheet's bandwidth that their memory reaches.
func TestRidges(t *testing.T) {
	for name, c := range map[string]struct{ peak, bandwidth, ridge float64 }{"a100-80": {312e12, 2039e9, 153}, "h200": {989.4e12, 4800e9, 206}} {
		h, err := hardware.KnownRank(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		r := report(t, h)
		for _, l := range r.Ridges {
			if l.Stream == "compute" && l.DType == "bf16" {
				if sheet := l.Ridge * l.Bandwidth / c.bandwidth; l.Peak != c.peak || math.Abs(sheet-c.ridge) > 0.5 || l.Ridge != l.Peak/l.Bandwidth || l.Bandwidth > c.bandwidth {
					t.Errorf("%s: %+v, by the sheet %.1f FLOP/B", name, l, sheet)
				}
			}
		}
	}
}

// step returns the program of a small model's step, whose optimizer state is on the host.
func step(t *testing.T) *program.Program {
	t.Helper()
	g := samples.BuildGPT(t, 3, 64, 4, 96, 64, true)
	p, err := lower.Lower(t.Context(), g, plan.Plain(g, 4), lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func report(t *testing.T, h *hardware.Hardware) *roofline.Report {
	t.Helper()
	r, err := roofline.Analyse([]*program.Program{step(t)}, 1, h)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAnalyse: the step takes what the simulator says, kinds have all calls and all FLOPs of the program, each call's price is
// no less than its arithmetic and its memory, and a part that is twice as fast brings what the machine with that part, made
// anew, takes less.
func TestAnalyse(t *testing.T) {
	h, err := hardware.KnownRank("l4", 1)
	if err != nil {
		t.Fatal(err)
	}
	p, r := step(t), report(t, h)
	alone, err := sim.Run(p, h)
	if err != nil || math.Abs(r.Seconds/alone.Makespan-1) > 1e-12 {
		t.Errorf("a step of %v, simulated %v, %v", r.Seconds, alone.Makespan, err)
	}
	calls, flops, want := 0, int64(0), int64(0)
	for _, k := range r.Kinds {
		calls, flops = calls+k.Calls, flops+k.FLOPs
	}
	for _, c := range p.Calls() {
		var dims []graph.Dim
		for _, a := range c.Args {
			dims = append(dims, a.Dim())
		}
		want += c.Op.FLOPs(&c.Attr, dims)
		if q, cost := h.Parts(&c), h.Cost(&c); cost < max(q.Arithmetic, q.Memory, q.Link) || c.Stream != device.Compute && q.Link == 0 && q.Memory == 0 && q.Overhead == 0 {
			t.Errorf("%v costs %v, of which %+v", c.Op, cost, q)
		}
	}
	if calls != len(p.Instrs) || flops != want {
		t.Errorf("%d calls of %d, %d FLOPs of %d", calls, len(p.Instrs), flops, want)
	}
	faster := *h
	faster.Engines = append([]hardware.Engine{}, h.Engines...)
	faster.Engine(device.Compute).Overhead /= 2
	again, err := sim.Run(p, &faster)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Gains {
		if g.Saved <= 0 || g.Saved > 0.5 || g.Part == "overhead of the device's calls" && math.Abs(g.Seconds/again.Makespan-1) > 1e-9 {
			t.Errorf("%+v, of the machine made anew %v", g, again.Makespan)
		}
	}
	if len(r.Gains) == 0 {
		t.Error("nothing would bring anything")
	}
}

// TestMeasured: where times were measured, twice the rate of what a call is bound by halves what was measured, overhead aside.
func TestMeasured(t *testing.T) {
	h, err := hardware.KnownRank("a100-80", 1)
	if err != nil {
		t.Fatal(err)
	}
	before := report(t, h)
	p := step(t)
	times := map[string]float64{}
	for _, c := range p.Calls() {
		times[hardware.Key(&c)] = 3 * h.Cost(&c)
	}
	h.Times = times
	after := report(t, h)
	if math.Abs(after.Seconds/before.Seconds-3) > 0.2 {
		t.Errorf("three times the price of each call: %v instead of %v s", after.Seconds, before.Seconds)
	}
	for i, g := range after.Gains {
		if g.Part == before.Gains[i].Part && math.Abs(g.Saved-before.Gains[i].Saved) > 0.05 {
			t.Errorf("%s brings %v of the step, and %v before", g.Part, g.Saved, before.Gains[i].Saved)
		}
	}
}

// TestDraw: the picture is well-formed, has a mark for each kind that computes on the device, and both roofs.
func TestDraw(t *testing.T) {
	h, err := hardware.KnownRank("a100-80", 1)
	if err != nil {
		t.Fatal(err)
	}
	r := report(t, h)
	var out bytes.Buffer
	if err := r.Draw(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for d := xml.NewDecoder(&out); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	marks := 0
	for _, k := range r.Kinds {
		if k.Stream == "compute" && k.FLOPs > 0 {
			marks++
			if !strings.Contains(text, k.Name+": ") {
				t.Errorf("%s has no mark", k.Name)
			}
		}
	}
	if marks < 4 || !strings.Contains(text, "bf16 312 TFLOP/s") || !strings.Contains(text, "fp32 19.5 TFLOP/s") || strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Errorf("%d marks in\n%s", marks, text)
	}
}
