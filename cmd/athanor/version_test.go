package main

import (
	"runtime"
	"strings"
	"testing"
)

// TestVersion: --version says what doctor says of the program, and nothing else.
func TestVersion(t *testing.T) {
	said := strings.TrimSpace(call("--version").must(t, 0).stdout)
	if strings.Contains(said, "\n") || !strings.Contains(said, runtime.Version()) || !strings.Contains(said, runtime.GOOS+"/"+runtime.GOARCH) {
		t.Errorf("it says %q", said)
	}
	if doctor := call("doctor").stdout; !strings.Contains(doctor, said) {
		t.Errorf("doctor does not say %q:\n%s", said, doctor)
	}
}
