package main

import (
	"strings"
	"testing"
)

// TestCrowded: a plan that takes nearly all of a host is said to, with a limit that the process and the system leave, at
// which it is not said again.
func TestCrowded(t *testing.T) {
	const gb, process = 1_000_000_000, 500_000_000
	if text := crowded(63*gb, 64*gb, process); !strings.Contains(text, "limits.host=59500000000,") {
		t.Error(text)
	}
	for _, c := range [][2]int64{{59 * gb, 64 * gb}, {gb, gb}} {
		if text := crowded(c[0], c[1], process); text != "" {
			t.Error(c, text)
		}
	}
}
