package machine

import (
	"context"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/remote"
)

// open returns the files below a folder that this process has open, as far as the system says so.
func open(root string) (list []string) {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if path, err := os.Readlink(fd); err == nil && strings.HasPrefix(path, root) {
			list = append(list, path)
		}
	}
	return list
}

// TestWritten: whatever a leader with the key has a process do, this writes to no other folder than that of what is spilled,
// from which all is removed when the leader is gone, and the run's, in which a leader's own files must be: it makes none.
func TestWritten(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"home", "tmp", "here", "run", "spill"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", root+"/home")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("TMPDIR", root+"/tmp")
	t.Chdir(root + "/here")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	key := []byte("a key of this test")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	closed := make(chan string, 4)
	part := Part{Spill: root + "/spill", Folder: root + "/run", Budget: remote.NewBudget(remote.Limits{Memory: 1 << 30, Disk: 1 << 30, Ranks: 2})}
	go func() {
		ended <- part.Serve(ctx, l, key, func(text string) {
			if strings.Contains(text, "closed") {
				closed <- text
			}
		})
	}()
	files := func() (list []string) {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				list = append(list, path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return list
	}
	d, err := remote.Open(l.Addr().String(), key, remote.Place{Device: "cpu"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	before := files() // the cache's
	if err := d.Reserve(device.DiskTier, 1<<16); err != nil {
		t.Fatal(err)
	}
	if err := d.Write(device.DiskTier, 0, make([]byte, 1<<16)); err != nil {
		t.Error(err)
	}
	for _, f := range slices.Concat(files(), open(root)) { // where the system can have files without names, there is none
		if !slices.Contains(before, f) && !strings.HasPrefix(f, root+"/spill/.athanor-spill-") {
			t.Errorf("%s is written", f)
		}
	}
	for i, name := range []string{"new", "../outside", root + "/outside", "../home/file"} { // a loaded program is not even needed
		d.Save(i, name, device.FileBlock{}, device.StateRange{N: 1})
		if _, err := d.Saved(); err == nil {
			t.Errorf("%s is written", name)
		}
	}
	text := []byte("what the leader has written")
	if err := os.WriteFile(root+"/run/file", text, 0o644); err != nil {
		t.Fatal(err)
	}
	before = append(before, root+"/run/file")
	slices.Sort(before)
	for name, n := range map[string]int64{"file": 8, "none": 1, "../here/file": 1} {
		d.Sum(name, 5, n)
		sums, err := d.Saved()
		if name == "file" && (err != nil || !slices.Equal(sums, []uint32{crc32.Checksum(text[5:13], crc32.MakeTable(crc32.Castagnoli))})) || name != "file" && err == nil {
			t.Errorf("the sum of %s is %x, %v", name, sums, err)
		}
	}
	d.Sum("file", 20, 100)
	if _, err := d.Saved(); err == nil {
		t.Error("a part that is not there has a sum")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	<-closed
	if after := files(); !slices.Equal(after, before) {
		t.Errorf("the files %v have become %v", before, after)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
