package main

import (
	"strings"
	"testing"
)

// TestCrowded: a plan that takes nearly all of a host is said to, with a limit that the process and the system leave, at
// which it is not said again, whatever the plan then takes.
func TestCrowded(t *testing.T) {
	const gb, process = 1_000_000_000, 500_000_000
	if text := crowded(63*gb, 64*gb, process); !strings.Contains(text, "limits.host=59500000000,") {
		t.Error(text)
	}
	if text := crowded(64*gb, 64*gb, 0); !strings.Contains(text, "limits.host=59999000000,") { // 60 GB may again be all of a host
		t.Error(text)
	}
	for _, c := range [][2]int64{{59 * gb, 64 * gb}, {gb, gb}, {59 * gb, 59_500_000_000}} {
		if text := crowded(c[0], c[1], process); text != "" {
			t.Error(c, text)
		}
	}
}
