//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/graph"
)

// cut returns a Pinned that registers slices of this many bytes. It is closed after the devices that
// are opened later.
func cut(t *testing.T, slice int64) *Pinned {
	t.Helper()
	p := &Pinned{slice: slice}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestPinned: the host arena of one device becomes the next one's, whatever their sizes. Only what the
// two do not share is registered anew, and at all times exactly the arena is registered, to the byte.
func TestPinned(t *testing.T) {
	const slice = 1 << 20
	g := fake.New()
	lib := &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}
	p := &Pinned{slice: slice}
	var first uintptr
	before := map[uintptr]int{}
	for round, c := range []struct{ size, fresh int64 }{
		{4*slice + 100, 5}, {4*slice + 100, 0}, {4*slice + 200, 1}, {5 * slice, 1}, {7 * slice, 2}, {5 * slice, 0}, {2*slice + 4, 1}, {2 * slice, 0}, {100, 1}, {9 * slice, 9},
	} {
		d := opened(t, lib, Options{Pinned: p}, []int64{1 << 16, c.size})
		if first == 0 {
			first = d.arenas.base(device.HostTier)
		}
		if d.arenas.base(device.HostTier) != first || int64(len(d.arenas.host.Bytes())) != c.size {
			t.Errorf("round %d: %d bytes at %#x, want %d at %#x", round, len(d.arenas.host.Bytes()), d.arenas.base(device.HostTier), c.size, first)
		}
		now := g.Registered()
		want, fresh := map[uintptr]int{}, int64(0)
		for at := int64(0); at < c.size; at += slice {
			want[first+uintptr(at)] = int(min(slice, c.size-at))
		}
		for at, n := range now {
			if before[at] != n {
				fresh++
			}
		}
		if !maps.Equal(now, want) || fresh != c.fresh {
			t.Errorf("round %d: registered %v, want %v, of it %d anew, want %d", round, now, want, fresh, c.fresh)
		}
		carries(t, d, c.size)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if before = g.Registered(); !maps.Equal(now, before) {
			t.Errorf("round %d: closing the device unpins its arena", round)
		}
	}
	if g.Leaks() == nil {
		t.Error("the context is not retained")
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := g.Leaks(); err != nil {
			t.Error(err)
		}
		d := opened(t, lib, Options{Pinned: p}, []int64{1 << 16, slice}) // it can be used again
		carries(t, d, slice)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// carries checks that bytes at both ends of the host arena reach the GPU and come back.
func carries(t *testing.T, d *Device, size int64) {
	t.Helper()
	last := (size - 64) &^ 3
	n, err := d.Prepare([]device.Call{
		copyCall(device.HostToDev, word(device.DeviceTier, 0), word(device.HostTier, last)),
		copyCall(device.DevToHost, word(device.HostTier, 0), word(device.DeviceTier, 0)),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(fmt.Sprintf("%064d", size))
	if err := d.Write(device.HostTier, last, text); err != nil {
		t.Fatal(err)
	}
	d.Launch(n)
	d.Wait(device.DevToHost, n)
	d.Launch(n + 1)
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	if err := d.Read(device.HostTier, 0, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, text) {
		t.Errorf("%q arrived", got)
	}
}

// TestPinnedTwice: devices that are open together have arenas of their own, closed in any
// order, and the first one's is kept. Pinned memory cannot be closed under a device.
func TestPinnedTwice(t *testing.T) {
	for _, reverse := range []bool{false, true} {
		g := fake.New()
		lib := &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}
		p := &Pinned{slice: 4096}
		list := []*Device{
			opened(t, lib, Options{Pinned: p}, []int64{1 << 12, 1 << 14}),
			opened(t, lib, Options{Pinned: p}, []int64{1 << 12, 1 << 15}),
		}
		kept := list[0].arenas.base(device.HostTier)
		if kept == list[1].arenas.base(device.HostTier) {
			t.Error("two devices have one arena")
		}
		for _, d := range list {
			carries(t, d, int64(len(d.arenas.host.Bytes())))
		}
		if p.Close() == nil {
			t.Error("pinned memory was closed under a device")
		}
		for i := range list {
			if reverse {
				i = len(list) - 1 - i
			}
			if err := list[i].Close(); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(g.Registered()); n != 4 {
			t.Errorf("%d slices stay pinned", n)
		}
		d := opened(t, lib, Options{Pinned: p}, []int64{0, 1 << 13})
		if d.arenas.base(device.HostTier) != kept {
			t.Error("the arena is another one")
		}
		if err := errors.Join(d.Close(), p.Close(), g.Leaks()); err != nil {
			t.Error(err)
		}
	}
}

// TestPinnedFails: when the system does not allow all of an arena to be pinned, the error says how much
// was, nothing stays pinned, and the same device can reserve a smaller one, whatever was kept before.
func TestPinnedFails(t *testing.T) {
	const slice, fits = 4096, 5
	for _, had := range []int64{0, 2*slice + 8, fits*slice - 8, fits * slice} {
		g := fake.New()
		lib := &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}
		p := &Pinned{slice: slice}
		if had > 0 {
			if err := opened(t, lib, Options{Pinned: p}, []int64{0, had}).Close(); err != nil {
				t.Fatal(err)
			}
		}
		d := opened(t, lib, Options{Pinned: p}, nil)
		failsThenWorks(t, g, d, fits*slice, slice)
		if err := errors.Join(d.Close(), p.Close(), g.Leaks()); err != nil {
			t.Error(err)
		}
	}
	g := fake.New()
	d := opened(t, &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, Options{}, nil)
	d.arenas.pinned = &Pinned{slice: slice} // its own
	failsThenWorks(t, g, d, fits*slice, slice)
	if err := errors.Join(d.Close(), g.Leaks()); err != nil {
		t.Error(err)
	}
}

// failsThenWorks reserves a slice more than the fake's limit allows, then no more than that.
func failsThenWorks(t *testing.T, g *fake.GPU, d *Device, limit, slice int64) {
	t.Helper()
	g.Limit(limit)
	err := d.Reserve(device.HostTier, limit+slice)
	want := fmt.Sprintf("only %d of %d bytes of host memory could be pinned", limit, limit+slice)
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "ulimit -l") {
		t.Errorf("%v, want %s", err, want)
	}
	if n := len(g.Registered()); n != 0 {
		t.Errorf("%d slices stay pinned after an error", n)
	}
	if err := d.Reserve(device.HostTier, limit); err != nil {
		t.Fatal(err)
	}
}

// TestPinnedLost: a device that leaves a broken context takes the kept memory with it, and the next
// device works with a new context.
func TestPinnedLost(t *testing.T) {
	g := fake.New()
	fails := true
	g.Kernel = func([]byte, string, [3]uint32, [3]uint32, uint32, []byte) error {
		if fails {
			return errors.New("out of bounds")
		}
		return nil
	}
	lib := &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}
	p := &Pinned{slice: 4096}
	f := device.Operand{DType: graph.F32, Rows: 1, Cols: 8, Stride: 8}
	for range 2 {
		d := opened(t, lib, Options{Pinned: p}, []int64{1 << 12, 1 << 14})
		n, err := d.Prepare([]device.Call{{Op: graph.Add, Args: []device.Operand{f, f}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(n)
		if err = d.Sync(); (err != nil) != fails {
			t.Errorf("%v", err)
		}
		if err = d.Close(); (err != nil) != fails {
			t.Errorf("%v", err)
		}
		if kept := len(g.Registered()) > 0; kept == fails {
			t.Errorf("after failure %v memory stays pinned: %v", fails, kept)
		}
		fails = false
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestPinnedRanks: each of joined ranks has its own arena, kept for the next fabric.
func TestPinnedRanks(t *testing.T) {
	g := fake.New()
	g.Cards, g.Peers = 2, true
	lib := &Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}
	pins := []*Pinned{{slice: 4096}, {slice: 4096}}
	var first [2]uintptr
	for round, size := range []int64{1 << 14, 1 << 15, 1 << 13} {
		fabric := NewFabric(2)
		var list []*Device
		for r := range 2 {
			list = append(list, opened(t, lib, Options{Index: r, Rank: r, Fabric: fabric, Pinned: pins[r]}, []int64{1 << 12, size}))
			if round == 0 {
				first[r] = list[r].arenas.base(device.HostTier)
			}
			if list[r].arenas.base(device.HostTier) != first[r] {
				t.Errorf("round %d: rank %d has another arena", round, r)
			}
			carries(t, list[r], size)
		}
		for r := range list {
			if err := list[(r+round)%2].Close(); err != nil {
				t.Error(err)
			}
		}
	}
	// A rank may move to another GPU: memory is that one's then.
	d := opened(t, lib, Options{Index: 1, Pinned: pins[0]}, []int64{1 << 12, 1 << 13})
	carries(t, d, 1<<13)
	if err := errors.Join(d.Close(), pins[0].Close(), pins[1].Close(), g.Leaks()); err != nil {
		t.Error(err)
	}
}
