package search

import (
	"strings"
	"testing"
)

// TestActivationTimes: times of a second and more are printed in seconds.
func TestActivationTimes(t *testing.T) {
	var out strings.Builder
	if err := WriteActivations(&out, []Layers{{Out: 0.000284, In: 0.903, Forward: 0.9996, Backward: 2.34}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.28 ms", "903 ms", " 1 s", "2.34 s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
