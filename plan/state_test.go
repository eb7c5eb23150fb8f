package plan

import (
	"encoding/json"
	"testing"
)

// TestStateFormats: each format is read from what it is written as, the first is left out of a plan, and nothing else is read.
func TestStateFormats(t *testing.T) {
	for _, f := range StateFormats() {
		text, err := json.Marshal(&Plan{State: f})
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(text)
		if err != nil || back.State != f {
			t.Errorf("%v: %v, %v", f, back, err)
		}
		var keys map[string]any
		if err := json.Unmarshal(text, &keys); err != nil {
			t.Fatal(err)
		}
		if name, there := keys["optimizer_state"]; there == (f == FP32State) || there && name != f.String() {
			t.Errorf("%v is written as %v", f, name)
		}
	}
	var f StateFormat
	for _, name := range []string{"", "auto", "fp16", "BF16"} {
		if err := f.UnmarshalText([]byte(name)); err == nil {
			t.Errorf("%q is read as %v", name, f)
		}
	}
}
