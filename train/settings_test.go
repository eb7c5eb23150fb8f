package train

import (
	"slices"
	"testing"
)

// TestSettings: each setting that differs is named with both values, others are not, and neither are those that only
// one of the checkpoints knows.
func TestSettings(t *testing.T) {
	a := settings{{"max_steps", "30"}, {"learning_rate", "0.001"}, {"schedule", "cosine"}}
	b := settings{{"learning_rate", "0.01"}, {"schedule", "cosine"}, {"max_steps", "60"}, {"skip_spikes", "0"}}
	if got, want := a.changes(b), []string{"max_steps from 30 to 60", "learning_rate from 0.001 to 0.01"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (settings)(nil).changes(b); got != nil {
		t.Errorf("without a record: %q", got)
	}
}
