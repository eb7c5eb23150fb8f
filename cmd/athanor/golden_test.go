package main

import (
	"os"
	"strings"
	"testing"
)

// TestGolden: a described machine's plan is as it was; another limit's needs something else, and the check names what; this
// machine's plan has no fingerprint.
func TestGolden(t *testing.T) {
	dir, file := tiny(t)
	out := dir + "/a.golden"
	call("golden", "write", file).must(t, 2, "hardware.name", "hint:")
	call("golden", "write", file, "hardware.name=l4", "limits.device=600KiB", "--out", out).must(t, 0)
	if r := call("golden", "check", out).must(t, 0); r.stdout != out+": as it was\n" {
		t.Errorf("it says %s", r.stdout)
	}
	text, err := os.ReadFile(out)
	check(t, err)
	check(t, os.WriteFile(out, []byte(strings.Replace(string(text), "600KiB", "700KiB", 1)), 0o644))
	r := call("golden", "check", out, "--json").must(t, 1, "what plans need has changed in 1 of 1", "hint:")
	if changed := r.object(t)["changed"].(map[string]any)[out].(string); !strings.Contains(changed, "was: height device ") || !strings.Contains(changed, "of rank 0") {
		t.Errorf("it says %s", changed)
	}
	check(t, os.WriteFile(out, text[:len(text)/2], 0o644))
	call("golden", "check", out).must(t, 1, out, "hint: athanor golden write")
	call("golden", "check", dir+"/absent").must(t, 1, "hint:")
}

// TestGoldenKept: plans and programs of this repository need what they needed: the first buffer or instruction that differs is named,
// with how to accept it.
func TestGoldenKept(t *testing.T) {
	t.Chdir("../..")
	call("golden", "check", "testdata/golden/offload.golden").must(t, 0)
}
