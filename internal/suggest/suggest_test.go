package suggest

import "testing"

func TestNearest(t *testing.T) {
	keys := []string{"learning_rate", "global_batch", "sequence_length", "max_steps", "out"}
	for word, want := range map[string]string{
		"learning_rat": "learning_rate", "lerning_rate": "learning_rate", "global_bach": "global_batch",
		"maxsteps": "max_steps", "Out": "out", "colour": "", "": "",
	} {
		if got := Nearest(word, keys); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
