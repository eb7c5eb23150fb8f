package search

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// streamed counts the chunks that the device updates though their state is elsewhere, and all chunks whose
// state is elsewhere.
func streamed(pl *plan.Plan) (here, all int) {
	for _, c := range pl.Chunks {
		if c.State != device.DeviceTier {
			all++
		}
		if c.Update == plan.UpdateOnDevice {
			here++
		}
	}
	return here, all
}

// TestUpdates: compares the search's division of updates between cores and device with all other divisions for
// the same plan, on links that make it worthwhile and on a slow one that does not (except for the trips of
// gradients and weights that it saves, which the search does not look for). The user's choice is obeyed.
func TestUpdates(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, c := range testkit.Sample([]struct {
		layers int
		mib    float64
		link   float64
		clip   float64
		state  plan.StateFormat
		shares bool
		bound  float64
	}{{2, 5.5, 1, 1, plan.FP32State, true, 0.005}, {2, 5.5, 4, 1, plan.FP32State, true, 0.005}, {2, 5.5, 2, 0, plan.FP32State, true, 0.01},
		{2, 5.5, 1, 1, plan.BF16Moments, true, 0.005}, {4, 7, 0.01, 1, plan.FP32State, false, 0.02}}, 1, 1) {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			req := layers(t, c.layers, 1)
			req.Options.Clip, req.State = c.clip, c.state
			m := machine(t, int64(c.mib*(1<<20)), c.link)
			m.Capacity[device.DiskTier] = 0
			found := find(t, req, m).Best
			t.Log(found.Label, found.Seconds())
			if n, _ := streamed(found.Plan); (n > 0) != c.shares {
				t.Errorf("%d chunks are updated on the device: %s", n, found.Label)
			} else if by := fmt.Sprintf("%d chunks updated by the device", n); strings.Contains(found.Label, by) != c.shares {
				t.Errorf("%s, but %s", found.Label, by)
			}
			p := newProblem(req, m)
			for parts := range updateParts + 1 {
				ch := found.choice
				ch.streamed = parts
				other, err := p.evaluate(t.Context(), ch)
				check(t, err)
				if !other.Fits {
					continue
				}
				check(t, other.Time(m))
				if other.Seconds() < (1-c.bound)*found.Seconds() {
					t.Errorf("chosen %s %.5g s, but %s takes %.5g s", found.Label, found.Seconds(), other.Label, other.Seconds())
				}
			}
			for _, pin := range Updaters() {
				req.Pins.Update = pin
				r := find(t, req, m).Best
				n, all := streamed(r.Plan)
				if want := map[string]int{Updaters()[0]: 0, Updaters()[1]: all}[pin]; n != want {
					t.Errorf("updates pinned to the %s: %d of %d chunks are updated on the device", pin, n, all)
				}
				if c.shares && found.Seconds() > r.Seconds() || found.Seconds() > 1.01*r.Seconds() {
					t.Errorf("%s takes %.5g s, with updates pinned to the %s %.5g s: %s", found.Label, found.Seconds(), pin, r.Seconds(), r.Label)
				}
			}
		})
	}
}

// TestStreamUpdates: whatever share of the updates the device is given, at no chunk is it farther from that share of
// the elements so far than half a chunk.
func TestStreamUpdates(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 31))
	req := small(t)
	p := newProblem(req, machine(t, 1<<30, 1))
	for range 50 {
		pl := plan.Plain(req.Graph, 1)
		pl.Chunks = plan.Layout(req.Graph, []int64{1, 20000, 1 << 40}[rng.IntN(3)])
		for i := range pl.Chunks {
			pl.Chunks[i].State = device.Tier(rng.IntN(3))
		}
		parts := []int{0, updateParts, rng.IntN(updateParts + 1)}[rng.IntN(3)]
		count := p.streamUpdates(pl, parts)
		n, all := streamed(pl)
		if n != count || parts == 0 && n != 0 || parts == updateParts && n != all {
			t.Fatalf("%d parts: %d of %d chunks, %d are said", parts, n, all, count)
		}
		var seen, here, largest float64
		for _, c := range pl.Chunks {
			if c.State == device.DeviceTier {
				if c.Update != "" {
					t.Fatal("a chunk on the device is streamed through it")
				}
				continue
			}
			size := float64(elements(req.Graph, c))
			seen, largest = seen+size, max(largest, size)
			if c.Update != "" {
				here += size
			}
			if off := here - seen*float64(parts)/updateParts; max(off, -off) > largest/2 {
				t.Fatalf("%d parts: %.0f elements of %.0f, with chunks of up to %.0f", parts, here, seen, largest)
			}
		}
	}
}

// TestStreamFrozen: what is not trained is not updated anywhere.
func TestStreamFrozen(t *testing.T) {
	req := small(t)
	m := *req.Graph.Model
	check(t, m.Freeze("transformer.h.0.*"))
	g, err := graph.Build(&m, req.Graph.Seq, graph.F32)
	check(t, err)
	req.Graph = g
	p := newProblem(req, machine(t, 1<<30, 1))
	pl := plan.Plain(g, 1)
	for i := range pl.Chunks {
		pl.Chunks[i].State = device.HostTier
	}
	p.streamUpdates(pl, updateParts)
	if i := slices.IndexFunc(pl.Chunks, func(c plan.Chunk) bool { return g.Params[c.First].Frozen == (c.Update != "") }); i >= 0 {
		t.Errorf("chunk %d: %+v", i, pl.Chunks[i])
	}
}

// TestDefers: with clipping, over a slow link, updates are deferred, which shortens the step of the same plan; without clipping there
// is nothing to defer.
func TestDefers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, clip := range []float64{1, 0} {
		req, m := tiny(t), machine(t, 6<<20, 0.3)
		req.GlobalBatch, req.Pins.MicroBatch = 2, 2 // fewer plans, found sooner
		req.Options.Clip = clip
		m.Capacity[device.DiskTier] = 0
		best := find(t, req, m).Best
		if best.Plan.Defer != (clip > 0) || strings.Contains(best.Label, "deferred") != best.Plan.Defer {
			t.Errorf("clipping at %v: %s", clip, best.Label)
		}
		now := *best.Plan
		now.Defer = false
		c, err := Evaluate(t.Context(), req, &now, m, "now")
		check(t, err)
		check(t, c.Time(m))
		if best.Plan.Defer && best.Seconds() > 0.9*c.Seconds() {
			t.Errorf("%s takes %.5g s, without deferring %.5g s", best.Label, best.Seconds(), c.Seconds())
		}
	}
}

// TestSameAsNearer: a placement that is passed over since it is another's, as long as the cores make all updates, takes
// that one's memory and time.
func TestSameAsNearer(t *testing.T) {
	req := layers(t, 2, 1)
	m := *req.Graph.Model
	m.Tied = false // an embedding that is the head, too, is visited twice
	var err error
	req.Graph, err = graph.Build(&m, 128, graph.F32)
	check(t, err)
	p := newProblem(req, machine(t, 64<<20, 1))
	same := 0
	for _, r := range p.placements {
		ch := choice{b: p.batch, group: 1, r: r, st: p.styles(fastestPlan, p.batch, r)[0], keep: p.ladders(choice{b: p.batch, group: 1})[0][0]}
		if !sameAsNearer(p, ch) {
			continue
		}
		same++
		there, err := p.evaluate(t.Context(), ch)
		check(t, err)
		ch.r, _ = otherGrads(p, r)
		here, err := p.evaluate(t.Context(), ch)
		check(t, err)
		check(t, there.simulate(p.machine))
		check(t, here.simulate(p.machine))
		if here.Seconds() != there.Seconds() || here.Program.Height != there.Program.Height || len(here.Program.Instrs) != len(there.Program.Instrs) {
			t.Errorf("%s: %v s, %v bytes; %s: %v s, %v bytes", r.label, there.Seconds(), there.Program.Height, ch.r.label, here.Seconds(), here.Program.Height)
		}
	}
	if same == 0 {
		t.Error("no placement is passed over")
	}
}
