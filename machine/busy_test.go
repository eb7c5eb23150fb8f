package machine

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
)

// TestBusyHour: timings taken while other work has a part of the cores are not kept for later runs, and it is said; others
// are kept.
func TestBusyHour(t *testing.T) {
	for pace, kept := range map[float64]bool{1: true, 0.9: true, 0.5: false} {
		h := &hardware.Hardware{Name: "here", Links: []hardware.Link{{From: device.DiskTier, To: device.HostTier, Bandwidth: 1}}}
		m := &Machine{Hardware: h, file: filepath.Join(t.TempDir(), "hardware.json")}
		m.Learn(nil, pace)
		if _, err := os.Stat(m.file); (err == nil) != kept {
			t.Errorf("at a pace of %v: kept, %v, is not %v", pace, err == nil, kept)
		}
		if said := m.Busy(); (said == "") != kept || !kept && !strings.Contains(said, "50 %") {
			t.Errorf("at a pace of %v it says %q", pace, said)
		}
	}
	if m := (&Machine{Hardware: new(hardware.Hardware)}); m.Pace() != 1 || m.Busy() != "" {
		t.Errorf("what was not timed has the pace %v, %s", m.Pace(), m.Busy())
	}
	m := &Machine{Hardware: new(hardware.Hardware)}
	m.Learn([]hardware.Measurement{{Seconds: 1, Whole: 1.5, Runs: 2}, {Seconds: 1, Whole: 2, Runs: 2}}, 0.4)
	if timed, now := m.Paces(); math.Abs(timed-0.7) > 1e-12 || now != 1 {
		t.Errorf("times of which 3/7 is clipped have the paces %v and %v", timed, now)
	}
}
