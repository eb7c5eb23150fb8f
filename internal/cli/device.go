package cli

import (
	stdctx "context"
	"fmt"
	"time"

	"github.com/athanor-llm/athanor/device/cuda"
)

// DriverPatience bounds the wait for the GPU driver's answer.
const DriverPatience = 20 * time.Second

// SettleDevice returns what device auto stands for: cuda if this machine has a GPU that can be used, else
// cpu. If there is a GPU that cannot be used, it says why. Other values are returned unchanged.
func SettleDevice(c *Context, device string) string {
	if device != "auto" {
		return device
	}
	if !cuda.Installed() { // so no child process has to look
		return "cpu"
	}
	return c.judge(cuda.Probe(stdctx.Background(), DriverPatience))
}

// judge is SettleDevice, given what was found.
func (c *Context) judge(found *cuda.Found) string {
	name := "a GPU"
	switch {
	case found.OK:
		if found.Slow != "" {
			fmt.Fprintln(c.Stderr, "note:", found.Slow)
		}
		return "cuda"
	case len(found.Cards) > 0:
		name = found.Cards[0].Name
	case !found.Lost: // a driver without a GPU
		return "cpu"
	}
	if len(found.Missing) > 0 {
		fmt.Fprintf(c.Stderr, "note: computing on the CPU, not on %s: %s\n", name, found.Missing[0])
	}
	return "cpu"
}
