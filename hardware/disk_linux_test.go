package hardware_test

import (
	"os"
	"testing"

	"github.com/athanor-llm/athanor/hardware"
)

// TestInMemory: a folder whose files are kept in memory is no disk, even if it does not exist yet or is reached through a link; one on a disk is.
func TestInMemory(t *testing.T) {
	const shared = "/dev/shm"
	if _, err := os.Stat(shared); err != nil {
		t.Skip(err)
	}
	link := t.TempDir() + "/link"
	if err := os.Symlink(shared, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{shared, shared + "/not/yet/there", link, link + "/below"} {
		if got := hardware.InMemory(dir); got != "tmpfs" {
			t.Errorf("%s: %q", dir, got)
		}
		if m, err := hardware.LocalMemory(dir, 0); err != nil || m.Disk != 0 || m.Host == 0 {
			t.Errorf("%s: %+v, %v", dir, m, err)
		}
	}
	if got := hardware.InMemory("/proc/self"); got != "" {
		t.Errorf("/proc: %q", got)
	}
}

// TestProcessMemory: what a process takes besides its arenas is not offered to plans; what is not known is a share.
func TestProcessMemory(t *testing.T) {
	m, err := hardware.LocalMemory("", 1<<60)
	if err != nil || m.Host != 0 || m.Device != 0 || m.Process != 1<<60 {
		t.Errorf("a process that takes everything leaves %+v, %v", m, err)
	}
	m, err = hardware.LocalMemory("", 0)
	if err != nil || m.Host <= 0 || m.Process <= 0 || m.Process > m.Host {
		t.Errorf("%+v, %v", m, err)
	}
}
