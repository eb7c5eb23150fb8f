package session

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/model"
)

// TestInitialBlocks: initial values do not depend on the number of cores, blocks differ, and all of
// them together have the requested standard deviation.
func TestInitialBlocks(t *testing.T) {
	p := model.Param{Name: "w", Init: model.Normal, Std: 0.02}
	all := make([]float32, 3*initialBlock+5)
	Initial(p, 7, 0, all)
	other := make([]float32, len(all))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	Initial(p, 7, 0, other)
	if !slices.Equal(all, other) {
		t.Error("another number of cores, other values")
	}
	few := make([]float32, 1000)
	Initial(p, 7, 0, few)
	if !slices.Equal(few, all[:len(few)]) {
		t.Error("a shorter parameter begins otherwise")
	}
	rest := make([]float32, len(all)-2*initialBlock)
	Initial(p, 7, 2*initialBlock, rest)
	if !slices.Equal(rest, all[2*initialBlock:]) {
		t.Error("a part by itself has other values")
	}
	var sum, squares, between float64
	for i, x := range all {
		sum += float64(x)
		squares += float64(x) * float64(x)
		if i >= initialBlock {
			between += float64(x) * float64(all[i-initialBlock])
		}
	}
	n := float64(len(all))
	if math.Abs(sum/n) > 6*p.Std/math.Sqrt(n) || math.Abs(squares/n/p.Std/p.Std-1) > 6*math.Sqrt(2/n) || math.Abs(between/n/p.Std/p.Std) > 6/math.Sqrt(n) {
		t.Errorf("mean %g, variance %g of %g, between blocks %g", sum/n, squares/n, p.Std*p.Std, between/n)
	}
}
