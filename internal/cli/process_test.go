package cli

import "testing"

// TestWholeCores: no quota is exceeded by a core that works all the time, except where there is less than one.
func TestWholeCores(t *testing.T) {
	for quota, want := range map[float64]int{0: 0, 0.3: 1, 1: 1, 1.9: 1, 2: 2, 7.5: 7} {
		if got := wholeCores(quota); got != want {
			t.Errorf("quota %v: %d cores, want %d", quota, got, want)
		}
	}
}
