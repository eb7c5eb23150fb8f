package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestRandomRanks: whatever Validate accepts can be lowered to safe programs,
// for training, gradients, losses and logits, that compute what the plain
// program computes.
func TestRandomRanks(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 7))
	refused, proved := 0, 0
	for round := range testkit.Count(2, 12, 30) {
		g, pl := samples.RandomRanks(t, rng)
		if err := pl.Validate(g); err != nil {
			refused++
			t.Logf("round %d: %v", round, err)
			continue
		}
		if err := prove(g, pl, float64(rng.IntN(2)), lower.Mode(rng.IntN(int(lower.Logits)+1))); err != nil {
			t.Fatalf("round %d: %v\n%s\nplan %+v\npipeline %+v", round, err, pl.Model, pl, pl.Pipeline)
		}
		proved++
	}
	if proved <= refused {
		t.Errorf("%d plans refused, %d proved", refused, proved)
	}
}

// TestRandomParts is the same for plans whose ranks share sequences.
func TestRandomParts(t *testing.T) {
	rng := testkit.Rand(t)
	for n := 0; n < testkit.Count(3, 15, 200); {
		g, pl := samples.RandomRanks(t, rng)
		if pl.Parts() == 1 || pl.Validate(g) != nil {
			continue
		}
		n++
		if err := prove(g, pl, float64(rng.IntN(2)), lower.Mode(rng.IntN(int(lower.Logits)+1))); err != nil {
			t.Fatalf("%v\n%s\nplan %+v", err, pl.Model, pl)
		}
	}
}

// prove lowers the training step and, on top of it, that of another mode.
func prove(g *graph.Graph, pl *plan.Plan, clip float64, mode lower.Mode) error {
	cuts, err := lower.Cuts(g, pl)
	if err != nil {
		return err
	}
	base := make([]*program.Program, pl.Ranks)
	for _, m := range []lower.Mode{lower.Train, mode} {
		opt := betas
		opt.Mode, opt.Clip = m, clip
		ps := make([]*program.Program, pl.Ranks)
		for opt.Rank = range pl.Ranks {
			opt.Base = base[opt.Rank]
			if ps[opt.Rank], err = lower.Lower(context.Background(), g, pl, opt); err != nil {
				return fmt.Errorf("mode %d, rank %d: %w", m, opt.Rank, err)
			}
			if opt.Base != nil && m != lower.Train {
				if err := VerifyBeside(opt.Base, ps[opt.Rank]); err != nil {
					return fmt.Errorf("mode %d, rank %d: %w", m, opt.Rank, err)
				}
			}
		}
		if err := Verify(ps...); err != nil {
			return fmt.Errorf("mode %d: %w", m, err)
		}
		opt = betas
		opt.Mode, opt.Clip, opt.RowUnit, opt.Cuts = m, clip, ps[0].RowUnit, cuts
		whole, err := g.BuildWhole()
		if err != nil {
			return err
		}
		alone := plan.Plain(whole, pl.Sequences())
		alone.Optimizer, alone.State, alone.KVParts = pl.Optimizer, pl.State, pl.HeadParts()
		plain := make([]*program.Program, alone.Ranks)
		for opt.Rank = range plain {
			if plain[opt.Rank], err = lower.Lower(context.Background(), whole, alone, opt); err != nil {
				return err
			}
		}
		eq, err := Equivalent(ps, plain)
		if err == nil && pl.Ranks == 1 && slicesIn(pl) == 1 && eq != Exact {
			err = fmt.Errorf("%v on one rank", eq)
		}
		if err != nil {
			return fmt.Errorf("mode %d: %w", m, err)
		}
		base = ps
	}
	return nil
}

// slicesIn is the number of slices of a sequence.
func slicesIn(pl *plan.Plan) int {
	if pl.Pipeline == nil {
		return 1
	}
	return pl.Pipeline.Slices
}
