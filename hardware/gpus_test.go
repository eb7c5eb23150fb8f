package hardware

import "testing"

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
