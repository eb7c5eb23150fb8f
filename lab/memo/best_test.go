package memo

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// mfu runs an arm by name.
func mfu(t testing.TB, name string, m Machine, c Costs) Result {
	t.Helper()
	for _, a := range Arms() {
		if a.Name == name {
			r, err := a.Run(m, c)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
	t.Fatalf("no arm %q", name)
	return Result{}
}

// TestPaper runs MEMO's configuration from 64K to 1024K tokens, with the communication of tensor parallelism included
// in the efficiency and separate, and at the efficiency that gives MEMO's policy its published MFU.
func TestPaper(t *testing.T) {
	calibrated, err := Calibrated(seven(t, 1<<20), 0.5230)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ efficiency, exchange float64 }{{.6, 0}, {.6, 200e9}, {calibrated, 0}} {
		m := A800(x.efficiency, x.exchange)
		for _, k := range []int{64, 128, 192, 256, 384, 512, 640, 768, 896, 1024} {
			at := fmt.Sprintf("%dK at %.3f, %g", k, x.efficiency, x.exchange)
			c := m.Costs(seven(t, k<<10))
			ours := mfu(t, "ours", m, c)
			for _, a := range Arms() {
				r := mfu(t, a.Name, m, c)
				if r.MFU > ours.MFU {
					t.Errorf("%s: %s %.4f, ours %.4f", at, a.Name, r.MFU, ours.MFU)
				}
				if r.Misfit == "" && r.Time < ours.Bound*(1-1e-9) {
					t.Errorf("%s: %s takes %g s, proven %g", at, a.Name, r.Time, ours.Bound)
				}
				if host := a.Name == "full swap + plan" && k > 546; host != (r.Misfit == "host") {
					t.Errorf("%s: %s: misfit %q", at, a.Name, r.Misfit)
				}
			}
			if ours.Time > ours.Bound*(1+1e-6) {
				t.Errorf("%s: %g s, proven %g", at, ours.Time, ours.Bound)
			}
			if k == 1024 && ours.MFU < 0.523 {
				t.Errorf("%s: MFU %.4f", at, ours.MFU)
			}
		}
	}
}

// TestClosedFormsOfArms compares the arms' times with closed forms.
func TestClosedFormsOfArms(t *testing.T) {
	m := A800(0.6, 0)
	for _, k := range []int{64, 256, 512, 1024} {
		c := m.Costs(seven(t, k<<10))
		n, ends := float64(c.Layers), c.Turn+c.After
		swap := c.Skeletal() / m.Link
		if r := mfu(t, "full recompute + plan", m, c); r.Misfit == "" {
			near(t, "full recompute", r.Time, n*(c.Forward+c.Backward+c.Redo[Attention]+c.Redo[Product]+c.Redo[Pointwise])+ends, 1e-12)
			near(t, "its memory", r.Device, c.Base+n*c.Bytes[Input]+c.Skeletal()-c.Bytes[Input], 1e-12)
		}
		if r := mfu(t, "full swap + plan", m, c); r.Misfit == "" { // from 64K on, a copy is shorter than a backward pass
			near(t, "full swap", r.Time, 2*c.Forward+(n-2)*max(c.Forward, swap)+max(n*c.Backward, c.Backward*2+(n-2)*swap)+ends, 1e-12)
		}
		r, a := mfu(t, "memo-paper", m, c), m.Alpha(c).Alpha
		near(t, "memo", r.Time, n*(c.Forward+c.Backward)+(n-2)*(1-a)*(c.Redo[Product]+c.Redo[Pointwise])+ends, 1e-9)
	}
}

// drawnMachine returns a random machine and costs, in units of a forward pass and a layer's bytes, with scarce
// resources.
func drawnMachine(r *rapid.T, layers int) (Machine, Costs) {
	number := func(low, high float64, name string) float64 { return rapid.Float64Range(low, high).Draw(r, name) }
	c := Costs{Layers: layers, Forward: 1, Backward: number(.2, 3, "backward"), Turn: number(0, 1, "turn"), After: number(0, 1, "after"),
		Base: number(0, 1, "base"), FLOPs: 1}
	c.Bytes = [Classes]float64{number(.05, .2, "input"), number(.05, .2, "attention"), number(.1, .8, "products"), number(.1, .8, "pointwise")}
	c.Redo = [Classes]float64{0, number(.1, 3, "redo attention"), number(.1, 3, "redo products"), number(.01, 1, "redo pointwise")}
	size := c.Skeletal()
	m := Machine{GPUs: 1, Peak: 1, Link: size * number(.1, 3, "link"), Host: size * float64(layers) * number(0, 1, "host"),
		Memory: c.Base + size*number(.8, 1+float64(layers), "memory")}
	return m, c
}

// TestNeverSlower: on random machines ours is at least as fast as every arm that fits, its time equals the proven
// bound, and more of any resource is never slower.
func TestNeverSlower(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		m, c := drawnMachine(r, rapid.IntRange(1, 7).Draw(r, "layers"))
		p, err := Best(m, c)
		for _, a := range Arms()[:4] {
			other, e := a.Run(m, c)
			if e != nil {
				r.Fatal(e)
			}
			if other.Misfit == "" && err != nil {
				r.Fatalf("%s fits, but %v", a.Name, err)
			}
			if got := p.Evaluate(m, c); err == nil && other.Misfit == "" && got.Time > other.Time*(1+1e-7) {
				r.Errorf("%s takes %.9g, ours %.9g", a.Name, other.Time, got.Time)
			}
		}
		if err != nil {
			return
		}
		if e := p.check(c); e != nil {
			r.Fatal(e)
		}
		got := p.Evaluate(m, c)
		if got.Misfit != "" || math.Abs(got.Time/got.Bound-1) > 1e-6 {
			r.Fatalf("%q, %.9g s, proven %.9g", got.Misfit, got.Time, got.Bound)
		}
		for name, more := range map[string]func(*Machine){"link": func(m *Machine) { m.Link *= 1.5 }, "host": func(m *Machine) { m.Host *= 1.5 },
			"memory": func(m *Machine) { m.Memory *= 1.2 }} {
			large := m
			more(&large)
			p, err := Best(large, c)
			if err != nil {
				r.Fatalf("more %s: %v", name, err)
			}
			if more := p.Evaluate(large, c); more.Time > got.Time*(1+1e-6) {
				r.Errorf("more %s: %g, was %g", name, more.Time, got.Time)
			}
		}
	})
}

// TestExhaustive: of three layers, every class of every free layer is kept, swapped, recomputed, or half and half: no
// combination is faster than ours.
func TestExhaustive(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		m, c := drawnMachine(r, 3)
		best, err := Best(m, c)
		ours := best.Evaluate(m, c)
		for slots := 1; slots <= 3; slots++ {
			p := Policy{Slots: slots, Layers: make([]Split, 3)}
			for i := 3 - slots; i < 3; i++ {
				p.Layers[i] = Split{Stay: true}
			}
			enumerate(&p, 0, func() {
				got := p.Evaluate(m, c)
				if got.Misfit == "" && (err != nil || got.Time < ours.Time*(1-1e-6)) {
					r.Fatalf("%+v takes %g, ours %g, %v", p, got.Time, ours.Time, err)
				}
			})
		}
	})
}

// enumerate visits all decisions for layers from i on, except those that stay.
func enumerate(p *Policy, i int, visit func()) {
	if i == len(p.Layers)-p.Slots {
		visit()
		return
	}
	shares := [][2]float64{{1, 0}, {0, 1}, {0, 0}, {0, .5}}
	for _, in := range shares[:2] {
		for _, at := range shares {
			for _, prod := range shares {
				for _, wise := range shares[:3] {
					p.Layers[i] = Split{Keep: [Classes]float64{in[0], at[0], prod[0], wise[0]}, Swap: [Classes]float64{in[1], at[1], prod[1], wise[1]}}
					enumerate(p, i+1, visit)
				}
			}
		}
	}
}

// TestCheck: invalid policies are errors.
func TestCheck(t *testing.T) {
	m := A800(0.6, 0)
	c := m.Costs(seven(t, 64<<10))
	for name, edit := range map[string]func(p *Policy){
		"no slots":        func(p *Policy) { p.Slots = 0 },
		"a layer less":    func(p *Policy) { p.Layers = p.Layers[1:] },
		"an input lost":   func(p *Policy) { p.Layers[3].Swap[Input] = .5 },
		"more than all":   func(p *Policy) { p.Layers[3].Keep[Product] = 1.5 },
		"stays too early": func(p *Policy) { p.Layers[29].Stay = true },
	} {
		p := paper(m, c)
		if err := p.check(c); err != nil {
			t.Fatal(err)
		}
		edit(&p)
		if p.check(c) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	m.Memory = c.Base
	if _, err := Best(m, c); err == nil {
		t.Error("nothing fits, and yet")
	}
}

// TestMisfit: the memory that a MisfitError names suffices, and slightly less does not.
func TestMisfit(t *testing.T) {
	misfits := 0
	testkit.Check(t, func(r *rapid.T) {
		m, c := drawnMachine(r, rapid.IntRange(1, 5).Draw(r, "layers"))
		m.Memory = c.Base + c.Skeletal()*rapid.Float64Range(.5, 1.5).Draw(r, "memory of a layer")
		m.Host /= 8
		_, err := Best(m, c)
		short := misfit(m, c)
		enough := m.Memory >= short.NeedDevice
		if near := math.Abs(m.Memory-short.NeedDevice) < 1e-4; near || enough {
			if !near && err != nil {
				r.Errorf("%g bytes, %g would do: %v", m.Memory, short.NeedDevice, err)
			}
			return
		}
		misfits++
		if got := new(MisfitError); !errors.As(err, &got) || *got != *short {
			r.Fatalf("%v, want %v", err, short)
		}
		fits := func(device, host float64) bool {
			other := m
			other.Memory, other.Host = device, host
			_, err := Best(other, c)
			return err == nil
		}
		if !fits(short.NeedDevice+1e-4, m.Host) || fits(short.NeedDevice-1e-4, m.Host) {
			r.Errorf("device: %v", short)
		}
		if !math.IsInf(short.NeedHost, 1) && (!fits(m.Memory, short.NeedHost+1e-4) || fits(m.Memory, short.NeedHost-1e-4)) {
			r.Errorf("host: %v", short)
		}
	})
	if misfits == 0 {
		t.Error("everything fits")
	}
}

// TestBackwardWindow: a backward pass takes half as long as a forward pass, which just hides a copy; two slots. Of
// four layers the last two stay; the others are copied back in sequence. While layer 0 is copied back, layer 1 has
// half a second to spare and recomputes the fifth of itself that fits: 4 forwards, the turn, one backward, copies of
// 0.8 and 1, one backward and the optimizer.
func TestBackwardWindow(t *testing.T) {
	c := Costs{Layers: 4, Forward: 1, Backward: .5, Turn: 1, After: 1, Base: 1, FLOPs: 1}
	c.Bytes, c.Redo = [Classes]float64{.2, .2, .8, .8}, [Classes]float64{0, 1, 1, 1}
	m := Machine{GPUs: 1, Peak: 1, Link: 2, Host: 8, Memory: 5}
	p, err := Best(m, c)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "step", p.Evaluate(m, c).Time, 4+1+.5+.8+1+.5+1, 1e-6)
	near(t, "proven", p.Bound, 8.8, 1e-6)
}
