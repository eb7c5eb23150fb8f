package machine

import (
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device/cuda"
)

// TestChooseDevice: where no GPU is visible, auto is the CPU, without a note; an explicit device is kept.
func TestChooseDevice(t *testing.T) {
	for asked, want := range map[string]string{"auto": "cpu", "cpu": "cpu", "cuda": "cuda"} {
		if got := ChooseDevice(asked, func(text string) { t.Errorf("noted %q", text) }); got != want {
			t.Errorf("%s stands for %s, want %s", asked, got, want)
		}
	}
}

// TestChosenDevice: a GPU that cannot be used is not passed over in silence, nor is a driver that does not answer.
func TestChosenDevice(t *testing.T) {
	card := []cuda.Card{{Name: "NVIDIA H200"}}
	for want, found := range map[string]cuda.Found{
		"":                {OK: true, Cards: card},
		"an old compiler": {OK: true, Cards: card, Slow: "an old compiler"},
		"computing on the CPU, not on NVIDIA H200: no NVRTC":            {Cards: card, Missing: []string{"no NVRTC"}},
		"computing on the CPU, not on a GPU: the driver did not answer": {Lost: true, Missing: []string{"the driver did not answer"}},
	} {
		said := ""
		if got := chosenDevice(&found, func(text string) { said += text }); (got == "cuda") != found.OK || said != want {
			t.Errorf("%+v: %s, %q", found, got, said)
		}
	}
	said := ""
	if got := chosenDevice(&cuda.Found{Missing: []string{"no device"}}, func(text string) { said += text }); got != "cpu" || said != "" {
		t.Errorf("a driver without a GPU: %s, %q", got, said)
	}
}

// TestCountRanks: ranks that are left open are one, or one for each host; others are kept.
func TestCountRanks(t *testing.T) {
	for _, c := range []struct {
		Request
		want int
	}{
		{Request{Device: "cpu", Ranks: config.AutoRanks}, 1},
		{Request{Device: "cpu", Ranks: config.AutoRanks, Hosts: []string{"a:1", "b:1"}}, 3},
		{Request{Device: "cpu", Ranks: 4}, 4},
		{Request{Device: "cuda", Ranks: config.AutoRanks, Hardware: config.Hardware{Name: "h100"}}, 1},
	} {
		if got, err := CountRanks(&c.Request); err != nil || got != c.want {
			t.Errorf("%+v: %d ranks, %v", c.Request, got, err)
		}
	}
}

// TestRanksFor: as many ranks as the batch can be divided among, at least one.
func TestRanksFor(t *testing.T) {
	for _, c := range []struct{ gpus, batch, want int }{{0, 8, 1}, {1, 8, 1}, {4, 8, 4}, {6, 8, 4}, {8, 12, 6}, {8, 7, 7}, {4, 1, 1}, {1000, 1 << 20, MaxRanks}} {
		if got := ranksFor(c.gpus, c.batch); got != c.want {
			t.Errorf("%d GPUs, batch of %d: %d ranks, want %d", c.gpus, c.batch, got, c.want)
		}
	}
}

// TestSpreadRanks: hosts get ranks as equally as their room allows, all ranks and at least one each, or it is refused.
func TestSpreadRanks(t *testing.T) {
	for _, c := range []struct {
		ranks      int
		room, want []int
	}{
		{6, []int{6, 6}, []int{3, 3}}, {6, []int{4, 2}, []int{4, 2}}, {5, []int{4, 4}, []int{3, 2}}, {8, []int{1, 8, 3}, []int{1, 4, 3}},
		{7, []int{4, 2}, nil}, {1, []int{4, 2}, nil},
	} {
		if got := spreadRanks(c.ranks, c.room); !slices.Equal(got, c.want) {
			t.Errorf("%d ranks on hosts with room for %v: %v, want %v", c.ranks, c.room, got, c.want)
		}
	}
}
