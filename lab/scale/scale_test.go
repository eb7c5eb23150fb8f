package scale

import (
	"bytes"
	"encoding/xml"
	"math"
	"testing"
)

const gib = 1 << 30

// near fails if got differs from want by more than a fraction share. Published values with two digits allow no less.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*math.Abs(want)+1e-12 {
		t.Errorf("%s: %.5g, want %.5g", what, got, want)
	}
}

// a100 returns the paper's cluster: 16 GPUs per node on NVLink, InfiniBand of 200 Gb/s per GPU.
func a100() Hardware {
	return Hardware{Name: "A100-80GB, InfiniBand", FLOPS: 312e12, Memory: 80e9, Node: 16, Link: 600e9, Network: 50e9}
}

// ethernet returns the same with 25 Gb/s Ethernet.
func ethernet() Hardware {
	h := a100()
	h.Name, h.Network = "A100-80GB, 25 Gb/s Ethernet", 6.25e9
	return h
}

// TestTable reproduces the paper's comparison for X_160 within 1 %, sizes within half of their last digit.
func TestTable(t *testing.T) {
	type line struct {
		c                            Config
		gpus                         int
		eff, days                    float64
		state, buffers, ckpt, work   float64
		stateDigit, ckptDigit, wDigt float64
	}
	cfg := func(n, p, t, m, b int) Config { return Config{Data: n, Pipe: p, Tensor: t, Micros: m, Batch: b} }
	want := map[string]line{
		"none":                     {cfg(1, 1, 1, 2417, 1), 1, 1, 231000, 18750, 0, 47200, 4.52, 0, 0, .005},
		"data, baseline":           {cfg(604, 1, 1, 1, 4), 604, 1, 382, 18750, 0, 78.1, 18.1, 0, 0, .05},
		"data, partitioned":        {cfg(483, 1, 1, 1, 5), 483, 1, 478, 29.1, 43.9, 97.7, 22.6, 0, 0, .05},
		"data+pipe, baseline":      {cfg(15, 160, 1, 161, 1), 2400, .503, 191, 117, 0, 19.7, 4.52, 0, 0, .005},
		"data+pipe, improved":      {cfg(483, 5, 1, 5, 1), 2415, .976, 98, 5.8, 43.9, 19.5, 4.52, .05, 0, .005},
		"data+tensor, baseline":    {cfg(604, 1, 16, 1, 4), 9664, .908, 26.3, 1170, 0, 4.9, 1.13, 0, .05, .005},
		"data+tensor, partitioned": {cfg(483, 1, 16, 1, 5), 7728, .908, 32.9, 1.8, 2.75, 6.1, 1.41, .05, .05, .005},
		"data+tensor, improved":    {cfg(483, 1, 16, 5, 1), 7728, .908, 32.9, 1.8, 2.75, 6.1, .28, .05, .05, .005},
		"3D, baseline":             {cfg(15, 160, 16, 161, 1), 38400, .457, 13.2, 7.3, 0, 1.2, .28, .05, .05, .005},
		"3D, improved":             {cfg(483, 5, 16, 5, 1), 38640, .886, 6.75, .36, 2.75, 1.2, .28, .005, .05, .005},
	}
	m := Family(160)
	rows := Table(m, a100(), DefaultWork(m))
	slow := ethernet()
	rows = append(rows, Row{"3D, improved, Ethernet", Evaluate(m, slow, Strategies()[9].Choose(m, slow))})
	want["3D, improved, Ethernet"] = line{cfg(60, 40, 16, 40, 1), 38400, .730, 8.2, .37, 2.75, 1.2, .28, .005, .05, .005}
	for _, r := range rows {
		w := want[r.Name]
		c := r.Config
		c.Partitioned, c.Layered = false, false
		if c != w.c || r.GPUs != w.gpus {
			t.Errorf("%s: %+v on %d GPUs, want %+v on %d", r.Name, c, r.GPUs, w.c, w.gpus)
		}
		near(t, r.Name+": efficiency", r.Efficiency, w.eff, .01)
		near(t, r.Name+": days", r.Days, w.days, .01)
		near(t, r.Name+": state", r.State/gib, w.state, .01+w.stateDigit/w.state)
		near(t, r.Name+": buffers", r.Buffers/gib, w.buffers, .01)
		near(t, r.Name+": checkpoints", r.Checkpoints/gib, w.ckpt, .01+w.ckptDigit/w.ckpt)
		near(t, r.Name+": working", r.Working/gib, w.work, .01+w.wDigt/w.work)
	}
	near(t, "baseline/improved", rows[8].Days/rows[9].Days, 1.95, .01)
}

func TestFamily(t *testing.T) {
	for x, p := range map[int]float64{32: .40e9, 64: 12.9e9, 96: 97.8e9, 128: 412e9, 160: 1.258e12} {
		near(t, "parameters", Family(x).Parameters, p, .01)
	}
	m := Family(160)
	if got := math.Round(m.CriticalBatch()); got != 2417 {
		t.Errorf("critical batch %g", got)
	}
	near(t, "state", m.StateIntensity(), 2.06e6, .01)
	w := DefaultWork(m)
	near(t, "tokens", w.Tokens(m), 6.19e11, .01)
	near(t, "FLOP", w.FLOPs(m), 6.23e24, .01)
	near(t, "years of one A100", w.FLOPs(m)/a100().FLOPS/day/365.25, 632, .01)
	for i, want := range []float64{153, 520, 4950, 6240, 49900, 97500, 3.1e6} {
		near(t, Thresholds(a100().FLOPS)[i].Name, Thresholds(a100().FLOPS)[i].Threshold, want, .01)
	}
}

// TestCurve checks the improved method over the family: time, not memory, is the limit.
func TestCurve(t *testing.T) {
	for _, x := range []struct {
		x, gpus, p                              int
		eff, days, state, buffers, ckpt, digits float64
	}{
		{64, 20736, 16, .496, .05, .007, .07, .03, .1},
		{128, 33280, 8, .818, 1.92, .14, 1.1, .5, .04},
		{160, 38640, 5, .886, 6.75, .36, 2.75, 1.2, .02},
		{224, 48384, 4, .938, 48, 1.6, 10.6, 4.7, .02},
		{320, 61376, 4, .966, 396, 7.3, 44, 19.5, .01},
	} {
		m := Family(x.x)
		c := modular(m, a100(), 16)
		r := Evaluate(m, a100(), c)
		if r.GPUs != x.gpus || c.Pipe != x.p {
			t.Errorf("x=%d: %d GPUs, p=%d", x.x, r.GPUs, c.Pipe)
		}
		near(t, "efficiency", r.Efficiency, x.eff, .01)
		near(t, "days", r.Days, x.days, .01+x.digits)
		near(t, "state", r.State/gib, x.state, .01+x.digits)
		near(t, "buffers", r.Buffers/gib, x.buffers, .01+x.digits)
		near(t, "checkpoints", r.Checkpoints/gib, x.ckpt, .01+x.digits)
	}
}

// TestNoMemoryWall checks what the plot shows. Time grows with the 1.2th power of the size, the improved method is
// faster from 13 billion parameters on, and at 40 trillion memory still fits although training takes over a year.
func TestNoMemoryWall(t *testing.T) {
	points := Curve(a100())
	for i, p := range points {
		if p.X >= 64 && p.Improved.Days >= p.Baseline.Days {
			t.Errorf("x=%d: improved %g days, baseline %g", p.X, p.Improved.Days, p.Baseline.Days)
		}
		if p.X == 320 && (p.Improved.Days < 365 || p.Improved.Total() > 80e9) {
			t.Errorf("x=320: %g days, %g bytes", p.Improved.Days, p.Improved.Total())
		}
		if p.X > 224 {
			power := math.Log(p.Improved.Days/points[i-1].Improved.Days) / math.Log(p.Parameters/points[i-1].Parameters)
			near(t, "power", power, 1.2, .05)
		}
	}
	var out bytes.Buffer
	if err := PlotCurve(&out, a100(), points); err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(out.Bytes(), new(struct{})); err != nil {
		t.Error(err)
	}
}
