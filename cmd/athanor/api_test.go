package main

import (
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestAPIErrors: what cannot be served is refused before anything listens for long, with the exit codes of all verbs.
func TestAPIErrors(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	model, _ := modelFolder(t)
	const here = "--listen=127.0.0.1:0"
	call("api", model, here, "--context", "1").must(t, 2, "--context", "hint:")
	call("api", model, here, "--sequences", "0").must(t, 2, "--sequences", "hint:")
	call("api", model, here, "--waiting", "-1").must(t, 2, "--waiting", "hint:")
	call("api", model, "--listen", "nowhere").must(t, 1, "--listen")
	call("api", t.TempDir(), here).must(t, 2, "not a model folder", "hint:")
	call("api", model, here, "--device-memory", "10KB").must(t, 3, "does not fit", "hint:")
}
