package testkit

import (
	"runtime"
	"testing"
)

// GoroutinesEnd fails the test if more goroutines run than before it. One that has said that it is done may
// still be about to return, so they are given many turns.
func GoroutinesEnd(t testing.TB, before int) {
	t.Helper()
	for range 1_000_000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
