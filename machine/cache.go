package machine

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// CacheDir returns the folder for data that can be recomputed: the user's cache
// folder, or a per-user folder in the temporary folder where there is no home or it
// is not writable, as in containers.
func CacheDir() (string, error) {
	home, err := os.UserCacheDir()
	if err == nil {
		dir := filepath.Join(home, "athanor")
		if err = makeWritable(dir); err == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("athanor-%d", os.Getuid()))
	if second := makeOwn(dir); second != nil {
		return "", fmt.Errorf("no cache folder can be written: %w, %w; hint: set XDG_CACHE_HOME to a folder that can be written", err, second)
	}
	return dir, nil
}

// makeWritable creates a folder if it is absent, and checks that it is writable.
func makeWritable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return Writable(dir)
}

// makeOwn creates a folder that only this user may write to, in a place that all users share.
func makeOwn(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := checkOwn(dir); err != nil {
		return err
	}
	return Writable(dir)
}

// Writable checks a folder by creating a file in it: permission bits alone do not suffice.
func Writable(dir string) error {
	f, err := os.CreateTemp(dir, ".athanor-try-*")
	var e *fs.PathError
	if errors.As(err, &e) { // omit the temporary file's name
		return fmt.Errorf("%s: %w", dir, e.Err)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// cached returns the description in the cache; nil if there is none.
func (m *Machine) cached() *hardware.Hardware {
	text, err := bounded.ReadFile(m.file, maxHardware)
	if err != nil {
		return nil
	}
	h, err := hardware.Parse(text)
	if err != nil {
		return nil
	}
	return h
}

// cacheName names the cache file by a hash of all that changes the measured rates:
// throttled links, the disk, the devices, the number of cores and the ranks that
// share them.
func (m *Machine) cacheName(r *Request) string {
	key := sha256.Sum256(fmt.Appendf(nil, "tuned %s %v %v %s %d %d", m.backend.id(), r.Hardware, hostID(), diskOf(m.spill), m.ranks, runtime.GOMAXPROCS(0)))
	if m.jobs > 1 {
		key = sha256.Sum256(fmt.Appendf(key[:], "%d jobs", m.jobs))
	}
	return fmt.Sprintf("hardware-%x.json", key[:6])
}

// hostID distinguishes machines that share a home folder. It includes the processor
// and its kernels, since a virtual machine may move to other hardware.
func hostID() string {
	name, err := os.Hostname()
	if err != nil {
		name = ""
	}
	return fmt.Sprintf("%s %s %s", name, hardware.Processor(), gemm.Kernels())
}

// existing returns the nearest ancestor folder that exists, where a disk can be
// measured.
func existing(path string) string {
	for path != "" && path != filepath.Dir(path) {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return path
		}
		path = filepath.Dir(path)
	}
	if path == "" {
		return "."
	}
	return path
}

// save writes the description to the cache, unless it lacks the disk: a disk that
// is full now may have room later, while files in memory are never a disk. What is there already is not written again,
// since a write waits for the disk twice. An unwritable cache is no error.
func (m *Machine) save() {
	if !m.diskMeasured() && hardware.InMemory(m.spill) == "" {
		return
	}
	var text bytes.Buffer
	if err := m.Hardware.Print(&text); err != nil {
		return
	}
	if old, err := bounded.ReadFile(m.file, maxHardware); err == nil && bytes.Equal(old, text.Bytes()) {
		return
	}
	tmp := m.file + fmt.Sprintf(".%d", os.Getpid())
	f, err := os.Create(tmp)
	if err != nil {
		return
	}
	_, err = f.Write(text.Bytes())
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = errors.Join(os.Rename(tmp, m.file), checkpoint.Disk{}.SyncDir(filepath.Dir(m.file)))
	}
	if err != nil {
		os.Remove(tmp)
	}
}

// busy is the pace below which timings are those of a busy hour: used now, since other work may go on, and not kept.
const busy = 0.75

// Learn adds operator times to the description, and to the cache unless they were taken at a pace below busy.
func (m *Machine) Learn(times []hardware.Measurement, pace float64) {
	m.Hardware.Add(times)
	if m.pace == 0 || pace < m.pace {
		m.pace, m.timed = pace, min(1, pace*clipped(times))
	}
	if m.pace >= busy {
		m.save()
	}
}

// clipped returns how many times as long operators took in all as their times say, of which outliers are clipped: that part of
// what other work costs is not in these.
func clipped(times []hardware.Measurement) float64 {
	var whole, kept float64
	for i := range times {
		n := float64(times[i].Runs)
		whole, kept = whole+n*times[i].Whole, kept+n*times[i].Seconds
	}
	if kept == 0 {
		return 1
	}
	return max(whole/kept, 1)
}

// Pace returns the rate of arithmetic of this machine's cores as a share of what they can do: less than 1 where other work
// takes a part of them. It is 1 where nothing is known of it: for GPUs and other hosts. A look at the cores is good for a
// second: timing is often shorter than the look.
func (m *Machine) Pace() float64 {
	b, cores := m.backend.(*cpuBackend)
	e := m.Hardware.Engine(device.Compute)
	if !cores || m.supposed || e == nil || e.Peak.F32 == 0 || b.options.Rate != [device.NumStreams]float64{} {
		return 1
	}
	if m.looked.IsZero() || time.Since(m.looked) > time.Second {
		n := max(m.Hardware.AtOnce, 1) * m.Jobs()
		for _, watch := range []time.Duration{paceTime, longTime} {
			m.seen = min(1, gemm.Sustained(n*m.Hardware.Cores, watch)/(float64(n)*e.Peak.F32))
			if m.seen >= busy {
				break
			}
		}
		m.looked = time.Now()
	}
	return m.seen
}

// The cores are watched for some of the system's turns, and longer where others take them.
const (
	paceTime = 40 * time.Millisecond
	longTime = 250 * time.Millisecond
)

// leastPace is told from no lower one.
const leastPace = 0.125

// Paces returns the pace of which operators' times are, and that of now; 1 where other work takes no notable part.
func (m *Machine) Paces() (timed, now float64) {
	timed, now = 1, 1
	if m.pace > 0 && m.pace < busy {
		timed = max(m.timed, leastPace)
	}
	if pace := m.Pace(); pace < busy {
		now = max(pace, leastPace)
	}
	return timed, now
}

// Busy says what other work does to this machine; "" if nothing notable.
func (m *Machine) Busy() string {
	const text = "other work takes a part of this machine: its cores compute at %.0f %% of the rate that they were probed at; %s"
	switch _, now := m.Paces(); {
	case m.pace > 0 && m.pace < busy:
		return fmt.Sprintf(text, 100*m.pace, "the timings of this hour are used, and not kept")
	case now < 1:
		return fmt.Sprintf(text, 100*now, "while that lasts, steps take as much longer than the model says")
	}
	return ""
}

// ForgetTimes drops operator times, so that they are measured again: the load of a
// shared machine changes within minutes.
func (m *Machine) ForgetTimes() {
	if !m.described {
		m.Hardware.Times = nil
	}
}

// diskMeasured reports whether the description has a disk tier.
func (m *Machine) diskMeasured() bool {
	return m.Hardware.Link(device.DiskTier, device.HostTier) != nil
}

// Forget removes all descriptions from the cache.
func Forget() error {
	dir, err := CacheDir()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "hardware-*.json"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}
