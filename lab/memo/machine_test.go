package memo

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestCosts compares the costs of 7B at 1M tokens with a calculation by hand.
func TestCosts(t *testing.T) {
	const h, s, rate = 4096.0, 1 << 20, 8 * .6 * 312e12
	const parameters = 12*32*h*h + 50257*h
	const unit = 2 * s * h
	w := seven(t, s)
	for _, exchange := range []float64{0, 200e9} {
		m := A800(.6, exchange)
		allReduce := 0.0
		if exchange > 0 {
			allReduce = 2 * 7 / 8.0 * unit / exchange
		}
		c := m.Costs(w)
		near(t, "forward", c.Forward, (24*s*h*h+2*s*(s+1)*h)/rate+2*allReduce, 1e-12)
		near(t, "backward", c.Backward, 2*c.Forward, 1e-12)
		near(t, "head", c.Turn, 6*s*50257*h/rate, 1e-12)
		near(t, "optimizer", c.After, 2*16*parameters/8/(.85*2039e9), 1e-12)
		near(t, "attention again", c.Redo[Attention], 2*s*(s+1)*h/rate, 1e-12)
		near(t, "products again", c.Redo[Product], 16*s*h*h/rate+1.5*allReduce, 1e-12)
		near(t, "pointwise again", c.Redo[Pointwise], 12*unit/8/(.85*2039e9), 1e-3) // read as much as written
		near(t, "base", c.Base, 16*parameters/8+6*unit/8+32*(32+4)*4*s/8, 1e-12)
		near(t, "skeletal", c.Skeletal(), 2*unit, 1e-12)
		near(t, "FLOPs", c.FLOPs, 6*s*parameters+6*32*h*s*s, 1e-12)
		planned, plain := mfu(t, "full recompute + plan", m, c), mfu(t, "full recompute", m, c)
		near(t, "without a plan", plain.Device, planned.Device*76.5/68.2, 1e-12)
	}
}

// TestRedo: attention's rows cost the square at the ends of the ranges and no less between them; other costs are
// linear.
func TestRedo(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		c := Costs{Redo: [Classes]float64{0, 3, 5, 7}}
		x := rapid.Float64Range(0, 1).Draw(r, "share")
		got := c.redo(Attention, x) / 3
		if square := x * x; got < square-1e-12 || got > square+1.0/64+1e-12 {
			r.Errorf("%g of the rows cost %g", x, got)
		}
		if c.redo(Product, x) != 5*x || c.redo(Pointwise, x) != 7*x {
			r.Error("not linear")
		}
	})
	c := Costs{Redo: [Classes]float64{0, 1, 0, 0}}
	for i := range 5 {
		near(t, "at a quarter", c.redo(Attention, float64(i)/4), float64(i*i)/16, 1e-12)
	}
}

// TestLongest: each arm can train its longest sequence, but not the next.
func TestLongest(t *testing.T) {
	m := A800(.6, 0)
	table, err := Compare(m, []int{64 << 10}, func(tokens int) (Work, error) { return seven(t, tokens), nil })
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range table.Longest {
		if i > 0 && i != 2 && l.Tokens < table.Longest[i-1].Tokens {
			t.Errorf("%s: %d tokens, %s more", l.Name, l.Tokens, table.Longest[i-1].Name)
		}
		for _, tokens := range []int{l.Tokens, l.Tokens + 16<<10} {
			r, err := Arms()[i].Run(m, m.Costs(seven(t, tokens)))
			if err != nil || (r.Misfit == "") != (tokens == l.Tokens) {
				t.Errorf("%s, %d tokens: %q %v", l.Name, tokens, r.Misfit, err)
			}
		}
	}
	near(t, "full swap, by its host memory", float64(table.Longest[2].Tokens)/1024, 544, 0) // 256 GiB / 30 / 16 units
}
