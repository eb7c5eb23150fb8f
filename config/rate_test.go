package config

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestRates: rates are read in bytes and, as those of networks are stated, in bits; what may be either is refused.
func TestRates(t *testing.T) {
	for text, want := range map[string]Rate{"2GB/s": 2e9, "2 gb/s": 2e9, "1GiB/s": 1 << 30, "25Gbit/s": 3.125e9, "100 Gbps": 12.5e9, "25GbE": 3.125e9, "800Mbit/s": 1e8} {
		var r Rate
		if err := yaml.Unmarshal([]byte(text), &r); err != nil || r != want {
			t.Errorf("%s is %v, want %v: %v", text, float64(r), float64(want), err)
		}
	}
	for text, want := range map[string]string{"25Gb/s": "bits or bytes", "25GB": "not a rate", "3Mbit/s": "at least", "fast/s": "not a rate", "-1GB/s": "not a rate", "bit/s": "not a rate"} {
		var r Rate
		if err := yaml.Unmarshal([]byte(text), &r); err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "hint:") != 1 {
			t.Errorf("%s: %v", text, err)
		}
	}
}
