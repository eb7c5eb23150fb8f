package main

import "testing"

// TestExitCodes: a run that is stopped before its first step can be started again.
func TestExitCodes(t *testing.T) {
	if code := command().ExitCode(errStopped); code != 75 {
		t.Errorf("exit code %d, not 75", code)
	}
}
