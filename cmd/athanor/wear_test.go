package main

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestWear: what a plan says is written to the disk in a step is what the run's own counters say, to the byte, and that
// of a day follows from it; if the disk ends within a month, the first line says so.
func TestWear(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	var r struct {
		Seconds  float64 `json:"step_seconds"`
		Expected struct {
			Seconds float64 `json:"seconds"`
		} `json:"expected_step"`
		Wear struct {
			PerStep int64   `json:"bytes_per_step"`
			PerDay  int64   `json:"bytes_per_day"`
			Days    float64 `json:"days"`
		} `json:"disk_wear"`
		Bytes struct {
			Written []int64 `json:"disk_write"`
		} `json:"measured_bytes"`
	}
	call("train", file, spilled, "ranks=2", "limits.disk_endurance=600GB", "--json").must(t, 0).into(t, &r)
	if r.Expected.Seconds > 0 { // what is known best
		r.Seconds = r.Expected.Seconds
	}
	var written int64
	for _, n := range r.Bytes.Written {
		written += n
	}
	if len(r.Bytes.Written) != 2 || written == 0 || r.Wear.PerStep != written {
		t.Errorf("%d bytes a step are to be written, the ranks wrote %v", r.Wear.PerStep, r.Bytes.Written)
	}
	if want := int64(float64(written) * 86400 / r.Seconds); r.Wear.PerDay != want {
		t.Errorf("%d bytes a day, not %d", r.Wear.PerDay, want)
	}
	if want := 600e9 / (float64(written) * 86400 / r.Seconds); r.Wear.Days != want {
		t.Errorf("%v days, not %v", r.Wear.Days, want)
	}
	for endurance, warned := range map[string]bool{"1MB": true, "none": false} {
		text := call("plan", file, spilled, "limits.disk_endurance="+endurance).must(t, 0).stdout
		if strings.HasPrefix(text, "warning: ") != warned || strings.Contains(text, "its endurance lasts") != warned || !strings.Contains(text, "written to it a day") {
			t.Errorf("endurance %s:\n%s", endurance, text)
		}
	}
	l4 := []string{"plan", file, "hardware.name=l4", "limits.device=2GiB", "limits.disk_endurance=1MB"}
	if text := call(append(l4, spilled)...).must(t, 0).stdout; !strings.Contains(text, "hint: limits.disk=none") {
		t.Errorf("what the configuration puts on the disk has an alternative:\n%s", text)
	}
}
