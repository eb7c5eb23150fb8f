package plan_test

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// TestPlanText is L5 for plans, and shows that a plan with an unknown key is refused.
func TestPlanText(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		_, pl := samples.RandomRanks(t, rng)
		text, err := json.Marshal(pl)
		if err != nil {
			t.Fatal(err)
		}
		back, err := plan.Parse(text)
		if err != nil || !reflect.DeepEqual(pl, back) || pl.Hash() != back.Hash() {
			t.Fatalf("%s\nreads back as %+v: %v", text, back, err)
		}
		if _, err := plan.Parse(slices.Concat([]byte(`{"word": 1, `), text[1:])); err == nil {
			t.Fatalf("a key that is not known is read over: %s", text)
		}
	}
}
