package cli

import (
	"bytes"
	"testing"

	"github.com/athanor-llm/athanor/device/cuda"
)

// TestSettle: where no GPU is visible, auto is the CPU, without a message; an explicit device is kept.
func TestSettle(t *testing.T) {
	var said bytes.Buffer
	c := &Context{Stderr: &said}
	for asked, want := range map[string]string{"auto": "cpu", "cpu": "cpu", "cuda": "cuda"} {
		if got := SettleDevice(c, asked); got != want {
			t.Errorf("%s stands for %s, want %s", asked, got, want)
		}
	}
	if said.Len() > 0 {
		t.Errorf("said %q", said.String())
	}
}

// TestJudge: a GPU that cannot be used is not passed over in silence, nor is a driver that does not answer.
func TestJudge(t *testing.T) {
	card := []cuda.Card{{Name: "NVIDIA H200"}}
	for said, found := range map[string]cuda.Found{
		"":                        {OK: true, Cards: card},
		"note: an old compiler\n": {OK: true, Cards: card, Slow: "an old compiler"},
		"note: computing on the CPU, not on NVIDIA H200: no NVRTC\n":            {Cards: card, Missing: []string{"no NVRTC"}},
		"note: computing on the CPU, not on a GPU: the driver did not answer\n": {Lost: true, Missing: []string{"the driver did not answer"}},
	} {
		var out bytes.Buffer
		c := &Context{Stderr: &out}
		if got := c.judge(&found); (got == "cuda") != found.OK || out.String() != said {
			t.Errorf("%+v: %s, %q", found, got, out.String())
		}
	}
	var out bytes.Buffer
	if got := (&Context{Stderr: &out}).judge(&cuda.Found{Missing: []string{"no device"}}); got != "cpu" || out.Len() > 0 {
		t.Errorf("a driver without a GPU: %s, %q", got, out.String())
	}
}
