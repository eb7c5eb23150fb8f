package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestShare: jobs on a card that can be divided, with their environments; and what cannot be asked for.
func TestShare(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	out := filepath.Join(dir, "env")
	r := call("share", file, file, "--gpu", "a30", "--out", out, "--json").must(t, 0).object(t)
	ways := r["ways"].([]any)
	if len(ways) != 3 || r["jobs"].([]any)[1] == r["jobs"].([]any)[0] {
		t.Errorf("%v", r)
	}
	for _, w := range ways {
		if w := w.(map[string]any); len(w["jobs"].([]any)) != 2 || w["aggregate"].(float64) <= 0 {
			t.Errorf("%v", w)
		}
	}
	if list, err := os.ReadDir(out); err != nil || len(list) != 2 {
		t.Errorf("%d environments, %v", len(list), err)
	}
	call("share", file).must(t, 2, "1 jobs", "hint:")
	call("share", file, file, "--gpu", "rtx9999").must(t, 2, "rtx9999", "hint:")
}

// TestShareCores: jobs on this machine's cores, where they are also tried.
func TestShareCores(t *testing.T) {
	testkit.Needs(t, testkit.All)
	_, file := tiny(t)
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("one core")
	}
	text := call("share", file, file, "--try", "3").must(t, 0).stdout
	for _, part := range []string{"exclusive", "cores", "tried for 3 steps"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}
