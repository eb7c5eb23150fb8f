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
	for _, key := range a { // any of them alone, to any other value, and back
		for _, value := range []string{"", "0", "auto", key.Value + "0", "-1"} {
			now := slices.Clone(a)
			at := slices.Index(a, key)
			now[at].Value = value
			to, from := a.changes(now), now.changes(a)
			if len(to) != 1 || to[0] != key.Key+" from "+key.Value+" to "+value || len(from) != 1 || from[0] != key.Key+" from "+value+" to "+key.Value {
				t.Errorf("%s to %q: %q, %q", key.Key, value, to, from)
			}
		}
	}
	for _, none := range [][2]settings{{nil, b}, {a, nil}, {a, a}, {a, a[:1]}, {{{"max_steps", "30"}}, {{"schedule", "linear"}}}} {
		if got := none[0].changes(none[1]); got != nil {
			t.Errorf("%v to %v: %q", none[0], none[1], got)
		}
	}
}
