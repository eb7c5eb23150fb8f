package clock_test

import (
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/clock"
)

// TestFine: the clock agrees with package time over a while, advances within some
// microseconds, and never goes back. Only Windows has its own clock.
func TestFine(t *testing.T) {
	began, begun := time.Now(), clock.Now()
	least := time.Hour
	for last := begun; time.Since(began) < 100*time.Millisecond; {
		now := clock.Now()
		switch step := now.Sub(last); {
		case step < 0:
			t.Fatalf("the time went back by %v", -step)
		case step > 0:
			least, last = min(least, step), now
		}
	}
	if least > 20*time.Microsecond {
		t.Errorf("the clock moves on by %v at least", least)
	}
	// Package time may be late by 16 ms at both ends on Windows.
	if d := clock.Since(begun) - time.Since(began); d.Abs() > 40*time.Millisecond {
		t.Errorf("a tenth of a second differs by %v", d)
	}
}
