package scale

import (
	"errors"
	"math"
	"testing"
)

func TestLaws(t *testing.T) {
	for _, x := range []struct {
		law                      Chinchilla
		flops                    float64
		parameters, tokens, loss float64
	}{
		{Hoffmann(), 1e20, 6.449e8, 2.585e10, 2.5998},
		{Besiroglu(), 1e20, 8.535e8, 1.953e10, 2.5534},
		{Hoffmann(), 5.76e23, 3.219e10, 5.76e23 / 6 / 3.219e10, math.NaN()},
		{Besiroglu(), 5.76e23, 7.225e10, 5.76e23 / 6 / 7.225e10, math.NaN()},
	} {
		n, d := x.law.Optimum(x.flops)
		near(t, "parameters", n, x.parameters, 3e-4)
		near(t, "tokens", d, x.tokens, 3e-4)
		if !math.IsNaN(x.loss) {
			near(t, "loss", x.law.Loss(n, d), x.loss, 5e-5)
		}
		for _, f := range []float64{.9, 1.1} { // an optimum: neighbours at the same cost are worse
			if x.law.Loss(n*f, d/f) < x.law.Loss(n, d) {
				t.Errorf("%g parameters are better than the optimum %g", n*f, n)
			}
		}
	}
	if steps, samples := Slower(1); steps != 2 || samples != 2 {
		t.Errorf("at the critical batch: %g, %g", steps, samples)
	}
	for _, share := range []float64{.1, .3, 2, 50} {
		steps, samples := Slower(share)
		near(t, "(S/Smin-1)(E/Emin-1)", (steps-1)*(samples-1), 1, 1e-12)
	}
	near(t, "GPT-3's critical batch", Model{Parameters: 175e9, Sequence: 1}.CriticalBatch(), 3.2e6, .01)
}

func TestMegatron(t *testing.T) {
	gpt3 := Shape{96, 12288, 51200, 2048}
	trillion := Shape{128, 25600, 51200, 2048}
	near(t, "GPT-3", gpt3.Parameters(), 1.7462e11, 1e-4)
	near(t, "GPT-3 FLOP", gpt3.FLOPs(1536), 4.51097e18, 1e-5)
	near(t, "1T", trillion.Parameters(), 1.008e12, 1e-3)
	near(t, "1T days", TrainingDays(trillion.Parameters(), 450e9, 3072, 163e12), 83.9, 2e-3)
	near(t, "GPT-3 days", TrainingDays(gpt3.Parameters(), 300e9, 1024, 140e12), 33.8, 2e-3)
	if got := (Shape{2, 64, 256, 32}).FLOPs(4); got != 121634816 {
		t.Errorf("tiny: %.0f FLOP, want 121634816", got)
	}
	for _, x := range []struct {
		h, n int
		want float64
	}{{2304, 24, 1.7e9}, {3072, 30, 3.6e9}, {4096, 36, 7.5e9}, {6144, 40, 18.4e9}, {8192, 48, 39.1e9}, {10240, 60, 76.1e9},
		{12288, 80, 145.6e9}, {16384, 96, 310.1e9}, {20480, 105, 529.6e9}, {25600, 128, 1008e9}} {
		near(t, "Table 1", Shape{x.n, x.h, 51200, 2048}.Parameters(), x.want, .0505e9/x.want) // printed with one decimal
	}
}

// TestFit: with all the GPUs that the critical batch can use, the search is at least as fast as the paper's rule; fewer
// GPUs, less memory or a slower network never make it faster; what fits says so and what does not is refused.
func TestFit(t *testing.T) {
	m := Family(160)
	w := DefaultWork(m)
	full := Cluster{Hardware: A100(), GPUs: 38640}
	plan, err := Fit(m, full, w)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Days > 6.75*1.01 {
		t.Errorf("%+v", plan)
	}
	last := plan.Days
	for _, edit := range []func(c *Cluster){
		func(c *Cluster) { c.Network /= 8 },
		func(c *Cluster) { c.GPUs /= 10 },
		func(c *Cluster) { c.Memory /= 2 },
		func(c *Cluster) { c.Node = 4 },
	} {
		edit(&full)
		p, err := Fit(m, full, w)
		if err != nil {
			t.Fatal(err)
		}
		if p.Days < last*(1-1e-9) {
			t.Errorf("%+v is faster (%g days) than with more (%g)", full, p.Days, last)
		}
		if p.GPUs > full.GPUs || p.need(false) > full.Memory || float64(p.Data*p.Micros*p.Batch) > w.Batch {
			t.Errorf("%+v breaks a limit of %+v", p, full)
		}
		for _, l := range p.Limits {
			if l.Speedup < 1-1e-9 {
				t.Errorf("lifting %q makes it slower", l.Name)
			}
		}
		last = p.Days
	}
	small := Cluster{Hardware: A100(), GPUs: 8}
	var misfit *MisfitError
	if _, err := Fit(m, small, w); !errors.As(err, &misfit) || misfit.ExitCode() != 3 || misfit.Need <= small.Memory {
		t.Errorf("a trillion parameters on 8 GPUs: %v", err)
	}
	small.Offload = true
	if _, err := Fit(m, small, w); err != nil {
		t.Errorf("offloaded: %v", err)
	}
	var usage *UsageError
	for _, bad := range []Cluster{{}, {Hardware: A100()}, {Hardware: A100(), GPUs: -1}, {Hardware: Hardware{FLOPS: math.NaN()}, GPUs: 1}} {
		if _, err := Fit(m, bad, w); !errors.As(err, &usage) {
			t.Errorf("%+v was accepted: %v", bad, err)
		}
	}
}
