package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/search"
)

// written is the file of a machine's description.
func written(t *testing.T, path string, h *hardware.Hardware) string {
	t.Helper()
	f, err := os.Create(path)
	check(t, err)
	check(t, h.Print(f))
	check(t, f.Close())
	return path
}

// thrifty is how much slower a plan may be for using links less.
const thrifty = 1.005

// TestWhatIfs: what --explain says of another machine is what plan says there, and
// never worse than the present plan.
func TestWhatIfs(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	h, err := hardware.KnownRank("l4", 1)
	check(t, err)
	name := "hardware.name=" + written(t, filepath.Join(dir, "l4.json"), h)
	// The rows that no limit can express, as machines of their own.
	others := map[string]string{}
	for change, streams := range map[string][]device.Stream{
		"twice the rate between host and device": {device.HostToDev, device.DevToHost},
		"twice the disk's rate":                  {device.DiskRead, device.DiskWrite},
		"twice the rate between ranks":           {device.Collective, device.Send, device.Recv},
	} {
		path := written(t, filepath.Join(dir, strings.ReplaceAll(change, " ", "-")+".json"), h.Quicker(2, streams...))
		others[change] = "hardware.name=" + path
	}
	for _, c := range testkit.Sample([]struct {
		args  string
		wants []string // changes that have to be there
	}{
		{"limits.device=200KiB", []string{"+50.0 KiB of device memory", "twice the rate between host and device"}},
		{"", []string{"+1.0 GiB of device memory"}},
		{"limits.device=250KiB limits.host=450KiB plan.micro_batch=1 plan.recompute=full", []string{"twice the host memory", "twice the disk's rate", "moments in bf16"}},
		{"limits.device=250KiB ranks=2 plan.pipeline=2 plan.schedule=1f1b", []string{"twice the rate between ranks"}},
	}, 1, 1) {
		args := append([]string{"plan", file, "--json", name}, strings.Fields(c.args)...)
		var now search.Report
		call(append(args, "--explain")...).must(t, 0).into(t, &now)
		if strings.HasPrefix(c.args, "limits.device=200KiB") && now.WhatIfs[0].Set != fmt.Sprint("limits.device=", 250<<10) {
			t.Errorf("a quarter more than 200 KiB: %q", now.WhatIfs[0].Set)
		}
		seen := map[string]bool{}
		for _, w := range now.WhatIfs {
			seen[w.Change] = true
			if w.Brings == "" || w.Price == "" && (w.Seconds > now.Seconds || w.Seconds <= 0) {
				t.Errorf("%s: with %s %v s, now %v s (%s)", c.args, w.Change, w.Seconds, now.Seconds, w.Brings)
			}
			if w.Seconds == 0 {
				if !strings.Contains(w.Brings, "does not fit") && !strings.Contains(w.Brings, "not with the decisions") {
					t.Errorf("%s: %s has no answer: %s", c.args, w.Change, w.Brings)
				}
				continue
			}
			change := strings.Fields(w.Set)
			if w.Set == "" {
				change = []string{others[w.Change]}
			}
			on := append(args, change...)
			if strings.Contains(w.Set, "limits.device") && !strings.Contains(c.args, "limits.device") {
				continue // more than there is, which no limit can express
			}
			var there search.Report
			call(on...).must(t, 0).into(t, &there)
			// Where the plan stays what it is, a search that does not know it may end in another local optimum. Of what was
			// only sketched, a bound is said.
			kept := w.Brings == "the same plan"
			if there.Seconds != w.Seconds && !(kept && there.Seconds > w.Seconds && there.Seconds < 1.02*w.Seconds) && !(w.AtMost && there.Seconds < thrifty*w.Seconds) {
				t.Errorf("%s: with %s %v s, but plan says %v s (%s)", c.args, w.Change, w.Seconds, there.Seconds, w.Brings)
			}
		}
		for _, want := range c.wants {
			if !seen[want] {
				t.Errorf("%s: nothing is said of %q: %v", c.args, want, now.WhatIfs)
			}
		}
	}
}

// TestWhatIfText: a row has its time, its gain and its keys; what does not fit says so instead.
func TestWhatIfText(t *testing.T) {
	list := []search.WhatIf{
		{Change: "+50.0 KiB of device memory", Set: "limits.device=256000", Seconds: 2, TokenRate: 512, Gain: -0.5, Brings: "the same plan"},
		{Change: "bf16", Set: "precision=bf16", Price: "computed in bf16", Seconds: 4.5, AtMost: true, TokenRate: 228, Gain: 0.125, Brings: "a plan"},
		{Change: "state in bf16", Set: "optimizer_state=bf16", Price: "rounded", Brings: "does not fit: it needs 3 GiB"},
	}
	want := `               2 s   -50.0 %        512 tokens/s  +50.0 KiB of device memory (limits.device=256000): the same plan
     at most 4.5 s   +12.5 %        228 tokens/s  precision=bf16: other results, computed in bf16
                 -                                optimizer_state=bf16: does not fit: it needs 3 GiB
`
	if got := whatIfText(list, true); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

// TestRemedies: where nothing fits, it is said what would: the plan with those overrides takes at most that time.
func TestRemedies(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	for _, short := range testkit.Sample([]string{"limits.device=30KiB", "limits.device=100KiB limits.host=3KiB limits.disk=none", "ranks=2 limits.device=20KiB plan.pipeline=2 plan.schedule=1f1b"}, 1, 1) {
		args := append([]string{"plan", file, "--json", "hardware.name=l4"}, strings.Fields(short)...)
		var now search.Report
		call(append(args, "--explain")...).must(t, 3, "does not fit", "hint:").into(t, &now)
		fit := 0
		for _, w := range now.WhatIfs {
			on := append(args, strings.Fields(w.Set)...)
			if w.Seconds == 0 {
				call(on...).must(t, 3)
				continue
			}
			fit++
			var there search.Report
			call(on...).must(t, 0).into(t, &there)
			if there.Seconds > thrifty*w.Seconds {
				t.Errorf("%s: with %s at most %v s, but plan says %v s", short, w.Change, w.Seconds, there.Seconds)
			}
		}
		if fit == 0 {
			t.Errorf("%s: nothing that would fit is named: %v", short, now.WhatIfs)
		}
	}
}

// TestUtilisation: of a GPU, the plan gives the share of the peak that its maker states and that of what products reach.
func TestUtilisation(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	out := call("plan", file, "hardware.name=h100", "precision=bf16").must(t, 0).stdout
	if !regexp.MustCompile(`MFU [0-9.]+ % of 98[0-9] TFLOP/s, [0-9.]+ % of the [0-9]+ TFLOP/s that products reach`).MatchString(strings.Join(strings.Fields(out), " ")) {
		t.Error(out)
	}
}
