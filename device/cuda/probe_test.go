//go:build linux

package cuda_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestProbe: all calls that measure a machine can be prepared and run here. On the fake, whose kernels
// only pass the time, the rates mean nothing.
func TestProbe(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	fresh := func() device.Device {
		o := cuda.Options{DiskPath: filepath.Join(t.TempDir(), "disk")}
		if cuda.OnGPU() {
			d, _ := cuda.Machine(t, o)
			return d
		}
		d, g := cuda.Hollow(t, o)
		g.Kernel = func([]byte, string, [3]uint32, [3]uint32, uint32, []byte) error {
			time.Sleep(100 * time.Microsecond)
			return nil
		}
		return d
	}
	h, err := hardware.Probe(fresh(), hardware.Memory{Device: hardware.ProbeBytes, Host: hardware.ProbeBytes, Disk: hardware.ProbeBytes})
	check(t, err)
	check(t, hardware.ProbeContention(fresh(), h))
	if cuda.OnGPU() {
		check(t, h.Print(t.Output()))
	}
}
