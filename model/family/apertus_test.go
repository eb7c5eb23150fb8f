package family

import (
	"strings"
	"testing"
)

// TestApertusScaling: without a word on rotary positions they are scaled as transformers scales them, and a base that it would then
// ignore is refused; with one they are what it says.
func TestApertusScaling(t *testing.T) {
	for keys, want := range map[string]string{
		``:                       "llama3",
		`, "rope_scaling": null`: "llama3",
		`, "rope_theta": 12000000, "rope_parameters": null`:                           "llama3",
		`, "rope_parameters": {"rope_type": "default", "rope_theta": 10000}`:          "",
		`, "rope_theta": 10000, "rope_scaling": {"rope_type": "linear", "factor": 2}`: "linear",
	} {
		m, _, err := Parse([]byte(`{"model_type": "apertus"` + keys + `}`))
		got := ""
		if err == nil && m.RopeScaling != nil {
			got = m.RopeScaling.Type
		}
		if err != nil || got != want {
			t.Errorf("%s: scaled by %q, want %q; %v", keys, got, want, err)
		}
	}
	if _, _, err := Parse([]byte(`{"model_type": "apertus", "rope_theta": 10000}`)); err == nil || !strings.Contains(err.Error(), "hint: give rope_parameters") {
		t.Errorf("a base that is ignored: %v", err)
	}
}
