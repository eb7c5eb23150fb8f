package crashfs

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f *FS, name, text string, sync bool) {
	t.Helper()
	w, err := f.Create(name)
	must(t, err)
	_, err = w.Write([]byte(text))
	must(t, err)
	if sync {
		must(t, w.Sync())
	}
	must(t, w.Close())
}

// outcomes returns the distinct results of view over many random crashes.
func outcomes(f *FS, view func(*FS) string) []string {
	seen := map[string]bool{}
	for seed := range uint64(200) {
		seen[view(f.Crash(rand.New(rand.NewPCG(seed, 0))))] = true
	}
	var list []string
	for s := range seen {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

func content(name string) func(*FS) string {
	return func(f *FS) string {
		r, err := f.Open(name)
		if err != nil {
			return "absent"
		}
		b, _ := io.ReadAll(r)
		return string(b)
	}
}

func TestWhatSurvives(t *testing.T) {
	cases := []struct {
		name string
		do   func(f *FS)
		want []string // of /a
	}{
		{"nothing synced", func(f *FS) { write(t, f, "/a", "xy", false) },
			[]string{"", "\x00\x00", "absent", "x", "x\x00", "xy"}},
		{"bytes synced, name not", func(f *FS) { write(t, f, "/a", "xy", true) }, []string{"absent", "xy"}},
		{"both synced", func(f *FS) { write(t, f, "/a", "xy", true); must(t, f.SyncDir("/")) }, []string{"xy"}},
		{"renamed", func(f *FS) {
			write(t, f, "/b", "new", true)
			write(t, f, "/a", "old", true)
			must(t, f.SyncDir("/"))
			must(t, f.Rename("/b", "/a"))
		}, []string{"new", "old"}},
		{"rename synced", func(f *FS) {
			write(t, f, "/b", "new", true)
			write(t, f, "/a", "old", true)
			must(t, f.Rename("/b", "/a"))
			must(t, f.SyncDir("/"))
		}, []string{"new"}},
		{"removed", func(f *FS) {
			write(t, f, "/a", "xy", true)
			must(t, f.SyncDir("/"))
			must(t, f.RemoveAll("/a"))
		}, []string{"absent", "xy"}},
	}
	for _, c := range cases {
		f := New()
		c.do(f)
		if got := outcomes(f, content("/a")); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestFaults(t *testing.T) {
	f := New()
	must(t, f.Mkdir("/d"))
	f.FailOnce(f.Ops()+2, syscall.EIO)
	w, err := f.Create("/d/a")
	must(t, err)
	if n, err := w.Write([]byte("abcd")); n != 2 || !errors.Is(err, syscall.EIO) {
		t.Errorf("wrote %d, %v", n, err)
	}
	f.Capacity = 5
	if n, err := w.Write([]byte("abcd")); n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d, %v", n, err)
	}
	f.FailFrom(f.Ops() + 1)
	if err := f.RemoveAll("/d"); !errors.Is(err, ErrCrashed) {
		t.Errorf("removed after the crash: %v", err)
	}
	if got := f.Files(); !slices.Equal(got, []string{"/d/a"}) {
		t.Errorf("files %q", got)
	}
	if err := New().Mkdir("/x/y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("mkdir without a parent: %v", err)
	}
}
