package hardware

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
)

// TestGPUs: every GPU has a source, a name of its own however it is written, tensor cores that are no slower than the plain
// units, and a bus and a host that exist; every name of the driver leads to a GPU.
func TestGPUs(t *testing.T) {
	seen := map[string]string{}
	for _, g := range gpus {
		plain := plainName(g.name)
		if other := seen[plain]; other != "" {
			t.Errorf("%s and %s are one name to those who write it otherwise", g.name, other)
		}
		seen[plain] = g.name
		if g.source == "" || g.bf16 < g.f32 || g.memory <= 0 || g.bandwidth <= 0 || g.peers <= 0 {
			t.Errorf("%+v", g)
		}
		h, err := g.machine(g.name, g.bus)
		if err != nil {
			t.Error(err)
		} else if err := h.Validate(); err != nil || h.Memory.Host == 0 {
			t.Errorf("%s: %v, %d bytes of host memory", g.name, err, h.Memory.Host)
		}
	}
	for _, c := range cards {
		if seen[plainName(c.gpu)] != c.gpu {
			t.Errorf("%s is %s, which is not known", c.card, c.gpu)
		}
	}
}

// TestFP8Peaks: tensor cores multiply in FP8 as fast as NVIDIA's papers say of a card of each generation, and Ampere's do not.
func TestFP8Peaks(t *testing.T) {
	for card, want := range map[string]float64{"rtx3090": 0, "a10": 0, "a100-80": 0, "jetson-orin-64": 0, "rtx4090": 330.3, "l4": 242, "h100": 1979, "b200": 4500, "rtx5090": 419, "rtxpro6000": 1007} {
		h, err := KnownRank(card, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.Engine(device.Compute).Peak.FP8 / 1e12; got < 0.995*want || got > 1.005*want {
			t.Errorf("%s: %v TFLOP/s, want %v", card, got, want)
		}
	}
}

// TestUnified: a GPU without memory of its own has its host's, of which both tiers together may take no more than there
// is; there is one to a host, and other hosts are joined by what the board has for it.
func TestUnified(t *testing.T) {
	for _, g := range gpus {
		if g.bus != unified {
			continue
		}
		h, err := KnownRank(g.name, 1)
		if err != nil {
			t.Fatal(err)
		}
		if m := h.Memory; !m.Shared || !m.Unified || m.Device != m.Host || m.Host >= g.memory*gib {
			t.Errorf("%s: %+v", g.name, m)
		}
		both := (1 + h.Slowdown(device.HostToDev, device.DevToHost)) / h.Link(device.HostTier, device.DeviceTier).Bandwidth
		if copied := 2 * 2 / both; copied > g.bandwidth*1e9 { // two copies at once, each of which reads and writes
			t.Errorf("%s: copies move %.3g bytes/s in memory of %v GB/s", g.name, copied, g.bandwidth)
		}
		if _, err := KnownRank(g.name, 2); err == nil {
			t.Errorf("%s: two on one host", g.name)
		}
		h.Join(2, 1)
		if rate := h.Network.Link.Bandwidth; rate != g.peers*1e9 {
			t.Errorf("%s: hosts are joined at %.3g bytes/s, not at %v GB/s", g.name, rate, g.peers)
		}
	}
}
