package sysmem

import (
	"bufio"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

func system() (Info, error) { return read(os.DirFS("/")) }

func systemCores() float64 { return cores(os.DirFS("/")) }

func read(root fs.FS) (Info, error) {
	mem, err := meminfo(root)
	if err != nil {
		return Info{}, err
	}
	for _, g := range groups(root) {
		limit, used := g.usage(root)
		if limit <= 0 || limit >= mem.Total {
			continue
		}
		mem.Total = limit
		mem.Available = min(mem.Available, max(limit-used, 0))
	}
	for _, l := range []struct {
		name         string
		used, growth int64
	}{{"Max address space", mapped(root), addressGrowth}, {"Max data size", written(root), dataGrowth}} {
		if limit := ulimit(root, l.name); limit > 0 {
			mem.Total = min(mem.Total, limit)
			mem.Available = min(mem.Available, max(limit-l.used-l.growth, 0))
		}
	}
	return mem, nil
}

// addressGrowth is left to the process of a limit on addresses: its heap grows by 64 MiB of them at a time, and new threads of the
// C library take as much, all of which no plan has.
const addressGrowth = 256 << 20

// dataGrowth is so for a limit on what can be written to (ulimit -d), which addresses that are only reserved do not count for.
const dataGrowth = 64 << 20

// ulimit returns a limit of the process by its name in /proc/self/limits, in bytes; 0: there is none.
func ulimit(root fs.FS, name string) (limit int64) {
	text, err := fs.ReadFile(root, "proc/self/limits")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if f := strings.Fields(rest); len(f) > 0 { // the soft limit; "unlimited" is none
				limit, _ = strconv.ParseInt(f[0], 10, 64)
			}
		}
	}
	return limit
}

func systemAddresses() int64 { return ulimit(os.DirFS("/"), "Max address space") }

// written returns how many bytes this process has that it can write to.
func written(root fs.FS) int64 {
	fields := map[string]int64{}
	if pairs(root, "proc/self/status", fields) != nil {
		return 0
	}
	return fields["VmData:"] << 10
}

func systemMapped() int64 { return mapped(os.DirFS("/")) }

func mapped(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _, _ := strings.Cut(string(text), " ")
	n, _ := strconv.ParseInt(pages, 10, 64)
	return n * int64(os.Getpagesize())
}

func meminfo(root fs.FS) (Info, error) {
	fields := map[string]int64{}
	if err := pairs(root, "proc/meminfo", fields); err != nil {
		return Info{}, err
	}
	total, ok := fields["MemTotal:"]
	if !ok || total <= 0 || total > math.MaxInt64>>10 {
		return Info{}, fmt.Errorf("/proc/meminfo has no usable MemTotal")
	}
	available, ok := fields["MemAvailable:"]
	if !ok || available < 0 || available > total {
		available = total
	}
	return Info{Total: total << 10, Available: available << 10}, nil
}

// group is a control group's directory below the root and its file names, which
// differ between versions 1 and 2.
type group struct {
	dir, limit, used string
	high             string // beyond which the group is slowed down; version 1 has none
	files            string // before the names of what files take in memory.stat
	quota, period    string // of CPU time; version 2 has both in one file
}

// groups lists the process's control groups for memory and CPU time, and their ancestors. A file that a group lacks
// limits nothing.
func groups(root fs.FS) []group {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	var list []group
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		g := group{dir: "sys/fs/cgroup", limit: "memory.max", high: "memory.high", used: "memory.current", quota: "cpu.max"}
		switch controllers := strings.Split(f[1], ","); {
		case f[1] == "":
		case f[1] == "memory":
			g = group{dir: "sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", files: "total_"}
		case slices.Contains(controllers, "cpu"):
			g = group{dir: "sys/fs/cgroup/" + f[1], quota: "cpu.cfs_quota_us", period: "cpu.cfs_period_us"}
		default:
			continue
		}
		base := g.dir
		for p := path.Clean("/" + f[2]); ; p = path.Dir(p) {
			g.dir = path.Join(base, p)
			list = append(list, g)
			if p == "/" {
				break
			}
		}
	}
	return list
}

// usage returns the group's limit (0: none) and the bytes that count against
// it and cannot be dropped.
func (g group) usage(root fs.FS) (limit, used int64) {
	if g.limit == "" {
		return 0, 0
	}
	for _, name := range []string{g.limit, g.high} {
		if n := number(root, path.Join(g.dir, name)); name != "" && n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	if limit == 0 {
		return 0, 0
	}
	stat := map[string]int64{}
	_ = pairs(root, path.Join(g.dir, "memory.stat"), stat) // if absent, nothing can be dropped
	// Active are pages that were read twice, as a model's weights are that are hashed and then loaded. They are dropped too.
	cache := stat[g.files+"inactive_file"] + stat[g.files+"active_file"]
	return limit, max(number(root, path.Join(g.dir, g.used))-cache, 0)
}

// cores returns the CPU time that the process may use, in seconds per second; 0: as much as there is.
func cores(root fs.FS) (least float64) {
	for _, g := range groups(root) {
		quota, period := int64(0), int64(0)
		switch {
		case g.quota == "":
		case g.period == "":
			text, err := fs.ReadFile(root, path.Join(g.dir, g.quota))
			if f := strings.Fields(string(text)); err == nil && len(f) == 2 { // "max 100000": none
				quota, _ = strconv.ParseInt(f[0], 10, 64)
				period, _ = strconv.ParseInt(f[1], 10, 64)
			}
		default:
			quota, period = number(root, path.Join(g.dir, g.quota)), number(root, path.Join(g.dir, g.period))
		}
		if quota <= 0 || period <= 0 {
			continue
		}
		if n := float64(quota) / float64(period); least == 0 || n < least {
			least = n
		}
	}
	return least
}

// number returns the number in a file, or 0 if the file is absent or holds "max".
func number(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return max(n, 0)
}

// pairs reads lines of "name number ...".
func pairs(root fs.FS, name string, into map[string]int64) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(w[1], 10, 64); err == nil {
			into[w[0]] = n
		}
	}
	return lines.Err()
}
