package search

import (
	"context"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model/family"
)

// TestScouts: a search decides the same and counts the same effort with scouts and without, on a machine where it has to make
// room.
func TestScouts(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, memory := range testkit.Sample([]int64{12 << 20, 16 << 20, 24 << 20}, 1, 1) {
		req := small(t)
		runtime.GOMAXPROCS(1)
		alone := find(t, req, machine(t, memory, 1))
		runtime.GOMAXPROCS(4)
		together := find(t, req, machine(t, memory, 1))
		if !reflect.DeepEqual(alone.Best.Plan, together.Best.Plan) || alone.Best.Seconds() != together.Best.Seconds() {
			t.Errorf("%d bytes: %s, with scouts %s", memory, alone.Best.Label, together.Best.Label)
		}
		if alone.Evaluated != together.Evaluated {
			t.Errorf("%d bytes: %d candidates, with scouts %d", memory, alone.Evaluated, together.Evaluated)
		}
	}
}

// TestScoutsHelp: scouts try the items that are next, as far ahead as there are scouts; what they found out the search need not; and
// the effort of what it never asked is not counted.
func TestScoutsHelp(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	p := newProblem(small(t), machine(t, 64<<20, 1))
	var tried [8]atomic.Bool
	judged := 0
	ask := func(i int) func() (*Candidate, int, error) {
		return func() (*Candidate, int, error) { return &Candidate{Fits: true}, i, nil }
	}
	item, err := tryInTurn(t.Context(), p, len(tried), func(_ context.Context, p *problem, i int) {
		p.told.lowered += p.known.of(string(rune('a'+i)), true, ask(i)).lowered
		tried[i].Store(true)
	}, func(i int) (bool, error) {
		for i == 0 && !(tried[1].Load() && tried[2].Load() && tried[3].Load()) {
			runtime.Gosched()
		}
		if i == 0 && tried[4].Load() {
			t.Error("three scouts were four items ahead")
		}
		p.known.of(string(rune('a'+i)), false, func() (*Candidate, int, error) {
			judged++
			return ask(i)()
		})
		return i == 3, nil
	})
	check(t, err)
	p.known.settle()
	if item != 3 || judged != 1 {
		t.Errorf("ended at item %d; the search itself judged %d", item, judged)
	}
	if p.told.lowered != 0 {
		t.Errorf("%d instructions of scouts were counted", p.told.lowered)
	}
}

// TestFewBlocks: no micro-batch is cut into more pieces than a program can be long, whatever divides its length: 348160 is
// 2^12 x 5 x 17, so that 544 rows, divided once more, are 32.
func TestFewBlocks(t *testing.T) {
	m, err := family.Known("llama-3-8b")
	check(t, err)
	for _, tokens := range []int{4096, 348160, 1 << 20} {
		g, err := graph.Build(m, tokens, graph.BF16)
		check(t, err)
		p := newProblem(&Request{Graph: g, GlobalBatch: 1, Ranks: 1}, machine(t, 1<<34, 1))
		for _, of := range []aim{fastestPlan, anyFrugal} {
			for _, st := range p.styles(of, 1, p.placements[0]) {
				if st.headRows*1024 < tokens {
					t.Errorf("%d tokens: logits of %d at a time", tokens, st.headRows)
				}
			}
		}
	}
}
