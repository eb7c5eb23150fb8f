package hardware

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
)

// TestLayouts: the divisions of an A100 are the 12 to which nothing can be added, of 37 in all; what rules for placement
// forbid, although it would fit by numbers, is not among them.
func TestLayouts(t *testing.T) {
	var got []string
	for _, l := range Layouts("a100-40") {
		got = append(got, strings.Join(l, " "))
	}
	slices.Sort(got)
	want := []string{
		"7g.40gb", "4g.20gb 3g.20gb", "3g.20gb 3g.20gb", "4g.20gb 2g.10gb 1g.5gb", "3g.20gb 2g.10gb 2g.10gb", "4g.20gb 1g.5gb 1g.5gb 1g.5gb",
		"3g.20gb 2g.10gb 1g.5gb 1g.5gb", "2g.10gb 2g.10gb 2g.10gb 1g.5gb", "3g.20gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb", "2g.10gb 2g.10gb 1g.5gb 1g.5gb 1g.5gb",
		"2g.10gb" + strings.Repeat(" 1g.5gb", 5), "1g.5gb" + strings.Repeat(" 1g.5gb", 6),
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("layouts %q\nwant %q", got, want)
	}
	for card, n := range map[string]int{"a30": 4, "rtx4090": 0, "a100-80": 12, "nothing": 0} {
		if list := Layouts(card); len(list) != n {
			t.Errorf("%s: %d layouts %v", card, len(list), list)
		}
	}
	for _, d := range divided { // each is complete, and its parts are no more than the card
		for _, l := range Layouts(d.gpu) {
			compute, memory := 0.0, 0.0
			for _, name := range l {
				in := instanceOf(d.gpu, name)
				compute, memory = compute+in.Compute, memory+in.Memory
			}
			if compute > 1+1e-9 || memory > 1 {
				t.Errorf("%s: %v has %v of the processors and %v of the memory", d.gpu, l, compute, memory)
			}
		}
	}
}

// TestInstance: an instance is a machine with its shares of the card, under the name that people write and the driver's.
func TestInstance(t *testing.T) {
	whole, err := KnownRank("a100-40", 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]float64{"1g.5gb": {14. / 108, 1. / 8}, "3g.20gb": {42. / 108, 0.5}, "7g.40gb": {98. / 108, 1}} {
		h, err := KnownRank("A100-40GB/"+name, 1)
		if err != nil {
			t.Fatal(err)
		}
		e, all := h.Engine(device.Compute), whole.Engine(device.Compute)
		if math.Abs(e.Peak.BF16/all.Peak.BF16-want[0]) > 1e-12 || math.Abs(e.Bandwidth/all.Bandwidth-want[1]) > 1e-12 {
			t.Errorf("%s: %v and %v of the card", name, e.Peak.BF16/all.Peak.BF16, e.Bandwidth/all.Bandwidth)
		}
		if got, want := h.Memory.Device+ContextBytes, int64(want[1]*40*gib); got != want {
			t.Errorf("%s: %d bytes, want %d", name, got, want)
		}
		if n := nominal("NVIDIA A100-SXM4-40GB MIG " + name).BF16; math.Abs(n/312e12-want[0]) > 1e-12 {
			t.Errorf("the driver's name of %s: %v", name, n)
		}
	}
	if h, err := KnownRank("rtx4090/25%", 1); err != nil || h.Memory.Device+ContextBytes != 6*gib || math.Abs(h.Engine(device.Compute).Peak.F32-82.6e12/4) > 1 {
		t.Errorf("a quarter: %+v, %v", h, err)
	}
	if h, err := KnownRank("a100-40/pcie3/2g.10gb", 1); err != nil || h.Link(device.HostTier, device.DeviceTier).Bandwidth != 12.3e9 {
		t.Errorf("%v", err)
	}
	for name, n := range map[string]int{"a100-40/3g.40gb": 1, "rtx4090/1g.5gb": 1, "a100-40/3g.20gb": 2, "a100-40/0%": 1, "a100-40/101%": 1, "a100-40/x%": 1, "a100-40/NaN%": 1} {
		if _, err := KnownRank(name, n); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s for %d ranks: %v", name, n, err)
		}
	}
	for card, names := range map[string]string{"h200": "1g.35gb 1g.18gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb", "b200": "1g.45gb 1g.23gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb", "h100-nvl": "1g.24gb 1g.12gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb", "a30": "1g.6gb 2g.12gb 4g.24gb"} {
		var got []string
		for _, in := range Instances(card) {
			got = append(got, in.Name)
		}
		if fmt.Sprint(got) != "["+names+"]" {
			t.Errorf("%s: %v, want %s", card, got, names)
		}
	}
}
