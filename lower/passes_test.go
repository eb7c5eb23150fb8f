package lower

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// drawLowerings draws a model, a plan and a mode, and returns the lowerings of all ranks before the first pass.
func drawLowerings(t *testing.T, rng *rand.Rand) []*lowering {
	t.Helper()
	for {
		var g *graph.Graph
		var pl *plan.Plan
		if rng.IntN(2) == 0 {
			g, pl = samples.RandomRanks(t, rng)
		} else {
			g = samples.BuildGraph(t, []string{"gpt2", "llama", "pairs"}[rng.IntN(3)], graph.F32)
			pl = samples.RandomPlan(g, 4, rng)
		}
		pl.Defer = rng.IntN(4) == 0
		if pl.Validate(g) != nil {
			continue
		}
		opt := Options{Mode: Mode(rng.IntN(int(Logits) + 1)), Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: float64(rng.IntN(2)), Capacity: program.NoLimits}
		if opt.Mode > Train && rng.IntN(2) == 0 {
			opt.Mode = Train
		}
		var ranks []*lowering
		for opt.Rank = range pl.Ranks {
			unplaced := opt
			unplaced.Unplaced = true
			if _, err := Lower(t.Context(), g, pl, unplaced); err != nil {
				break // too few cache blocks
			}
			lo, err := newLowering(t.Context(), g, pl, opt)
			if err != nil {
				t.Fatal(err)
			}
			ranks = append(ranks, lo)
		}
		if len(ranks) == pl.Ranks {
			return ranks
		}
	}
}

// TestPasses: what each pass leaves is sound by itself.
func TestPasses(t *testing.T) {
	rng := testkit.Rand(t)
	for range testkit.Count(20, 60, 400) {
		ranks := drawLowerings(t, rng)
		for _, ps := range passes {
			err := runPass(ps, ranks)
			if err == nil {
				err = checkAfter(ps.name, ranks)
			}
			if err != nil {
				st := ranks[0].step
				t.Fatalf("after pass %s: %v\n%s, mode %s, plan %+v\npipeline %+v", ps.name, err, st.g.Model.Family.Name, modes[st.opt.Mode], st.pl, st.pl.Pipeline)
			}
		}
	}
}

// runPass runs a pass on all ranks.
func runPass(ps pass, ranks []*lowering) error {
	for _, lo := range ranks {
		if err := ps.run(lo); err != nil {
			return err
		}
	}
	return nil
}

// harms are mistakes of passes: each changes what a pass left on one rank, and reports whether it could.
var harms = []struct {
	pass, what string
	do         func(lo *lowering, rng *rand.Rand) bool
}{
	{"order", "a unit is missing", func(lo *lowering, rng *rand.Rand) bool {
		i := rng.IntN(len(lo.units))
		lo.units = slices.Delete(lo.units, i, i+1)
		return true
	}},
	{"order", "the first unit is the last", func(lo *lowering, _ *rand.Rand) bool {
		first := lo.units[0]
		lo.units = append(lo.units[1:], first)
		return lo.step.trains() && first.forward && !first.backward && lo.step.goesBack(first.segment)
	}},
	{"compute", "an operator is missing whose result is read", func(lo *lowering, rng *rand.Rand) bool {
		u := &lo.units[rng.IntN(len(lo.units))]
		i := slices.IndexFunc(u.work, func(o *op) bool { return o.in.Op == graph.RMSNorm || o.in.Op == graph.LayerNorm })
		if i < 0 || u.segment < 1 {
			return false
		}
		u.work = slices.Delete(u.work, i, i+1)
		return true
	}},
	{"recompute", "an operator that is repeated is missing", func(lo *lowering, rng *rand.Rand) bool {
		u := &lo.units[rng.IntN(len(lo.units))]
		n := 0
		for n < len(u.work) && u.work[n].in.Key.Dir == program.Recompute {
			n++
		}
		if n == 0 || !slices.ContainsFunc(u.work[n:], func(o *op) bool {
			return slices.ContainsFunc(o.refs, func(r ref) bool { return r.value >= 0 && u.work[n-1].writes(r.instance()) })
		}) {
			return false // nobody reads it, so nothing is wrong without it
		}
		u.work = slices.Delete(u.work, n-1, n) // the last, which is repeated for the backward pass itself
		return true
	}},
	{"swap", "a copy back is missing", func(lo *lowering, _ *rand.Rand) bool {
		return dropOp(lo, func(o *op) bool { return o.in.Op == graph.Copy && o.in.Stream == device.HostToDev })
	}},
	{"activations", "an operand is a row too far", func(lo *lowering, rng *rand.Rand) bool {
		return bendOperand(lo, rng, graph.Forwarded, func(r *program.Region) { r.Off = lo.builder.p.Buffers[r.Buf].Rows * lo.builder.p.Buffers[r.Buf].Cols })
	}},
	{"activations", "an operand is in another's buffer", func(lo *lowering, rng *rand.Rand) bool {
		n := len(lo.builder.p.Buffers)
		return n > 1 && bendOperand(lo, rng, graph.Forwarded, func(r *program.Region) { r.Buf = (r.Buf + 1) % n })
	}},
	{"inputs", "tokens are not copied", func(lo *lowering, _ *rand.Rand) bool {
		for i := range lo.units {
			if u := &lo.units[i]; len(u.before) > 1 {
				u.before = u.before[:len(u.before)-1]
				return true
			}
		}
		return false
	}},
	{"weights", "an operand is another weight", func(lo *lowering, rng *rand.Rand) bool {
		p := lo.builder.p
		return bendOperand(lo, rng, graph.ParamValue, func(r *program.Region) {
			if b := &p.Buffers[r.Buf]; b.Persistent && len(b.Cuts) > 0 && r.Off > 0 {
				r.Off = 0
			} else {
				r.Off = b.Cols
			}
		})
	}},
	{"weights", "a chunk is not fetched", func(lo *lowering, _ *rand.Rand) bool {
		for i := range lo.units {
			u := &lo.units[i]
			n := slices.IndexFunc(u.before, func(o *op) bool { return o.in.Key.Chunk >= 0 })
			if n >= 0 {
				u.before = slices.Delete(u.before, n, n+1)
				return true
			}
		}
		return false
	}},
	{"gradients", "the first contribution accumulates", func(lo *lowering, _ *rand.Rand) bool {
		for i := range lo.units {
			for j := range lo.units[i].work {
				o := lo.units[i].work[j]
				for _, r := range o.refs {
					if r.value >= 0 && lo.step.g.Values[r.value].Kind == graph.ParamGrad && !o.in.Attr.Acc && lo.step.opt.Mode == Train {
						o.in.Attr.Acc = true
						return true
					}
				}
			}
		}
		return false
	}},
	{"optimizer", "a chunk is not updated", func(lo *lowering, _ *rand.Rand) bool {
		rule := lo.step.pl.Optimizer.Rule()
		return lo.step.updates() && dropOp(lo, func(o *op) bool { return o.in.Op == rule.Op })
	}},
	{"optimizer", "a square is not counted", func(lo *lowering, _ *rand.Rand) bool {
		return dropOp(lo, func(o *op) bool { return o.in.Op == graph.NormPart })
	}},
	{"results", "the loss stays on the device", func(lo *lowering, _ *rand.Rand) bool {
		return dropOp(lo, func(o *op) bool {
			return lo.inputs.loss >= 0 && o.in.Op == graph.Copy && o.in.Args[1].Buf == lo.inputs.loss
		})
	}},
	{"list", "the list is reversed", func(lo *lowering, _ *rand.Rand) bool {
		slices.Reverse(lo.builder.p.Instrs)
		return true
	}},
	{"place", "two buffers are in the same place", func(lo *lowering, _ *rand.Rand) bool {
		first := -1
		for i := range lo.builder.p.Buffers {
			b := &lo.builder.p.Buffers[i]
			if !b.Persistent || b.Tier != device.HostTier {
				continue
			}
			if first >= 0 {
				b.Addr = lo.builder.p.Buffers[first].Addr
				return true
			}
			first = i
		}
		return false
	}},
	{"waits", "an instruction does not wait", func(lo *lowering, rng *rand.Rand) bool {
		in := &lo.builder.p.Instrs[rng.IntN(len(lo.builder.p.Instrs))]
		if len(in.Waits) == 0 {
			return false
		}
		in.Waits = nil
		return true
	}},
}

// dropOp removes the first op of its kind from the units.
func dropOp(lo *lowering, is func(*op) bool) bool {
	for i := range lo.units {
		u := &lo.units[i]
		for _, list := range []*[]*op{&u.before, &u.work, &u.after} {
			for j := range *list {
				if is((*list)[j]) {
					*list = slices.Delete(*list, j, j+1)
					return true
				}
			}
		}
	}
	return false
}

// bendOperand changes one operand of a kind that is read, in a unit that is drawn: of what nobody reads no place is wrong.
func bendOperand(lo *lowering, rng *rand.Rand, kind graph.ValueKind, bend func(*program.Region)) bool {
	u := &lo.units[rng.IntN(len(lo.units))]
	for j := range u.work {
		for k, r := range u.work[j].refs {
			if in := &u.work[j].in; r.value >= 0 && lo.step.g.Values[r.value].Kind == kind && in.Op.Info().Args[k].Access == graph.Read && !in.Args[k].Absent() {
				bend(&u.work[j].in.Args[k])
				return true
			}
		}
	}
	return false
}

// TestPassesNamed: a mistake of a pass is found right after that pass.
func TestPassesNamed(t *testing.T) {
	rng := testkit.Rand(t)
	for _, h := range harms {
		done := 0
		for draws := 0; done < testkit.Count(1, 3, 10) && draws < 400; draws++ {
			ranks := drawLowerings(t, rng)
			for _, ps := range passes[:passNumber(h.pass)+1] {
				if err := runPass(ps, ranks); err != nil {
					t.Fatal(err)
				}
			}
			if !h.do(ranks[rng.IntN(len(ranks))], rng) {
				continue
			}
			if done++; checkAfter(h.pass, ranks) == nil {
				t.Errorf("pass %s, %s: nothing is found", h.pass, h.what)
			}
		}
		if done == 0 {
			t.Errorf("pass %s, %s: no lowering could be harmed so", h.pass, h.what)
		}
	}
}

// TestScratch: nothing of what one program leaves in the memory that they share is in the next.
func TestScratch(t *testing.T) {
	rng := testkit.Rand(t)
	scratch := &Scratch{}
	for range testkit.Count(10, 30, 200) {
		for _, lo := range drawLowerings(t, rng) {
			opt := lo.step.opt
			alone, err := Lower(t.Context(), lo.step.g, lo.step.pl, opt)
			if err != nil {
				t.Fatal(err)
			}
			opt.Scratch = scratch
			shared, err := Lower(t.Context(), lo.step.g, lo.step.pl, opt)
			if err != nil {
				t.Fatal(err)
			}
			if alone.String() != shared.String() {
				t.Fatalf("the program of rank %d, mode %s, differs if it shares memory with others: plan %+v", opt.Rank, modes[opt.Mode], lo.step.pl)
			}
		}
	}
}
