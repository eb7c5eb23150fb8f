package search

import (
	"math"
	"strings"
	"testing"
)

// TestWear: what ranks of one host write adds up, that of other hosts does not, and days are the endurance over it.
func TestWear(t *testing.T) {
	alone := func(int) int { return 0 }
	if w := NewWear([]int64{0, 0}, alone, 1, 1); w != nil || w.Soon() {
		t.Errorf("nothing is written, yet %+v", w)
	}
	w := NewWear([]int64{5, 7, 11}, func(r int) int { return r / 2 }, 2, 12*secondsPerDay)
	if w.PerStep != 12 || w.PerDay != 6*secondsPerDay || w.Days != 2 || !w.Soon() {
		t.Errorf("%+v", w)
	}
	if w = NewWear([]int64{5, 7, 11}, alone, 1, 0); w.PerStep != 23 || w.Soon() || strings.Contains(w.Text(), "endurance") {
		t.Errorf("a disk that does not wear: %+v, %s", w, w.Text())
	}
	if w = NewWear([]int64{1}, alone, 1, math.MaxInt64); w.Soon() || !strings.Contains(w.Text(), "years") {
		t.Errorf("%+v, %s", w, w.Text())
	}
}
