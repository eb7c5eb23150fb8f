package search

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestLimit: a limit gives each rank the bytes that it needs, and at most a megabyte in all besides.
func TestLimit(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		need, ranks := rapid.Int64Range(1, 1<<45).Draw(t, "need"), rapid.IntRange(1, 64).Draw(t, "ranks")
		if rapid.Bool().Draw(t, "whole") { // where rounding up adds nothing
			need = max(need/1e6, 1) * 1e6
		}
		for _, tier := range []device.Tier{device.DeviceTier, device.HostTier} {
			all := need
			if tier == device.HostTier {
				all *= int64(ranks)
			}
			text, found := strings.CutPrefix(Limit(tier, need, ranks), "limits."+tier.String()+"=")
			given, err := size.Parse(text)
			if err != nil || !found || given < all || given >= all+1e6 || all < 1e9 && given != all {
				t.Fatalf("%d bytes for %d ranks: %s, %v", need, ranks, text, err)
			}
		}
	})
}
