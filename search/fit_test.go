package search

import (
	"testing"
)

// TestSharedBorder: where device and host share memory and steps are shortened, what the missing micro-batches would add
// is lacking too, also when a choice is met again.
func TestSharedBorder(t *testing.T) {
	req := long(t)
	req.GlobalBatch = 8
	m := machine(t, 1<<30, 1)
	m.Shared = 2 << 30
	p := newProblem(req, m)
	ch := choice{b: 1, group: 1, r: residencies[0], st: p.styles(fastestPlan, 1, residencies[0])[0], keep: p.ladders(choice{b: 1, group: 1})[0][0], short: true}
	c, err := p.evaluate(t.Context(), ch)
	check(t, err)
	grows, err := p.growth(t.Context(), 1)
	check(t, err)
	if !c.Fits || grows[0]+grows[1] <= 0 {
		t.Fatalf("fits: %v; each micro-batch adds %v bytes", c.Fits, grows)
	}
	m.Shared = c.bytesTogether() // enough for the shortened step only
	p = newProblem(req, m)
	b := border{p: p, tiers: everyTier, n: 1, within: 1, at: func(int) choice { return ch }}
	for range 2 {
		c, err := p.evaluate(t.Context(), ch)
		check(t, err)
		if _, fits := b.lacking(c); fits || c.Fits {
			t.Errorf("fits: %v, by the border %v", c.Fits, fits)
		}
		if _, found, err := b.find(t.Context(), 0); err != nil || found != nil {
			t.Errorf("found %v, %v", found, err)
		}
	}
}
