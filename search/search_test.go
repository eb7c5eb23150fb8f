package search

import (
	"slices"
	"testing"
)

// TestStageOrder checks the tables of stages against the table of reasons: each stage has one, none comes too late.
func TestStageOrder(t *testing.T) {
	for _, o := range stageOrder {
		found := false
		for _, table := range [][]namedStage{stages, improvements} {
			at := func(name string) int {
				return slices.IndexFunc(table, func(s namedStage) bool { return s.name == name })
			}
			if before, after := at(o.before), at(o.after); before >= 0 && after >= 0 {
				found = true
				if before >= after {
					t.Errorf("%s must come before %s: %s", o.before, o.after, o.why)
				}
			}
		}
		if !found {
			t.Errorf("no table has both %s and %s", o.before, o.after)
		}
	}
	for _, s := range slices.Concat(stages, improvements) {
		if !slices.ContainsFunc(stageOrder, func(o struct{ before, after, why string }) bool { return s.name == o.before || s.name == o.after }) {
			t.Errorf("stage %s may run at any time: say before or after which, and why", s.name)
		}
	}
}

// TestShortlistIsValue: what adds to a shortlist or reorders it leaves it as it was.
func TestShortlistIsValue(t *testing.T) {
	list := make(shortlist, 0, 8).add(moving(1, 1, 0), moving(2, 2, 0), moving(3, 3, 0))
	was := slices.Clone(list)
	if more := list.add(moving(4, 0.5, 0)); len(more) != 4 || more[0].Seconds() != 0.5 {
		t.Errorf("%d candidates, the fastest takes %v s", len(more), more[0].Seconds())
	}
	if other := list.first(list[2]); other[0] != was[2] || other[1] != was[0] || other[2] != was[1] {
		t.Error("the last candidate was not put first")
	}
	if !slices.Equal(list, was) {
		t.Error("the list has changed")
	}
}
