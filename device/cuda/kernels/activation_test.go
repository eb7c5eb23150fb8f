package kernels

import (
	"fmt"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/model"
)

// TestActivations: there is a function for each activation, and no number stands for all others.
func TestActivations(t *testing.T) {
	source, err := Unit{File: "act"}.Source()
	if err != nil {
		t.Fatal(err)
	}
	for a := range model.NumActivations {
		if !strings.Contains(source, fmt.Sprintf("if ACT == %d", a)) { // #if or #elif
			t.Errorf("activation.cuh has no function for %v; hint: add #elif ACT == %d", a, a)
		}
	}
	if !strings.Contains(source, "#error") {
		t.Error("activation.cuh computes something for unknown numbers")
	}
}
