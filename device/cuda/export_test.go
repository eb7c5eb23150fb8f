//go:build linux

package cuda

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
)

// For tests in the package's outside, which may use what is built on it.
var (
	Machine    = machine
	Compiled   = compiled
	Hollow     = hollow
	OnGPU      = onGPU
	RandomBF16 = randomBF16
)

// Maker is Machine or Compiled.
type Maker = maker

// Pretend has a device decide about gradients of weights as for another card; one without
// SMs leaves them to the library.
func Pretend(d *Device, sms, major int) { d.limits.sms, d.limits.major = sms, major }

// Ranks gives joined devices.
func Ranks(t *testing.T, n int, o Options) (list []device.Device) {
	for _, d := range ranks(t, n, o, true) {
		list = append(list, d)
	}
	return list
}
