//go:build linux

package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestTransfers: bytes written to arenas are read back, in pieces of all sizes, and their neighbours
// stay as they are.
func TestTransfers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const size = 7*bounceBytes + 12345
	d, g := bare(t, Options{}, size, size)
	r := rand.New(rand.NewPCG(1, 1))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for _, tier := range []device.Tier{device.DeviceTier, device.HostTier} {
		image := random(size)
		check := func(what string) {
			t.Helper()
			got := make([]byte, size)
			if err := d.Read(tier, 0, got); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, image) {
				t.Fatalf("%s, %s: other bytes", tier, what)
			}
		}
		if err := d.Write(tier, 0, image); err != nil {
			t.Fatal(err)
		}
		check("all")
		for _, n := range []int{1, largeBytes - 1, largeBytes, largeBytes + 1, bounceBytes, bounceBytes + 1, 2 * bounceBytes, 3*bounceBytes + 77} {
			at := r.IntN(size - n)
			p := random(n)
			copy(image[at:], p)
			if err := d.Write(tier, int64(at), p); err != nil {
				t.Fatal(err)
			}
			check(fmt.Sprint(n, " bytes written"))
			if err := d.Read(tier, int64(at), p); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p, image[at:][:n]) {
				t.Fatalf("%s: %d other bytes", tier, n)
			}
		}
		if d.Write(tier, size-largeBytes+1, make([]byte, largeBytes)) == nil || d.Read(tier, -1, make([]byte, largeBytes)) == nil {
			t.Error("transfers beyond the arena are accepted")
		}
	}
	for _, tier := range []device.Tier{device.DeviceTier, device.HostTier} {
		for _, n := range []int{0, 1, 100, taskBytes - 1, taskBytes, 3*bounceBytes + 77} {
			image := random(size)
			at := r.IntN(size - n)
			if err := d.Write(tier, 0, image); err != nil {
				t.Fatal(err)
			}
			clear(image[at:][:n])
			if err := d.Clear(tier, int64(at), int64(n)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, size)
			if err := d.Read(tier, 0, got); err != nil || !bytes.Equal(got, image) {
				t.Fatalf("%s: %v, or other bytes after %d at %d were cleared", tier, err, n, at)
			}
		}
		for _, bad := range [][2]int64{{-1, 1}, {0, -1}, {1, size}, {size + 1, 0}} {
			if d.Clear(tier, bad[0], bad[1]) == nil {
				t.Errorf("%s: %d bytes at %d were cleared", tier, bad[1], bad[0])
			}
		}
	}
	p := make([]byte, 3*bounceBytes)
	if g != nil { // the fake's procedures allocate, a driver's do not
		idle := func(...uintptr) int32 { return 0 }
		d.driver.StreamSynchronize, d.driver.MemcpyAsync = idle, idle
	}
	if n := testing.AllocsPerRun(5, func() {
		if err := d.Write(device.DeviceTier, 0, p); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations per write", n)
	}
}

// TestTransferFails: an error of the driver is returned by the transfer, and a later transfer works.
func TestTransferFails(t *testing.T) {
	const size = 5 * bounceBytes
	d, g := hollow(t, Options{}, size)
	image := bytes.Repeat([]byte{1, 2, 3, 4, 5}, size/5)
	for _, proc := range []string{"MemHostRegister", "MemcpyAsync", "StreamSynchronize"} {
		for _, access := range []func(device.Tier, int64, []byte) error{d.Write, d.Read} {
			g.Break(proc, 1)
			if err := access(device.DeviceTier, 0, slices.Clone(image)); proc != "MemHostRegister" && (err == nil || !strings.Contains(err.Error(), "cu"+proc)) {
				t.Errorf("%s: %v", proc, err)
			}
			g.Break(proc, 0)
			got := make([]byte, size)
			if err := d.Write(device.DeviceTier, 0, image); err != nil {
				t.Fatal(err)
			}
			if err := d.Read(device.DeviceTier, 0, got); err != nil || !bytes.Equal(got, image) {
				t.Fatalf("after %s: %v, or other bytes", proc, err)
			}
		}
	}
}
