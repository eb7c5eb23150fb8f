package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const packExample = "../../lab/pack/testdata/example.12.csv"

func runPack(t *testing.T, args ...string) (code int, result packResult, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = command().Execute(append([]string{"pack", "--json"}, args...), &out, &errs)
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &result); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
	}
	return code, result, errs.String()
}

func TestPackMinimises(t *testing.T) {
	csv, svg := filepath.Join(t.TempDir(), "out.csv"), filepath.Join(t.TempDir(), "out.svg")
	code, r, stderr := runPack(t, packExample, "--out", csv, "--svg", svg)
	if code != 0 || r.Height != 12 || r.LowerBound != 12 || !r.Optimal || r.Feasible == nil || !*r.Feasible {
		t.Fatalf("code %d: %+v %s", code, r, stderr)
	}
	// What was written is a packing: read back with its offsets fixed, it fits.
	if code, r, stderr := runPack(t, csv, "--capacity", "12"); code != 0 || r.Height != 12 {
		t.Errorf("code %d: %+v %s", code, r, stderr)
	}
	if text, err := os.ReadFile(svg); err != nil || !strings.Contains(string(text), "</svg>") {
		t.Errorf("no picture: %v", err)
	}
}

func TestPackProvesInfeasible(t *testing.T) {
	code, r, stderr := runPack(t, packExample, "--capacity", "11")
	if code != 3 || r.Feasible == nil || *r.Feasible || len(r.Conflict) != 3 || !strings.Contains(stderr, "hint:") {
		t.Errorf("code %d: %+v %s", code, r, stderr)
	}
}

// TestPackUnwritable: that a result cannot be written is said before the problem is read.
func TestPackUnwritable(t *testing.T) {
	for _, name := range []string{"--out", "--svg"} {
		for _, path := range []string{packExample + "/x.svg", t.TempDir() + "/absent/x.svg"} {
			if code, _, stderr := runPack(t, "absent", name, path); code != 1 || !strings.Contains(stderr, path+" cannot be written") {
				t.Errorf("%s %s: code %d: %s", name, path, code, stderr)
			}
		}
	}
}

func TestPackRejects(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.csv")
	if err := os.WriteFile(bad, []byte("id,lower,upper,size\na,5,5,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{bad}, {"no such file"}, {packExample, "--capacity=-1"}, {packExample, "--timeout=soon"}, {packExample, "--timeout=-1s"}, {packExample, "--nodes=-2"}} {
		if code, _, stderr := runPack(t, args...); code != 2 || stderr == "" {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
	}
}
