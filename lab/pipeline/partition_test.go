package pipeline

import (
	"math"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/schedule"
)

func TestPartition(t *testing.T) {
	for _, x := range []struct {
		c        Cost
		tokens   int
		multiple int
		want     []int
	}{
		{TransformerCost(24, 4096, 16384, 32, 32000), 16384, 2, []int{4930, 4238, 3776, 3440}},
		{TransformerCost(32, 2560, 10240, 32, 50304), 32768, 8, []int{11952, 8264, 6728, 5824}},
		{TransformerCost(32, 4096, 16384, 32, 50304), 65536, 8, []int{25024, 16272, 13040, 11200}},
		{Cost{Linear: 1}, 16, 1, []int{4, 4, 4, 4}},
	} {
		got, err := x.c.Partition(x.tokens, 4, x.multiple)
		if err != nil || !slices.Equal(got, x.want) {
			t.Errorf("%d tokens: %v (%v), want %v", x.tokens, got, err, x.want)
		}
		for _, f := range x.c.Factors(got) {
			if math.Abs(f-1) > 0.005 {
				t.Errorf("%d tokens: slice costs differ by %.2f %%", x.tokens, 100*(f-1))
			}
		}
	}
	for _, bad := range [][3]int{{4, 5, 1}, {0, 1, 1}, {10, 0, 1}, {10, 6, 2}, {10, -1, 1}} {
		if _, err := (Cost{1, 1}).Partition(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("partition %v was accepted", bad)
		}
	}
	if _, err := (Cost{math.NaN(), 1}).Partition(10, 2, 1); err == nil {
		t.Error("cost NaN was accepted")
	}
}

// TestPartitionPays: for p=4, m=8, k=4, slices of equal cost reach the ideal 26.25, slices
// of equal length do not.
func TestPartitionPays(t *testing.T) {
	c := Cost{Linear: 8*4096*4096 + 4*4096*16384, Quadratic: 4 * 4096}
	q := schedule.Request{Ranks: 4, Micros: 8, Slices: 4, Costs: schedule.Costs{Times: schedule.Times{F: .25, B: .25, W: .25}}}
	cut, err := c.Partition(16384, 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{4961, 4240, 3764, 3420} {
		if d := cut[i] - want; d < -2 || d > 2 {
			t.Errorf("cuts %v", cut)
		}
	}
	for _, x := range []struct {
		cut  []int
		want float64
	}{{[]int{4096, 4096, 4096, 4096}, 30.61}, {cut, 26.25}} {
		q.Costs.Slices = c.Factors(x.cut)
		_, tl := simulated(t, "seq1f1b", q)
		if math.Abs(tl.Makespan-x.want) > 0.01 {
			t.Errorf("cuts %v: makespan %.3f, want %.2f", x.cut, tl.Makespan, x.want)
		}
	}
}
