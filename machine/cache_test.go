package machine

import (
	"os"
	"runtime"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/hardware"
)

// TestCacheNames: what was measured with other cores, ranks or throttled links, or beside another disk, is in another
// file; what was measured alike is in the same.
func TestCacheNames(t *testing.T) {
	spill := t.TempDir()
	name := func(ranks int, rate config.Rate) string {
		m := Machine{ranks: ranks, spill: spill, backend: &cpuBackend{ranks: ranks, jobs: 1}}
		r := Request{}
		r.Hardware.H2D = rate
		return m.cacheName(&r)
	}
	seen := map[string]bool{name(1, 0): true}
	if !seen[name(1, 0)] {
		t.Error("two names for the same")
	}
	others := []string{name(2, 0), name(1, 1e9)}
	cores := runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	others = append(others, name(1, 0))
	runtime.GOMAXPROCS(cores)
	for _, other := range others {
		if seen[other] {
			t.Errorf("%s is the name of another", other)
		}
		seen[other] = true
	}
}

// TestDamagedCache: a description that is cut off, not one, or absurdly long counts as none.
func TestDamagedCache(t *testing.T) {
	h, err := hardware.KnownRank("l4", 1)
	if err != nil {
		t.Fatal(err)
	}
	m := Machine{Hardware: h, file: t.TempDir() + "/kept.json"}
	if m.cached() != nil {
		t.Error("a description out of nothing")
	}
	m.Hardware.Memory.Disk = 1 << 40
	m.save()
	if m.cached() == nil {
		t.Fatal("what was saved is not read")
	}
	text, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	for what, size := range map[string]int64{"nothing": 0, "half": int64(len(text) / 2), "2 TiB of zeros": 1 << 41} {
		if err := os.WriteFile(m.file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(m.file, size); err != nil {
			t.Fatal(err)
		}
		if m.cached() != nil {
			t.Errorf("%s is a description", what)
		}
	}
}
