// Package size parses and formats amounts of memory such as 64MiB or 1.5 GiB.
package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var units = []struct {
	name  string
	bytes float64
}{
	{"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30}, {"TIB", 1 << 40}, {"PIB", 1 << 50},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"B", 1}, {"", 1},
}

// Parse returns the number of bytes in s, which may have a unit, binary (KiB, MiB,
// GiB, TiB; K, M, G, T) or decimal (KB, MB, GB, TB).
func Parse(s string) (int64, error) {
	t := strings.ToUpper(strings.ReplaceAll(strings.TrimSpace(s), "_", ""))
	for _, u := range units {
		num, ok := strings.CutSuffix(t, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
		if err != nil || math.IsNaN(v) || v < 0 || v*u.bytes > 1<<60 {
			break
		}
		return int64(math.Round(v * u.bytes)), nil
	}
	return 0, fmt.Errorf("%q is not an amount of memory; hint: use a number and a unit, such as 64MiB or 1.5GiB", s)
}

// Exact formats a number of bytes exactly, followed by the rounded form.
func Exact(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d bytes (%s)", n, Format(n))
}

// Decimal formats a number of bytes with three digits and a decimal unit, as makers of disks do.
func Decimal(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB", "TB", "PB"} {
		if v < 999.5 {
			break
		}
		v, unit = v/1000, u
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

// Format formats a number of bytes with three or four digits and a binary unit.
func Format(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if math.Abs(v) < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	switch {
	case unit == "B":
		return fmt.Sprintf("%d B", n)
	case math.Abs(v) < 100:
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}
