package scale

import "testing"

// TestFlows derives the intensities by counting. A gather or a reduce moves 2 bytes per parameter out and 2 in; a
// forward pass takes 2 FLOP per parameter and token, a backward pass with recomputation 6.
func TestFlows(t *testing.T) {
	for _, m := range []int{1, 5, 64} {
		tokens := 2560.0
		for _, f := range Flows(m, tokens) {
			if got := 2 * float64(f.Gathers+f.Reduces); got != f.Bytes {
				t.Errorf("%s: %g bytes for %d gathers and %d reduces, stated %g", f.Mode, got, f.Gathers, f.Reduces, f.Bytes)
			}
		}
		all := Flows(m, tokens)
		near(t, "ZeRO-3 forward", all[3].Forward, 2*tokens/4, 0)
		near(t, "ZeRO-3 backward", all[3].Backward, 6*tokens/8, 0)
		near(t, "layered forward", all[4].Forward, float64(m)*2*tokens/4, 0)
		near(t, "ZeRO-2 reduce", all[2].Backward, 6*tokens/4, 0)
		near(t, "replicated", all[0].Backward, 6*tokens/8, 0)
	}
}
