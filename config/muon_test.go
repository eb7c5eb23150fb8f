package config

import (
	"strings"
	"testing"
)

// TestMuon: Muon's constants are read, written and refused with another optimizer; what it cannot do is refused by name.
func TestMuon(t *testing.T) {
	c, err := Parse("a.yaml", []byte(good+"optimizer: muon\nmuon: {learning_rate: 0.02, scale: original}\n"), nil)
	if err != nil || c.Muon != (Muon{LearningRate: 0.02, Momentum: 0.95, Scale: "original"}) {
		t.Fatalf("%+v, %v", c.Muon, err)
	}
	for text, want := range map[string]string{
		"muon: {momentum: 0.9}\n":                        "the optimizer is adamw; hint: set optimizer: muon",
		"optimizer: muon\nmuon: {momentum: 1}\n":         "muon.momentum: 1 is out of range; hint:",
		"optimizer: muon\nmuon: {learning_rate: 0}\n":    "muon.learning_rate: 0 is out of range; hint:",
		"optimizer: muon\nmuon: {learning_rate: .nan}\n": "muon.learning_rate: NaN is out of range; hint:",
		"optimizer: muon\nmuon: {scale: orignal}\n":      `muon.scale: "orignal" is not one of match_rms_adamw, original; hint: did you mean original?`,
		"optimizer: muon\nplan: {update: host}\n":        "plan.update: muon updates matrices on the device",
	} {
		if _, err := Parse("a.yaml", []byte(good+text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestPackedMoments: moments in 8 bits are for optimizers that update element by element, and what they are not built for is refused
// by name.
func TestPackedMoments(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"optimizer: lion\n":             "",
		"optimizer: muon\n":             "optimizer_state: muon updates whole matrices",
		"optimizer: sgd\n":              "",
		"precision: int8\n":             "",
		"tie_layers: 2\n":               "",
		"tie_layers: 2\ndelink_at: 5\n": "optimizer_state: moments in 8 bits cannot be divided",
		"ranks: 2\nplan: {tensor: 2}\n": "optimizer_state: blocks of moments in 8 bits would be other blocks in a part of a matrix",
	} {
		_, err := Parse("a.yaml", []byte(good+"optimizer_state: 8bit_moments\n"+text), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: use bf16_moments")) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
