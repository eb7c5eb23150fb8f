//go:build linux

package cuda

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
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

// HollowRanks are joined devices whose kernels do nothing.
func HollowRanks(t *testing.T, n int, o Options) (list []device.Device) {
	idle := func(*testing.T, *fake.GPU, bool) kernels.Compiler { return fake.Compiler{} }
	for _, d := range ranksOn(t, idle, n, n, o, true) {
		list = append(list, d)
	}
	return list
}

// CardOf is a device's number of SMs and its compute capability.
func CardOf(d *Device) (sms, major int) { return d.limits.sms, d.limits.major }

// Pretend has a device choose kernels as for another card; one without SMs leaves
// gradients of weights to the library.
func Pretend(d *Device, sms, major int) { d.limits.sms, d.limits.major = sms, major }

// Ranks gives joined devices.
func Ranks(t *testing.T, n int, o Options) (list []device.Device) {
	for _, d := range ranks(t, n, o, true) {
		list = append(list, d)
	}
	return list
}

// Force has gradients of weights summed in one way. EXPERIMENT
func Force(d *Device, f *Forced) { d.forced = f }

// Bare has untimed calls end without an event. EXPERIMENT
func Bare(d *Device) { d.bare = true }

// Warm compiles the kernels for a call in some ways in parallel. EXPERIMENT
func Warm(d *Device, c device.Call, ways []*Forced) error {
	var works [][]work
	for _, f := range ways {
		t := d.target()
		t.forced = f
		w, err := t.build(&c)
		if err != nil {
			return err
		}
		works = append(works, w)
	}
	_, err := d.compile(works)
	return err
}
