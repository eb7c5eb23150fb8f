package exec_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/null"
)

// slowDevice completes nothing for a long time, but makes progress every now and then.
type slowDevice struct {
	*null.Device
	every, whole time.Duration
	pieces       atomic.Uint64
}

func (d *slowDevice) Done(int) bool    { return false }
func (d *slowDevice) Progress() uint64 { return d.pieces.Load() }

func (d *slowDevice) Sync() error {
	for start := time.Now(); time.Since(start) < d.whole; d.pieces.Add(1) {
		time.Sleep(d.every)
	}
	return d.Device.Sync()
}

// TestPatience: with the patience that runs have, a rank that hangs is noticed
// within ten seconds, and one that is merely slow not even in an hour: one
// instruction that makes progress is enough, on any rank. (The clock is the test's own.)
func TestPatience(t *testing.T) {
	for name, c := range map[string]struct {
		every []time.Duration // by rank
		hangs bool
	}{
		"one hangs":   {[]time.Duration{time.Hour}, true},
		"one is slow": {[]time.Duration{8 * time.Second}, false},
		"all hang":    {[]time.Duration{time.Hour, time.Hour}, true},
		// What a rank sees of the others is up to two looks (of 10/9 s) old.
		"slow in turn": {[]time.Duration{15 * time.Second, 6 * time.Second}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const whole = time.Hour
				programs := pair()[:len(c.every)]
				for _, p := range programs {
					p.Instrs = p.Instrs[:1]
				}
				devices := make([]*slowDevice, len(c.every))
				open := onNull(t, len(c.every), func(int) null.Cost { return func(*device.Call) float64 { return 1 } })
				g, _ := newGroup(t, programs, func(rank int) device.Device {
					devices[rank] = &slowDevice{Device: open(rank).(*null.Device), every: c.every[rank], whole: whole}
					return devices[rank]
				})
				start := time.Now()
				_, err := g.Step(t.Context())
				switch took := time.Since(start); {
				case c.hangs && (err == nil || took > 10*time.Second || took < 8*time.Second || !strings.Contains(err.Error(), "no progress")):
					t.Errorf("after %v: %v", took, err)
				case !c.hangs && (err != nil || took < whole):
					t.Errorf("ended after %v: %v", took, err)
				}
				time.Sleep(3 * whole) // the hanging ones come back
			})
		})
	}
}
