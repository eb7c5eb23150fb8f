package sysmem

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func files(pairs ...string) fstest.MapFS {
	root := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		root[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return root
}

const meminfo16G = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"

func TestRead(t *testing.T) {
	const gib = 1 << 30
	cases := []struct {
		name string
		root fstest.MapFS
		want Info
	}{
		{"bare machine", files("proc/meminfo", meminfo16G), Info{16 * gib, 8 * gib}},
		{"no limit", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max", "max\n"), Info{16 * gib, 8 * gib}},
		{"limit of a parent, page cache can be dropped", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max", "max\n",
			"sys/fs/cgroup/a/memory.max", "4294967296\n",
			"sys/fs/cgroup/a/memory.current", "3221225472\n",
			"sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 536870912\nactive_file 536870912\n"), Info{4 * gib, 2 * gib}},
		{"soft limit, and one of a parent that is tighter", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.high", "4294967296\n", "sys/fs/cgroup/a/b/memory.max", "8589934592\n", "sys/fs/cgroup/a/b/memory.current", "1073741824\n",
			"sys/fs/cgroup/a/memory.max", "max\n", "sys/fs/cgroup/a/memory.high", "3221225472\n", "sys/fs/cgroup/a/memory.current", "1073741824\n"), Info{3 * gib, 2 * gib}},
		{"no soft limit", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "0::/a\n",
			"sys/fs/cgroup/a/memory.high", "max\n", "sys/fs/cgroup/a/memory.max", "4294967296\n", "sys/fs/cgroup/a/memory.current", "1073741824\n"), Info{4 * gib, 3 * gib}},
		{"version 1", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1073741824",
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes", "2147483648"), Info{gib, 0}},
		{"version 1, page cache can be dropped", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "4:memory:/x\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4294967296",
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes", "3221225472",
			"sys/fs/cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 1073741824\ntotal_active_file 1073741824\n"), Info{4 * gib, 3 * gib}},
		{"version 1 without limit", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"), Info{16 * gib, 8 * gib}},
		{"addresses", files("proc/meminfo", meminfo16G, "proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax address space         4294967296           unlimited            bytes\nMax file locks 1 1 locks\n",
			"proc/self/statm", fmt.Sprintf("%d 3 4 1 0 2 0\n", gib/os.Getpagesize())), Info{4 * gib, 3*gib - addressGrowth}},
		{"data", files("proc/meminfo", meminfo16G, "proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax data size         4294967296           unlimited            bytes\n",
			"proc/self/status", "Name:\tathanor\nVmPeak:\t 9 kB\nVmData:\t 1048576 kB\n"), Info{4 * gib, 3*gib - dataGrowth}},
		{"data without limit", files("proc/meminfo", meminfo16G, "proc/self/limits", "Max data size             unlimited            unlimited            bytes\n",
			"proc/self/status", "VmData:\t 1048576 kB\n"), Info{16 * gib, 8 * gib}},
		{"addresses without limit", files("proc/meminfo", meminfo16G, "proc/self/limits", "Max address space         unlimited            unlimited            bytes\n",
			"proc/self/statm", "1000 3 4 1 0 2 0\n"), Info{16 * gib, 8 * gib}},
		{"garbage", files("proc/meminfo", meminfo16G, "proc/self/cgroup", "0\n::\n0::../../x\n",
			"sys/fs/cgroup/x/memory.max", "-7"), Info{16 * gib, 8 * gib}},
	}
	for _, c := range cases {
		got, err := read(c.root)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	for _, root := range []fstest.MapFS{{}, files("proc/meminfo", "MemTotal: -3 kB\n"), files("proc/meminfo", "MemTotal: 9223372036854775807 kB\n")} {
		if got, err := read(root); err == nil {
			t.Errorf("accepted %v as %+v", root, got)
		}
	}
}

// TestCores: the tightest quota of CPU time holds, of either version; what is no quota is none.
func TestCores(t *testing.T) {
	for _, c := range []struct {
		name string
		root fstest.MapFS
		want float64
	}{
		{"bare machine", files(), 0},
		{"none", files("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/cpu.max", "max 100000\n"), 0},
		{"of a parent", files("proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max", "400000 100000\n", "sys/fs/cgroup/a/cpu.max", "150000 100000\n"), 1.5},
		{"version 1", files("proc/self/cgroup", "4:memory:/x\n5:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"), 0.5},
		{"version 1 without a quota", files("proc/self/cgroup", "2:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"), 0},
		{"garbage", files("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/cpu.max", "-5 0 7\n"), 0},
	} {
		if got := cores(c.root); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestEnough: what is more than any machine has is an error of its own kind, before it is touched.
func TestEnough(t *testing.T) {
	if err := Enough(1 << 60); !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("2^60 bytes: %v", err)
	}
	if err := Enough(1); err != nil {
		t.Error(err)
	}
}

// TestAddresses: a limit under which Go's runtime would end the process is an error, and one above it, or none, is not.
func TestAddresses(t *testing.T) {
	for _, limit := range []int64{1, 700 << 20, leastAddresses - 1} {
		if err := addressesFor(limit); !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%d: %v", limit, err)
		}
	}
	for _, limit := range []int64{0, leastAddresses, 4 << 30} {
		if err := addressesFor(limit); err != nil {
			t.Errorf("%d: %v", limit, err)
		}
	}
}
