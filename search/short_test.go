package search

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestShortSteps: what a shortened step predicts of the whole one is true: its time, and that a whole step
// needs what the short one needs plus what its micro-batches add.
func TestShortSteps(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := tiny(t)
	req.GlobalBatch = 32
	m := machine(t, 38<<20, 0.5)
	p := newProblem(req, m)
	var sum, worst float64
	n := 0
	testkit.Check(t, func(t *rapid.T) {
		b := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "sequences")
		ladder := rapid.SampledFrom(p.ladders(choice{b: b, group: 1})).Draw(t, "ladder")
		r := rapid.SampledFrom(residenciesOf(1)).Draw(t, "residency")
		ch := choice{b: b, group: 1, r: r, keep: rapid.SampledFrom(ladder).Draw(t, "rung"),
			st:        rapid.SampledFrom(p.styles(fastestPlan, b, r)).Draw(t, "style"),
			residents: rapid.IntRange(0, 3).Draw(t, "residents"), streamed: rapid.IntRange(0, updateParts).Draw(t, "streamed")}
		judge := func(short bool) *Candidate {
			ch.short = short
			c, err := p.evaluate(context.Background(), ch)
			if err == nil {
				err = c.simulate(m)
			}
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		short, whole := judge(true), judge(false)
		if short.Plan.MicroBatches != min(shortest, 32/b) || whole.Plan.MicroBatches != 32/b {
			t.Fatalf("%d and %d micro-batches of %d sequences", short.Plan.MicroBatches, whole.Plan.MicroBatches, b)
		}
		if short.Fits && whole.Fits {
			n++
			off := math.Abs(short.Seconds()/whole.Seconds() - 1)
			sum, worst = sum+off, max(worst, off)
		}
		if whole.Fits && !short.Fits && short.Program.Bound[device.DeviceTier] > short.Program.Capacity[device.DeviceTier] {
			t.Fatalf("%s fits, but its short step was said to need %v of %v", whole.Label, short.Program.Bound, short.Program.Capacity)
		}
	})
	if n == 0 || sum/float64(n) > 0.02 || worst > 0.3 {
		t.Errorf("of %d plans, times of short steps are %.2g off in the mean, %.2g at worst", n, sum/float64(n), worst)
	}
}

// TestLongAccumulation: a step of n times as many micro-batches takes at most n times as long, since what is
// found for the shorter step serves the longer one too, given memory for what waits for the end of the step.
func TestLongAccumulation(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := layers(t, 1, 4)
	for _, mib := range testkit.Sample([]int64{7, 5}, 1, 1) {
		m := machine(t, mib<<20, 1)
		req.GlobalBatch = 2
		few := find(t, req, m).Best
		grows, err := newProblem(req, m).growth(t.Context(), 1)
		check(t, err)
		req.GlobalBatch = 8
		m.Capacity[device.DeviceTier] += 6 * grows[device.DeviceTier]
		many := find(t, req, m).Best
		if ratio := many.Seconds() / few.Seconds() / 4; ratio > 1.005 {
			t.Errorf("%d MiB: a sequence takes %.3g times as long in a batch of 8 (%s) as in one of 2 (%s)", mib, ratio, many.Label, few.Label)
		}
	}
}

// TestLengthenedWithLess: where the whole step packs so much worse than the short one that it does not fit, the
// plan keeps fewer activations instead of being given up.
func TestLengthenedWithLess(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := tiny(t)
	req.GlobalBatch = 16
	m := machine(t, 6<<20, 1)
	p := newProblem(req, m)
	e := newEnumeration(p, nil, fastestPlan)
	e.short = true
	check(t, e.tryAll(t.Context()))
	short := slices.DeleteFunc(e.found, func(c *Candidate) bool {
		ladder := p.ladders(c.choice)[0]
		return c.missing == 0 || slices.Equal(c.choice.keep, ladder[len(ladder)-1])
	})
	if len(short) == 0 {
		t.Fatal("nothing was shortened")
	}
	first := short[0]
	ch := first.choice
	ch.short = false
	whole, err := p.evaluate(t.Context(), ch)
	check(t, err)
	m.Capacity[device.DeviceTier] = whole.Program.Bound[device.DeviceTier] - 1
	p = onMachine(p, m)
	found, err := lengthenSteps(t.Context(), p, shortlist{first})
	check(t, err)
	if !slices.ContainsFunc(found, func(c *Candidate) bool {
		return c.Kind == first.Kind && c.Fits && c.missing == 0 && !slices.Equal(c.choice.keep, first.choice.keep)
	}) {
		t.Errorf("%s lacks a byte, and nothing like it was found: %d plans", first.Label, len(found))
	}
}

// TestMisfitsOnce: where nothing fits, plans whose steps can't be shortened are considered only once.
func TestMisfitsOnce(t *testing.T) {
	req := tiny(t)
	req.GlobalBatch = 8
	p := newProblem(req, machine(t, 2<<20, 1))
	times := map[string]int{}
	p.told.progress = func(words string) { times[words]++ }
	found, err := planUniform(t.Context(), p, nil)
	check(t, err)
	once, twice := 0, 0
	for words, n := range times {
		var b, group int
		if _, err := fmt.Sscanf(words, "planning: micro-batch %d, group %d,", &b, &group); err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		switch {
		case shortens(8/b, group) && n == 2:
			twice++
		case !shortens(8/b, group) && n == 1:
			once++
		default:
			t.Errorf("%s: %d times", words, n)
		}
	}
	if len(found) > 0 || once == 0 || twice == 0 {
		t.Errorf("%d plans found, %d placements looked at once, %d twice", len(found), once, twice)
	}
}

// TestFewTogether: steps in which few micro-batches go through a layer together need no more memory than those in which many
// do, so what does not fit with few does not fit with many; and the search is told what few need.
func TestFewTogether(t *testing.T) {
	rng := testkit.Rand(t)
	req := tiny(t)
	req.GlobalBatch = 2 * shortest
	p := newProblem(req, machine(t, 1<<34, 1))
	p.untimed = true
	short := *p.machine
	refused := 0
	for range testkit.Count(10, 30, 500) {
		ch := choice{b: 1, group: req.GlobalBatch, r: p.placements[rng.IntN(len(p.placements))], residents: rng.IntN(3)}
		ladders := p.ladders(ch)
		l := ladders[rng.IntN(len(ladders))]
		ch.keep = l[rng.IntN(len(l))]
		styles := p.styles(fastestPlan, 1, ch.r)
		ch.st = styles[rng.IntN(len(styles))]
		pl, _, label := p.plan(ch)
		many, err := Evaluate(t.Context(), req, pl, p.machine, label)
		check(t, err)
		few := *pl
		few.Group, few.MicroBatches = shortest, shortest
		least, err := Evaluate(t.Context(), req, &few, p.machine, label)
		check(t, err)
		for tier, n := range least.Program.Bound {
			if have := many.Program.Bound[tier]; n > have {
				t.Errorf("%s, %v: %d micro-batches need %d bytes of the %v, %d need %d", label, ch.keep, shortest, n, device.Tier(tier), pl.Group, have)
			}
		}
		short.Capacity[device.DeviceTier] = least.Program.Bound[device.DeviceTier] - 1
		c, err := onMachine(p, &short).judge(t.Context(), pl, label, false)
		check(t, err)
		if c.Fits || c.Plan != pl {
			t.Errorf("%s, %v: a byte less than few micro-batches need is enough for all", label, ch.keep)
		}
		if c.Program.Bound == least.Program.Bound {
			refused++
		}
	}
	if refused == 0 {
		t.Error("nothing was refused for what few micro-batches need")
	}
}
