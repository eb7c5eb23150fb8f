package search

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

func TestMain(m *testing.M) {
	testkit.CollectSeldom()
	m.Run()
}

// small is a model of four layers and eight sequences.
func small(t *testing.T) *Request {
	t.Helper()
	return layers(t, 4, 8)
}

// tiny is half of small: it has 0.64 times as many parameters, and is planned in a quarter of the time.
func tiny(t *testing.T) *Request {
	t.Helper()
	return layers(t, 2, 4)
}

func layers(t *testing.T, n, batch int) *Request {
	t.Helper()
	m, err := family.Known("gpt2")
	check(t, err)
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = n, 128, 4, 4, 32, 512, 2048, 128
	g, err := graph.Build(m, 128, graph.F32)
	check(t, err)
	return &Request{Graph: g, GlobalBatch: batch, Options: lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1}}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine is a desktop GPU whose links are scaled.
func machine(t *testing.T, dev int64, link float64) *Machine {
	t.Helper()
	h, err := hardware.KnownRank("rtx4090", 1)
	check(t, err)
	for i := range h.Links {
		h.Links[i].Bandwidth *= link
	}
	return &Machine{Capacity: [device.NumTiers]int64{dev, 1 << 34, 1 << 36}, Cost: sim.CostFunc(h.Cost)}
}

func find(t *testing.T, req *Request, m *Machine) *Result {
	t.Helper()
	r, err := Search(context.Background(), req, m, nil)
	check(t, err)
	return r
}

// TestHostIsShort: where the host cannot hold all that a placement gives to it, some of that is on the device.
// All of it is 16 bytes per element, of which the optimizer's state is 8, or 10 in bf16.
func TestHostIsShort(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	host := device.HostTier
	for _, dt := range testkit.Sample([]graph.DType{graph.F32, graph.BF16}, 1, 1) {
		req := layers(t, 1, 4)
		g, err := graph.Build(req.Graph.Model, req.Graph.Seq, dt)
		check(t, err)
		req.Graph = g
		var n int64
		for _, p := range g.Params {
			n += p.Elems()
		}
		pinned := *req
		pinned.Pins.Weights, pinned.Pins.Grads, pinned.Pins.State = &host, &host, &host
		m := machine(t, 8<<20, 1)
		m.Capacity[device.DiskTier] = 0
		least := find(t, &pinned, m).Best.Program.Height[device.DeviceTier]
		for _, c := range []struct{ dev, host int64 }{{10, 6}, {2, 15}} {
			m.Capacity[device.DeviceTier], m.Capacity[host] = least+c.dev*n, c.host*n
			if err := Fits(context.Background(), req, m); err != nil {
				t.Errorf("%v, %d bytes an element: %v", dt, c.host, err)
			}
			if err := Fits(context.Background(), &pinned, m); !errors.Is(err, ErrDoesNotFit) {
				t.Errorf("%v, %d bytes an element, all of it on the host: %v", dt, c.host, err)
			}
		}
		if h := find(t, req, m).Best.Program.Height; h[host] > m.Capacity[host] || h[device.DeviceTier] > m.Capacity[device.DeviceTier] {
			t.Errorf("%v: the plan takes %v of %v", dt, h, m.Capacity)
		}
	}
}

// TestMonotone is law L9: more memory, or a faster link, never makes the
// chosen plan slower.
func TestMonotone(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := layers(t, 2, 2)
	last, eight := 0.0, 0.0
	for _, mib := range testkit.Sample([]int64{128, 38, 26, 15, 8, 5}, 2, 3) { // 8 among them
		r := find(t, req, machine(t, mib<<20, 1))
		if h := r.Best.Program.Height[device.DeviceTier]; h > mib<<20 {
			t.Errorf("%d MiB: the plan takes %d bytes", mib, h)
		}
		if s := r.Best.Seconds(); s < last*(1-1e-9) {
			t.Errorf("%d MiB: %.6g s, but with more memory %.6g s", mib, s, last)
		} else {
			last = s
		}
		if mib == 8 {
			eight = r.Best.Seconds()
		}
	}
	last = 0
	links := []float64{100, 1, 0.1, 0.01}
	if testkit.AtLevel() < testkit.All {
		links = links[1:3]
	}
	for _, link := range links {
		s := eight
		if link != 1 { // that plan was found above
			s = find(t, req, machine(t, 8<<20, link)).Best.Seconds()
		}
		if s < last*(1-1e-9) {
			t.Errorf("link x %v: %.6g s, but with a faster one %.6g s", link, s, last)
		} else {
			last = s
		}
	}
}

// TestMonotoneSteps is L9 where a little more memory once led to a local optimum: in another division between
// cache and logits, in another placement, in copies that were not far enough ahead. The searches know nothing
// of each other, so L9 holds only up to what is left of that.
func TestMonotoneSteps(t *testing.T) {
	testkit.Needs(t, testkit.All)
	const bound = 0.02
	for _, c := range []struct {
		batch      int
		less, more int64 // KiB
	}{{8, 25088, 25600}, {8, 6656, 7168}, {32, 10240, 10752}} {
		req := small(t)
		req.GlobalBatch = c.batch
		less := find(t, req, machine(t, c.less<<10, 1)).Best
		more := find(t, req, machine(t, c.more<<10, 1)).Best
		if ratio := more.Seconds() / less.Seconds(); ratio > 1+bound {
			t.Errorf("batch %d: %.2f %% slower with %d KiB (%s) than with %d (%s)", c.batch, 100*(ratio-1), c.more, more.Label, c.less, less.Label)
		}
	}
}

// TestBeatsFixedStrategies: no fixed strategy that fits is faster than what the
// search chose.
func TestBeatsFixedStrategies(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := tiny(t)
	req.GlobalBatch = 8
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	fitted := 0
	for range testkit.Count(4, 5, 12) {
		m := machine(t, int64(5+rng.IntN(60))<<20, []float64{0.05, 0.3, 1}[rng.IntN(3)])
		pl := fixed(req, rng)
		c, err := Evaluate(context.Background(), req, pl, m, "fixed")
		check(t, err)
		if !c.Fits {
			continue
		}
		fitted++
		check(t, c.Time(m))
		if best := find(t, req, m).Best; best.Seconds() > c.Seconds()*1.02 {
			t.Errorf("device %d: chosen %s %.5g s, but %+v takes %.5g s", m.Capacity[0], best.Label, best.Seconds(), pl, c.Seconds())
		}
	}
	if fitted < 3 {
		t.Errorf("only %d of the drawn strategies fit", fitted)
	}
}

// fixed is a strategy as people set it by hand: one residency, and one recomputation policy for all layers.
func fixed(req *Request, rng *rand.Rand) *plan.Plan {
	b := []int{1, 2, 4, 8}[rng.IntN(4)]
	pl := plan.Plain(req.Graph, b)
	pl.MicroBatches = req.GlobalBatch / b
	pl.Group = []int{1, pl.MicroBatches}[rng.IntN(2)]
	pl.HeadRows = 128
	r := residencies[rng.IntN(5)]
	for i := range pl.Chunks {
		pl.Chunks[i].Weights, pl.Chunks[i].Grads, pl.Chunks[i].State = r.weights, r.grads, r.state
	}
	pl.Cache, pl.Prefetch = 2*pl.CacheNeeded(req.Graph), 1
	all := plan.Recomputations()
	pl.Activations = slices.Repeat([]plan.Retention{plan.Recomputed(all[rng.IntN(len(all))])}, req.Graph.Model.Layers)
	return pl
}

// TestMisfit: what the hint says does fit, and a byte less does not.
func TestMisfit(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := layers(t, 1, 4)
	for _, caps := range testkit.Sample([][device.NumTiers]int64{{1 << 20, 1 << 34, 0}, {1 << 30, 1 << 11, 0}, {1 << 20, 1 << 10, 1 << 30}}, 1, 2) {
		m := machine(t, 0, 1)
		m.Capacity = caps
		_, err := Search(context.Background(), req, m, nil)
		var misfit *Misfit
		if !errors.As(err, &misfit) || !errors.Is(err, ErrDoesNotFit) {
			t.Fatalf("capacity %v: %v", caps, err)
		}
		if misfit.Need <= misfit.Have || len(LargestClasses(misfit.Frugal.Program, misfit.Tier)) == 0 {
			t.Errorf("capacity %v: %+v", caps, misfit)
		}
		for tier, h := range misfit.Frugal.Program.Height {
			m.Capacity[tier] = max(m.Capacity[tier], h)
		}
		find(t, req, m)
	}
}

// TestMisfitSparesGradients: where updates use gradients as they come, memory for those of all micro-batches is not said to be
// lacking: they go through a layer together.
func TestMisfitSparesGradients(t *testing.T) {
	req := tiny(t)
	req.GlobalBatch, req.Options.Clip = 2, 0
	m := machine(t, 5<<20, 1)
	m.Capacity[device.HostTier], m.Capacity[device.DiskTier] = 2<<20, 0
	lacks := func(pins Pins) int64 {
		asked := *req
		asked.Pins = pins
		_, err := Search(t.Context(), &asked, m, nil)
		var misfit *Misfit
		if !errors.As(err, &misfit) {
			t.Fatalf("no misfit, but %v", err)
		}
		return newProblem(&asked, m).lack(misfit.Frugal)
	}
	if free, apart := lacks(Pins{}), lacks(Pins{Group: 1}); free >= apart {
		t.Errorf("%d bytes lack, and as many, %d, with micro-batches one by one", free, apart)
	}
}

// TestMisfitIsKnownSoon: where pinned activations leave no plan, bounds reveal it. Every residency is looked at
// with three divisions of the logits, in the search and for the hint, and only the plan that is reported is
// packed.
func TestMisfitIsKnownSoon(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := long(t)
	for _, keep := range []plan.Retention{plan.SwapOf(device.HostTier, 1), plan.Recomputed("full")} {
		req.Pins.Activations = map[int]plan.Retention{}
		for l := range req.Graph.Model.Layers {
			req.Pins.Activations[l] = keep
		}
		lowered, packed := 0, 0
		req.Options.Dump = func(pass string, p *program.Program) {
			switch pass {
			case "list":
				lowered++
			case "waits": // a rejected program has none
				packed++
			}
		}
		m := machine(t, 10<<20, 1)
		var misfit *Misfit
		if _, err := Search(context.Background(), req, m, nil); !errors.As(err, &misfit) {
			t.Fatalf("%v: %v", keep, err)
		}
		if most := len(residencies) * (4 + 2*4); lowered > most || packed != 1 {
			t.Errorf("%v: %d programs lowered, %d of them packed; at most %d and 1", keep, lowered, packed, most)
		}
		m.Capacity[device.DeviceTier] = misfit.Need
		req.Options.Dump = nil
		find(t, req, m)
	}
}

// TestPins: decisions of the user are kept.
func TestPins(t *testing.T) {
	req := small(t)
	host := device.HostTier
	req.Pins = Pins{MicroBatch: 2, Group: 2, HeadRows: 64, Prefetch: 3, Recompute: "full", Weights: &host, State: &host}
	pl := find(t, req, machine(t, 1<<30, 1)).Best.Plan
	if pl.MicroBatch != 2 || pl.Group != 2 || pl.HeadRows != 64 || pl.Prefetch != 3 || pl.Activations[0] != plan.Recomputed("full") ||
		pl.Chunks[0].Weights != host || pl.Chunks[0].State != host {
		t.Errorf("%+v", pl)
	}
}

// TestOddSequences: in bf16, tokens are cut at even places, so sequences of odd length are processed in twos or
// all at once. What fits of these is tried, and what does not is reported.
func TestOddSequences(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	type batch struct {
		seq, batch int
		want       []int
	}
	of := func(c batch) *Request {
		r := *tiny(t)
		model := *r.Graph.Model
		model.MaxPositions = c.seq
		g, err := graph.Build(&model, c.seq, graph.BF16)
		check(t, err)
		r.Graph, r.GlobalBatch = g, c.batch
		return &r
	}
	short := []batch{{33, 4, []int{4, 2}}, {33, 3, []int{3}}, {33, 1, []int{1}}, {32, 4, []int{4, 2, 1}}, {1, 4, []int{4, 2}}}
	for _, c := range append([]batch{{33001, 3, []int{3}}, {33001, 6, []int{2}}}, short...) {
		if list := newProblem(of(c), machine(t, 1<<30, 1)).microBatches(); !slices.Equal(list, c.want) {
			t.Errorf("%d sequences of %d: micro-batches of %v, want %v", c.batch, c.seq, list, c.want)
		}
	}
	for _, c := range testkit.Sample(short, 1, 2) {
		m := machine(t, 1<<16, 1)
		var misfit *Misfit
		if _, err := Search(t.Context(), of(c), m, nil); !errors.As(err, &misfit) {
			t.Fatalf("%d sequences of %d: %v", c.batch, c.seq, err)
		}
		m.Capacity[device.DeviceTier] = misfit.Need
		find(t, of(c), m)
	}
}
