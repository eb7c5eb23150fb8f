//go:build linux

package cuda

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
)

// For the package's external tests, which may use packages built on it.
var (
	Machine    = machine
	Compiled   = compiled
	Hollow     = hollow
	OnGPU      = onGPU
	RandomBF16 = randomBF16
)

// CasesOf is casesOf.
func CasesOf[T any](cases []T, usual int) []T { return casesOf(cases, usual) }

// Maker is Machine or Compiled.
type Maker = maker

// HollowRanks are joined devices on the given hosts whose kernels do nothing.
func HollowRanks(t *testing.T, hosts []int, o Options) (list []device.Device) {
	idle := func(*testing.T, *fake.GPU, bool) kernels.Compiler { return fake.Compiler{} }
	for _, d := range ranksAcross(t, idle, hosts, len(hosts), fabricsOn(t, hosts, slotBytes), o, true) {
		list = append(list, d)
	}
	return list
}

// CardOf is a device's number of SMs and its compute capability.
func CardOf(d *Device) (sms, major int) { return d.chip.sms, d.chip.major }

// Pretend has a device choose kernels as if it were another card; one without SMs leaves gradients of
// weights to the library.
func Pretend(d *Device, sms, major int) { d.chip.sms, d.chip.major = sms, major }

// Relayed reports whether blocks continue each other's sums of an m x n gradient.
func Relayed(d *Device, m, n, tokens int) bool {
	_, way, _ := d.target().sumTile(tokens, extent{m, n})
	return way.roles > 1
}

// Apart keeps blocks from continuing each other's sums.
func Apart(d *Device, on bool) { d.apart = on }

// Stale gives a device without a host arena one full of NaNs of all types, as Pinned may keep from an
// earlier device.
func Stale(t *testing.T, d *Device) {
	t.Helper()
	p := &Pinned{}
	a, err := p.reserve(d.driver, d.work.device, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range a.Bytes() {
		a.Bytes()[i] = 0xff
	}
	d.arenas.pinned = p
}

// Beside returns another device with the libraries of d.
func Beside(t *testing.T, d *Device, o Options) *Device {
	t.Helper()
	return opened(t, d.lib, o, nil)
}

// Ranks returns joined devices.
func Ranks(t *testing.T, n int, o Options) (list []device.Device) {
	for _, d := range ranks(t, n, o, true) {
		list = append(list, d)
	}
	return list
}

// RanksOn returns joined devices on the given hosts.
func RanksOn(t *testing.T, hosts []int, o Options) (list []device.Device) {
	t.Helper()
	for _, d := range ranksAcross(t, asText, hosts, len(hosts), fabricsOn(t, hosts, smallSlot), o, true) {
		list = append(list, d)
	}
	return list
}

// WiredRanks returns joined devices on the given hosts whose bytes between hosts go over a fake NCCL that must find no fault
// in the end, and how often it has moved some.
func WiredRanks(t *testing.T, hosts []int) (list []device.Device, moves func() int) {
	t.Helper()
	c := fake.NewCluster()
	for _, d := range wiredRanks(t, c, hosts, true, 0) {
		list = append(list, d)
	}
	return list, func() int {
		m := c.Moves()
		return m[0] + m[1]
	}
}
