package main

import (
	stdctx "context"
	"fmt"
	"time"

	"github.com/athanor-llm/athanor/device/cuda"
)

// driverPatience bounds the wait for the GPU driver's answer.
const driverPatience = 20 * time.Second

// settle returns what device auto stands for: cuda if this machine has a GPU that can be used, else
// cpu. If there is a GPU that cannot be used, it says why. Other values are returned unchanged.
func (c *context) settle(device string) string {
	if device != "auto" {
		return device
	}
	if !cuda.Installed() { // so no child process has to look
		return "cpu"
	}
	return c.judge(cuda.Probe(stdctx.Background(), driverPatience))
}

// judge is settle, given what was found.
func (c *context) judge(found *cuda.Found) string {
	name := "a GPU"
	switch {
	case found.OK:
		if found.Slow != "" {
			fmt.Fprintln(c.stderr, "note:", found.Slow)
		}
		return "cuda"
	case len(found.Cards) > 0:
		name = found.Cards[0].Name
	case !found.Lost: // a driver without a GPU
		return "cpu"
	}
	if len(found.Missing) > 0 {
		fmt.Fprintf(c.stderr, "note: computing on the CPU, not on %s: %s\n", name, found.Missing[0])
	}
	return "cpu"
}
