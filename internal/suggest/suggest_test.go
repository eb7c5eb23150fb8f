package suggest

import (
	"errors"
	"io"
	"testing"
)

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

// TestAdd: an error gets one hint and still wraps the original error.
func TestAdd(t *testing.T) {
	once := Add(io.EOF, "try again")
	if !errors.Is(once, io.EOF) || once.Error() != "EOF; hint: try again" {
		t.Error(once)
	}
	if twice := Add(once, "go home"); twice != once {
		t.Error(twice)
	}
	if err := Add(nil, "go home"); err != nil {
		t.Error(err)
	}
}
