package search

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// fakeTrials run candidates on a machine that differs from its description.
type fakeTrials struct {
	rng      *rand.Rand
	noise    float64
	together bool
	list     []*Candidate
	truth    []float64
	err      error
	closed   bool
	slow     string // label of a candidate that takes twice as long
}

func (f *fakeTrials) open(_ context.Context, list []*Candidate) (Trials, error) {
	f.list = list
	for _, c := range list {
		factor := 0.7 + 0.6*f.rng.Float64()
		switch f.slow {
		case "":
		case c.Label:
			factor = 2
		default:
			factor = 1
		}
		f.truth = append(f.truth, c.Seconds()*factor)
	}
	return f, nil
}

func (f *fakeTrials) AllResident() bool { return f.together }

func (f *fakeTrials) Step(_ context.Context, i int) (float64, error) {
	took := f.truth[i] * (1 + f.noise*f.rng.Float64())
	time.Sleep(time.Duration(took * float64(time.Second)))
	return took, f.err
}

func (f *fakeTrials) Close() error {
	f.closed = true
	return nil
}

// TestTrial: on a machine that differs from its description, no plan that was tried is both predicted to be
// faster and really faster than the chosen one, up to the machine's noise; with time for all rounds, none is
// much faster whatever was predicted. The plan that was predicted to be fastest is among those tried, and
// trials take no longer than they may.
func TestTrial(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	req := layers(t, 1, 4)
	req.Pins.MicroBatch = 4 // fewer plans, found sooner
	alone := find(t, req, machine(t, 7<<20, 1)).Best
	tried := false
	for range testkit.Count(1, 2, 3) {
		synctest.Test(t, func(t *testing.T) {
			const noise, much = 0.03, 1.15
			m := machine(t, 7<<20, 1)
			f := &fakeTrials{rng: rng, noise: noise, together: rng.IntN(2) == 0}
			m.Trial = &Trial{Steps: []int{200, 3000, 1e6}[rng.IntN(3)], Open: f.open}
			began := time.Now()
			r := find(t, req, m)
			took, limit := time.Since(began), m.Trial.Worth(alone.Seconds())
			if float64(took) > 1.5*float64(limit) { // all are slower than predicted
				t.Errorf("trying took %v, the run is worth %v", took, limit)
			}
			if len(f.list) == 0 {
				return // it is not worth it
			}
			tried = true
			if !f.closed {
				t.Error("memory was not given back")
			}
			all, known, got := false, false, 0.0
			for i, c := range f.list {
				all = all || len(c.trials) == len(trialMargins)*stepsOf(f.list[0].Seconds())
				if c.Plan == r.Best.Plan { // it may be packed anew
					got = f.truth[i]
				}
			}
			for i, c := range f.list {
				if c.Tried == 0 {
					continue
				}
				seconds := f.truth[i]
				known = known || c.Label == alone.Label
				if c.Seconds() > finalistGap*alone.Seconds() {
					t.Errorf("%s was tried, %.4g s where %.4g were predicted at best", c.Label, c.Seconds(), alone.Seconds())
				}
				if got > (1+noise)*seconds && r.Best.Seconds() >= c.Seconds() || all && got > much*seconds {
					t.Errorf("%s takes %.4g s, predicted %.4g; but %s takes %.4g, predicted %.4g (all rounds: %v)",
						r.Best.Label, got, r.Best.Seconds(), c.Label, seconds, c.Seconds(), all)
				}
			}
			if !known || r.Best.Tried < got || r.Best.Tried > got*(1+noise) {
				t.Errorf("%s takes %.4g s, %.4g when tried; %s was tried: %v", r.Best.Label, got, r.Best.Tried, alone.Label, known)
			}
		})
	}
	if !tried {
		t.Error("nothing was tried")
	}
}

// TestTrialPrepares: no plan is tried before the operators of its micro-batch size are timed, and the
// micro-batch of the plan that is fastest without trials is among those tried; a plan of others among the
// candidates, which no search has made, is left as it is.
func TestTrialPrepares(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	synctest.Test(t, func(t *testing.T) {
		req, m := layers(t, 1, 2), machine(t, 4608<<10, 0.1)
		alone := find(t, req, m).Best.Plan
		req.Rivals = []Rival{{Name: "another's", Plan: alone}}
		timed := map[int]bool{}
		m.Measure = func(c *Candidate) error {
			timed[c.Plan.MicroBatch] = true
			return nil
		}
		f := &fakeTrials{rng: rand.New(rand.NewPCG(1, 1))}
		m.Trial = &Trial{Steps: 1e6, Open: f.open}
		find(t, req, m)
		sizes := map[int]bool{}
		for _, c := range f.list {
			sizes[c.Plan.MicroBatch] = true
			if !timed[c.Plan.MicroBatch] {
				t.Errorf("%s was tried, its operators were not timed", c.Label)
			}
		}
		if len(sizes) < 2 || !sizes[alone.MicroBatch] {
			t.Errorf("micro-batches of %v sequences were tried, alone it is %d", sizes, alone.MicroBatch)
		}
	})
}

// TestTrialKnowsPrices: on a machine that turns out to differ from its description only when operators are
// timed, the plan found with trials is not slower than that of a search that has known prices from the start,
// nor than the one found without trials. Prices are drawn until some mislead the search without trials.
func TestTrialKnowsPrices(t *testing.T) {
	testkit.Needs(t, testkit.All)
	first := testkit.Seed(t)
	misled := false
	for draw := first; !misled; draw++ {
		if draw == first+12 { // half of them mislead
			t.Fatal("the search without trials is as good: this test proves nothing")
		}
		synctest.Test(t, func(t *testing.T) {
			known, untried, tried := withPrices(t, draw)
			misled = misled || exceeds(untried, known)
			if exceeds(tried, known) || exceeds(tried, untried) {
				t.Errorf("draw %d: %s takes %.4g s; with prices known %s takes %.4g s, without trials %s takes %.4g s",
					draw, tried.Label, tried.Seconds(), known.Label, known.Seconds(), untried.Label, untried.Seconds())
			}
		})
	}
}

func exceeds(a, b *Candidate) bool { return a.Seconds() > b.Seconds()*(1+1e-9) }

// withPrices searches on a machine whose operators take up to three times as long as described, depending on
// operator and shape: with prices known, and finding them out, without trials and with them.
func withPrices(t *testing.T, draw uint64) (known, untried, tried *Candidate) {
	t.Helper()
	req, m := small(t), machine(t, 28<<20, 1)
	described := m.Cost
	truth := sim.CostFunc(func(c *device.Call) float64 {
		key := fnv.New64a()
		key.Write([]byte(hardware.Key(c)))
		return described.Cost(c) * (1 + 2*rand.New(rand.NewPCG(key.Sum64(), draw)).Float64())
	})
	m.Cost = truth
	known = find(t, req, m).Best
	m.Measure = func(*Candidate) error {
		m.Cost = truth
		return nil
	}
	m.Cost = described
	untried = find(t, req, m).Best
	m.Cost, m.Trial = described, &Trial{Steps: 1e6, Open: (&fakeTrials{rng: rand.New(rand.NewPCG(1, 1)), slow: "none"}).open}
	return known, untried, find(t, req, m).Best
}

// TestPolicyKnowsPrices: what a policy swaps on a machine whose operators turn out faster than described is
// what its formula yields for the operators as they are.
func TestPolicyKnowsPrices(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req, m := small(t), machine(t, 40<<20, 3)
	req.Pins.Policy = MemoRule
	described := m.Cost
	truth := sim.CostFunc(func(c *device.Call) float64 {
		if c.Stream == device.Compute {
			return described.Cost(c) / 4
		}
		return described.Cost(c)
	})
	asDescribed := find(t, req, m).Best.Plan.Activations
	m.Cost = truth
	want := find(t, req, m).Best.Plan.Activations
	if reflect.DeepEqual(want, asDescribed) {
		t.Fatal("the formula says the same of both machines")
	}
	m.Cost = described
	m.Measure = func(*Candidate) error {
		m.Cost = truth
		return nil
	}
	if got := find(t, req, m).Best.Plan.Activations; !reflect.DeepEqual(got, want) {
		t.Errorf("swapped %+v, by the operators as they are %+v", got, want)
	}
}

// TestTrialOverrules: a plan that is fast only in the model is not chosen.
func TestTrialOverrules(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	synctest.Test(t, func(t *testing.T) {
		req, m := layers(t, 1, 4), machine(t, 7<<20, 1)
		req.Pins.MicroBatch = 4
		alone := find(t, req, m).Best
		f := &fakeTrials{rng: rand.New(rand.NewPCG(1, 1)), slow: alone.Label}
		m.Trial = &Trial{Steps: 1e6, Open: f.open}
		if best := find(t, req, m).Best; best.Label == alone.Label || len(f.list) < 2 {
			t.Errorf("of %d plans %s is chosen, which takes twice as long as the others", len(f.list), best.Label)
		}
	})
}

// TestTrialIsWorthIt: trials do not hold up a short run, nor a long one for ever.
func TestTrialIsWorthIt(t *testing.T) {
	req, m := layers(t, 1, 4), machine(t, 7<<20, 1)
	req.Pins.MicroBatch = 4 // fewer plans, found sooner
	m.Trial = &Trial{Steps: 3, Open: func(context.Context, []*Candidate) (Trials, error) {
		t.Error("a run of three steps was kept waiting")
		return &fakeTrials{}, nil
	}}
	find(t, req, m)
	for _, c := range []struct {
		trial Trial
		want  time.Duration
	}{
		{Trial{Steps: 1000}, 100 * time.Second},
		{Trial{Steps: 1e9}, trialLongest},
		{Trial{Steps: 1e9, Time: time.Minute}, 3 * time.Second},
		{Trial{Steps: 10, Time: time.Hour}, time.Second},
	} {
		if got := c.trial.Worth(2); got != c.want {
			t.Errorf("%d steps of 2 s, at most %v: %v of trying, want %v", c.trial.Steps, c.trial.Time, got, c.want)
		}
	}
}

// TestTrialFails: an error on the machine is reported with the plan's name.
func TestTrialFails(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req, m := layers(t, 1, 4), machine(t, 7<<20, 1)
	req.Pins.MicroBatch = 4
	f := &fakeTrials{rng: rand.New(rand.NewPCG(1, 1)), err: errors.New("no arena")}
	m.Trial = &Trial{Steps: 1e6, Open: f.open}
	if _, err := Search(t.Context(), req, m, nil); !errors.Is(err, f.err) || !f.closed {
		t.Errorf("the search says %v; memory was given back: %v", err, f.closed)
	}
	broken := errors.New("no device")
	m.Trial.Open = func(context.Context, []*Candidate) (Trials, error) { return nil, broken }
	if _, err := Search(t.Context(), req, m, nil); !errors.Is(err, broken) {
		t.Errorf("the search says %v", err)
	}
}

// TestFinalists: plans of a kind are tried once, but both of two that exchange keys and heads: what waiting for each other's messages takes is
// the least certain part of a prediction.
func TestFinalists(t *testing.T) {
	var found shortlist
	for i, exchange := range []string{plan.ExchangeKeys, plan.ExchangeKeys, plan.ExchangeHeads} {
		found = append(found, &Candidate{Kind: "on the device", Plan: &plan.Plan{MicroBatch: 1, Group: 1, Exchange: exchange}, Fits: true,
			Ranks: []*program.Program{{}}, seconds: 1 + 0.1*float64(i)})
	}
	list, err := finalistsOf(t.Context(), &problem{}, found, time.Hour)
	check(t, err)
	if len(list) != 2 || list[0] != found[0] || list[1] != found[2] {
		t.Errorf("%d finalists: %v", len(list), list)
	}
}
