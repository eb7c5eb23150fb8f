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
// cpu. If there is a GPU that cannot, it says why. Other values are returned unchanged.
func (c *context) settle(device string) string {
	if device != "auto" {
		return device
	}
	if !cuda.Installed() { // and no child has to look
		return "cpu"
	}
	found := cuda.Probe(stdctx.Background(), driverPatience)
	if found.OK {
		return "cuda"
	}
	if len(found.Cards) > 0 && len(found.Missing) > 0 {
		fmt.Fprintf(c.stderr, "note: the CPU computes and not %s: %s\n", found.Cards[0].Name, found.Missing[0])
	}
	return "cpu"
}
