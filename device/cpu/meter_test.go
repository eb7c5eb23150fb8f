package cpu

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/athanor-llm/athanor/device"
)

// slowFile takes its time for every read and write; at 0 it never responds.
type slowFile struct {
	each    time.Duration
	release chan struct{}
}

func (f *slowFile) ReadAt(p []byte, _ int64) (int, error) {
	if f.each == 0 {
		<-f.release
	}
	time.Sleep(f.each)
	return len(p), nil
}

func (f *slowFile) WriteAt(p []byte, at int64) (int, error) { return f.ReadAt(p, at) }
func (*slowFile) Close() error                              { return nil }

// patience is that of a watchdog.
const patience = 10 * time.Second

// getsOn runs f, and fails if there is no progress for the watchdog's patience while it runs.
func getsOn(t *testing.T, m *Meter, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	seen := m.Progress()
	for {
		select {
		case <-done:
			return
		case <-time.After(patience):
		}
		n := m.Progress()
		if n == seen {
			t.Errorf("nothing got on in %v", patience)
			<-done
			return
		}
		seen = n
	}
}

// TestSlowDisk: a disk of less than a MiB per second makes progress, whether or not the transfers are
// aligned.
func TestSlowDisk(t *testing.T) {
	for _, direct := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const size = 5*diskPiece + 100
			var m Meter
			a := (&disk{file: &slowFile{each: patience - time.Second}, size: size, direct: direct}).access(&m)
			p := alignedBytes(size)
			for name, f := range map[string]func([]byte, int64) error{"read": a.Read, "write": a.Write} {
				start := time.Now()
				getsOn(t, &m, func() {
					if err := f(p, 0); err != nil {
						t.Error(err)
					}
				})
				if d := time.Since(start); d < 5*(patience-time.Second) {
					t.Errorf("%s took %v only", name, d)
				}
			}
		})
	}
}

// TestSlowLink: a throttled copy makes progress.
func TestSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Options
		o.Workers = 1
		o.Rate[device.HostToDev] = 1
		d := newDevice(t, o, 4096, 4096)
		c := copyCall(device.HostToDev, operand(device.DeviceTier, 0, 1, 16, 16), operand(device.HostTier, 0, 1, 16, 16))
		start := time.Now()
		getsOn(t, &d.meter, func() {
			if _, err := round(t, d, c); err != nil {
				t.Error(err)
			}
		})
		if took := time.Since(start); took < 64*time.Second {
			t.Errorf("64 bytes at 1 byte/s took %v", took)
		}
	})
}

// TestMeter: processor time counts while something computes, and not otherwise.
func TestMeter(t *testing.T) {
	var used time.Duration
	m := Meter{clock: func() time.Duration { return used }}
	changes := func(more time.Duration) bool {
		before := m.Progress()
		used += more
		return m.Progress() != before
	}
	if changes(time.Hour) {
		t.Error("nothing computes, but it gets on")
	}
	m.Begin()
	if m.Begin(); !changes(meterUnit) || changes(0) {
		t.Error("processor time of a kernel does not count")
	}
	if m.End(); !changes(patience / 40) {
		t.Error("a fortieth of a core does not count")
	}
	if m.End(); changes(time.Hour) {
		t.Error("a kernel that has ended gets on")
	}
	before := processorTime()
	for processorTime() == before { // computing
	}
}

// TestCloseHanging: a device whose disk hangs can be closed, and leaves the memory that the call works
// on to it.
func TestCloseHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{Workers: 1, DiskPath: t.TempDir() + "/disk"})
		for _, tier := range []device.Tier{device.HostTier, device.DiskTier} {
			if err := d.Reserve(tier, 4096); err != nil {
				t.Fatal(err)
			}
		}
		hung := &slowFile{release: make(chan struct{})}
		d.disk.file.(io.Closer).Close()
		d.disk.file = hung
		n, err := d.Prepare([]device.Call{copyCall(device.DiskRead, operand(device.HostTier, 0, 1, 1024, 1024), operand(device.DiskTier, 0, 1, 1024, 1024))}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(n)
		synced := make(chan error)
		go func() { synced <- d.Sync() }()
		synctest.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		close(hung.release)
		if err := <-synced; err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil { // now it can go
			t.Error(err)
		}
	})
}
