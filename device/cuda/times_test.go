//go:build linux

package cuda

import (
	"runtime"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestClock: without the clock a round leaves spans as they are and asks the driver for no time stamps;
// with it on again, spans are those of the round.
func TestClock(t *testing.T) {
	d, g := bare(t, Options{}, 1<<12, 1<<12)
	spans := make([]device.Span, 2)
	n, err := d.Prepare([]device.Call{copyCall(device.HostToDev, word(device.DeviceTier, 0), word(device.HostTier, 0)),
		copyCall(device.Compute, word(device.DeviceTier, 128), word(device.DeviceTier, 64))}, spans)
	if err != nil {
		t.Fatal(err)
	}
	was := device.Span{Start: -2, End: -1}
	for round, on := range []bool{true, false, true} {
		d.SetClock(on)
		spans[0], spans[1] = was, was
		before := d.Stats().Issued
		for i := range spans {
			d.Launch(n + i)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		for i, s := range spans {
			if on == (s == was) {
				t.Errorf("round %d, clock %v: call %d ran %v", round, on, i, s)
			}
		}
		if issued := d.Stats().Issued - before; g != nil && !on && issued != 2*2+2 { // each call and its event, two streams to wait for
			t.Errorf("round %d: %d calls of the driver", round, issued)
		}
	}
}

// TestTimes: a round's first moment, from which calls are timed, is recorded on a stream that they need
// not use. It is waited for too: otherwise whoever takes the least of several times would believe a
// copy that took no time.
func TestTimes(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	d, _ := bare(t, Options{}, 1<<12, 1<<12)
	spans := make([]device.Span, 1)
	n, err := d.Prepare([]device.Call{copyCall(device.HostToDev, word(device.DeviceTier, 0), word(device.HostTier, 0))}, spans)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2000 {
		d.Launch(n)
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		if s := spans[0]; s.Start == 0 || s.End == 0 || s.End < s.Start {
			t.Fatalf("round %d: the copy ran %v", round, s)
		}
	}
}

// TestStarts: a call whose stream was idle begins when it is launched, not when the
// stream's last one ended.
func TestStarts(t *testing.T) {
	const pause = 20 * time.Millisecond
	d, _ := bare(t, Options{}, 1<<12, 1<<12)
	spans := make([]device.Span, 3)
	n, err := d.Prepare([]device.Call{
		copyCall(device.HostToDev, word(device.DeviceTier, 0), word(device.HostTier, 0)),
		copyCall(device.Compute, word(device.DeviceTier, 128), word(device.DeviceTier, 64)),
		copyCall(device.HostToDev, word(device.DeviceTier, 192), word(device.HostTier, 64)),
	}, spans)
	if err != nil {
		t.Fatal(err)
	}
	for i := range spans {
		if i == 2 {
			for !d.Done(n) {
				runtime.Gosched()
			}
			time.Sleep(pause)
		}
		d.Launch(n + i)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if idle := spans[2].Start - spans[0].End; idle < pause.Seconds() {
		t.Errorf("the second copy began %v s after the first, want %v: %v", idle, pause, spans)
	}
}
