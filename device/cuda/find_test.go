//go:build linux

package cuda

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestNothing: without NVIDIA's libraries Find says which are missing, where
// it looked, and what to do; Open fails with the same words.
func TestNothing(t *testing.T) {
	none := []string{"/nonexistent/libcuda.so.1"}
	f := find(nv.Places{Driver: none, NVRTC: none, CublasLt: none})
	if f.OK || len(f.Missing) != 3 {
		t.Fatalf("%+v", f)
	}
	for i, what := range []string{"NVIDIA's driver (libcuda.so.1)", "NVRTC", "cublasLt"} {
		if m := f.Missing[i]; !strings.Contains(m, what) || !strings.Contains(m, "hint:") || !strings.Contains(m, "/nonexistent") {
			t.Errorf("%q does not explain the lack of %s", m, what)
		}
	}
}

// TestWrongLibrary: a library without the symbols is not mistaken for the right one.
func TestWrongLibrary(t *testing.T) {
	libc := []string{"libc.so.6"}
	f := find(nv.Places{Driver: libc, NVRTC: libc, CublasLt: libc})
	if f.OK || len(f.Missing) != 3 || !strings.Contains(f.Missing[0], "cuInit") {
		t.Errorf("%+v", f)
	}
}

// TestCards lists the fake's cards.
func TestCards(t *testing.T) {
	for major, usable := range map[int]bool{7: false, 9: true} {
		g := fake.New()
		g.Cards, g.Major, g.Peers = 2, major, usable
		f := &Found{}
		f.cards(g.Driver(), nv.Places{NVML: []string{"/nonexistent"}})
		if len(f.Cards) != 2 || f.Cards[1].Name != "Fake GPU" || f.Cards[1].BusID != "0000:00:00.0" || (len(f.Missing) == 0) != usable || (len(f.Cards[0].Peers) == 1) != usable {
			t.Errorf("%+v", f)
		}
		if list, err := gpus(g.Driver()); usable != (err == nil && slices.Equal(list, []GPU{{Index: 0, Name: "Fake GPU", BusID: "0000:00:00.0"}, {Index: 1, Name: "Fake GPU", BusID: "0000:00:00.0"}})) {
			t.Error(list, err)
		}
	}
}

// TestIntegrated: it is known of a GPU whether its memory is the host's.
func TestIntegrated(t *testing.T) {
	for n := range 2 {
		g := fake.New()
		g.Integrated = n
		if list, err := gpus(g.Driver()); err != nil || len(list) == 0 || list[0].Unified != (n == 1) {
			t.Error(list, err)
		}
	}
}

// TestOldCards: no rank gets a card that cannot be used, wherever CUDA lists it.
func TestOldCards(t *testing.T) {
	g := fake.New()
	g.Cards, g.Old = 4, []int{1, 3}
	if list, err := gpus(g.Driver()); err != nil || !slices.Equal(list, []GPU{{Index: 0, Name: "Fake GPU", BusID: "0000:00:00.0"}, {Index: 2, Name: "Fake GPU", BusID: "0000:00:00.0"}}) {
		t.Error(list, err)
	}
}

// TestDated: compilers before 12.9 are slow for Hopper, and only for that.
func TestDated(t *testing.T) {
	for _, c := range []struct {
		arch, version string
		slow          bool
	}{{"sm_90", "12.8", true}, {"sm_90", "11.8", true}, {"sm_90", "12.9", false}, {"sm_90", "13.0", false}, {"sm_89", "12.4", false}} {
		f := &Found{Cards: []Card{{Arch: "sm_80"}, {Arch: c.arch}}}
		if text := f.slow(c.version); (text != "") != c.slow || c.slow && !strings.Contains(text, c.version) {
			t.Errorf("%v: %q", c, text)
		}
	}
}

// TestProbeChild: what a child prints arrives, and a child that hangs, dies or prints nothing gives a
// result too.
func TestProbeChild(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	for script, want := range map[string]string{
		"sleep 60":      "did not answer within",
		"kill -SEGV $$": "signal: segmentation fault",
		"echo hello":    "gave no answer",
		"echo noise; echo " + probeVar + `'{"missing":["x"]}'`: "x",
	} {
		f := probe(context.Background(), time.Second, exec.CommandContext, sh, "-c", script)
		if f.OK || len(f.Missing) != 1 || !strings.Contains(f.Missing[0], want) {
			t.Errorf("%s: %+v, want %q", script, f, want)
		}
	}
	// This test's program is a child that answers.
	f := probe(context.Background(), 20*time.Second, exec.CommandContext, os.Args[0])
	if len(f.Missing) > 0 && strings.Contains(strings.Join(f.Missing, ""), "the search for GPUs") {
		t.Errorf("%+v", f)
	}
}

// TestRealLibraries checks symbols against whatever NVIDIA libraries are here,
// and, where there is no GPU, that a real driver without one is understood.
func TestRealLibraries(t *testing.T) {
	p := nv.Local()
	d, err := nv.OpenDriver(p)
	if err != nil {
		t.Skip(err)
	}
	f := &Found{}
	f.cards(d, p)
	t.Logf("%s: %+v", d.Lib.Path(), f)
	if len(f.Cards) == 0 && (len(f.Missing) != 1 || !strings.Contains(f.Missing[0], "hint:")) {
		t.Errorf("%+v", f)
	}
	if _, err := New(&Libraries{Driver: d, Compiler: fake.Compiler{}}, Options{}); len(f.Cards) == 0 && err == nil {
		t.Error("a GPU was opened where there is none")
	}
}

// TestPlaces: all places where users may have the libraries are searched, beginning with those that
// users name themselves.
func TestPlaces(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{"own/libnvrtc.so.12", "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
		"venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "other/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "toolkit/lib64/libnvrtc.so.13", "conda/lib/libnvrtc.so.13"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("ATHANOR_CUDA_LIBS", filepath.Join(root, "own")+":"+filepath.Join(root, "empty"))
	t.Setenv("VIRTUAL_ENV", filepath.Join(root, "venv"))
	t.Setenv("CUDA_HOME", filepath.Join(root, "toolkit"))
	t.Setenv("CONDA_PREFIX", filepath.Join(root, "conda"))
	t.Setenv("PATH", filepath.Join(root, "other/bin")+":/bin")
	got := strings.Join(nv.Local().NVRTC, " ")
	at := -1
	for _, want := range []string{root + "/own/", "libnvrtc.so.13", root + "/toolkit/lib64/", root + "/conda/lib/", root + "/venv/lib/python3.11/site-packages/nvidia/cu13/", root + "/other/lib/python3.12/site-packages/nvidia/cu13/"} {
		i := strings.Index(got, want)
		if i <= at {
			t.Errorf("%s is not where it should be in %s", want, got)
		}
		at = i
	}
	if !strings.Contains(got, "/nvidia/cuda_nvrtc/lib/") {
		t.Errorf("the wheels of CUDA 12 are missing in %s", got)
	}
	if alone, all := nv.LocalDriver().Driver, nv.Local().Driver; !slices.Equal(alone, all) {
		t.Errorf("the driver alone is tried at %q, with all libraries at %q", alone, all)
	}
	if empty := nv.Local().Empty; len(empty) != 1 || empty[0] != filepath.Join(root, "empty") {
		t.Errorf("where no library is: %v", empty)
	}
	none := nv.Places{Driver: []string{"libathanor-none.so"}, Empty: []string{"/empty"}}
	if _, err := nv.OpenDriver(none); err == nil || !strings.Contains(err.Error(), "hint: ATHANOR_CUDA_LIBS names /empty") {
		t.Error(err)
	}
}
