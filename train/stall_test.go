package train

import "testing"

// TestStall: so many validations in a row without a lower loss end a run, each step counts once, and 0 ends none.
func TestStall(t *testing.T) {
	var s stall
	for i, loss := range []float64{3, 2, 2.5, 1.9, 1.9, 2} {
		for range 2 { // as where the validation after the last step is made again
			s.add(10*(i+1), loss)
		}
		if want := i == 5; s.ends(2) != want || s.ends(0) || s.ends(3) {
			t.Errorf("validation %d: %+v", i, s)
		}
	}
	if s.Lowest != 1.9 || s.At != 40 {
		t.Errorf("%+v", s)
	}
}
