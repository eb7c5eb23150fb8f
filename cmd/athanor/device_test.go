package main

import (
	"bytes"
	"testing"
)

// TestSettle: where no GPU is to be seen auto is the CPU, without a word; what is asked for stays.
func TestSettle(t *testing.T) {
	var said bytes.Buffer
	c := &context{stderr: &said}
	for asked, want := range map[string]string{"auto": "cpu", "cpu": "cpu", "cuda": "cuda"} {
		if got := c.settle(asked); got != want {
			t.Errorf("%s stands for %s, want %s", asked, got, want)
		}
	}
	if said.Len() > 0 {
		t.Errorf("said %q", said.String())
	}
}
