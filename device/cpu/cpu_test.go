package cpu

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

func newDevice(t *testing.T, o Options, sizes ...int64) *Device {
	t.Helper()
	if o.DiskPath == "" {
		o.DiskPath = filepath.Join(t.TempDir(), "disk")
	}
	d := New(o)
	for tier, n := range sizes {
		if err := d.Reserve(device.Tier(tier), n); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func operand(t device.Tier, addr int64, rows, cols, stride int) device.Operand {
	return device.Operand{Tier: t, DType: graph.F32, Addr: addr, Rows: rows, Cols: cols, Stride: stride}
}

func copyCall(s device.Stream, dst, src device.Operand) device.Call {
	return device.Call{Op: graph.Copy, Stream: s, Args: []device.Operand{dst, src}}
}

// round runs one call by itself.
func round(t *testing.T, d *Device, c device.Call) (device.Span, error) {
	t.Helper()
	spans := make([]device.Span, 1)
	n, err := d.Prepare([]device.Call{c}, spans)
	if err != nil {
		t.Fatal(err)
	}
	d.Launch(n)
	err = d.Sync()
	return spans[0], err
}

// TestDiskModel: the disk tier behaves as a plain array of bytes under reads
// and writes of any alignment, through the page cache and past it.
func TestDiskModel(t *testing.T) {
	const size = 5*bounceLen + 3*pageSize
	dir := t.TempDir()
	path := filepath.Join(dir, "disk")
	modes := map[string]func(d *disk){"as opened": func(*disk) {}, "aligned": func(d *disk) { d.direct = true }, "plain": func(d *disk) { d.direct = false }}
	for name, mode := range modes {
		d, err := openDisk(path, size)
		if err != nil {
			t.Fatal(err)
		}
		if name == "plain" && d.direct { // plain transfers need a plain file
			_ = d.close()
			f, err := os.Create(filepath.Join(t.TempDir(), "plain"))
			if err != nil {
				t.Fatal(err)
			}
			if err := allocateByWriting(f, size); err != nil {
				t.Fatal(err)
			}
			d = &disk{file: f, size: size}
		}
		mode(d)
		t.Logf("%s: direct %v", name, d.direct)
		r := rand.New(rand.NewPCG(1, 1))
		model, a := make([]byte, size), d.access(new(Meter))
		if err := a.Write(model, 0); err != nil {
			t.Fatal(err)
		}
		memory := alignedBytes(size)
		for range 200 {
			at, n := r.IntN(size), 1+r.IntN(1<<uint(1+r.IntN(22)))
			if r.IntN(2) == 0 {
				at &^= pageSize - 1
			}
			n = min(n, size-at)
			skip := r.IntN(2) * r.IntN(pageSize)
			p := memory[min(skip, size-n):][:n]
			if r.IntN(2) == 0 {
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				if err := a.Write(p, int64(at)); err != nil {
					t.Fatal(err)
				}
				copy(model[at:], p)
			} else if err := a.Read(p, int64(at)); err != nil {
				t.Fatal(err)
			} else if string(p) != string(model[at:at+n]) {
				t.Fatalf("%s: read of %d bytes at %d differs", name, n, at)
			}
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: a file is still there: %v %v", name, left, err)
		}
	}
}

// TestDiskApart: two devices that are given the same path, such as those of plans that are tried in
// turn, have separate files.
func TestDiskApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	var a [2]*DiskAccess
	for i := range a {
		d, err := openDisk(path, pageSize)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		a[i] = d.access(new(Meter))
	}
	for i := range a {
		if err := a[i].Write(bytes.Repeat([]byte{byte(i + 1)}, pageSize), 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range a {
		p := make([]byte, pageSize)
		if err := a[i].Read(p, 0); err != nil || p[0] != byte(i+1) || p[pageSize-1] != byte(i+1) {
			t.Errorf("file %d has %d ... %d (%v)", i, p[0], p[pageSize-1], err)
		}
	}
}

func TestArenaAligned(t *testing.T) {
	for _, n := range []int64{1, pageSize + 1, hugePage, 3*hugePage + 5} {
		a, m, err := mapArena(n)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(a)) != n || uintptr(unsafe.Pointer(&a[0]))%hugePage != 0 {
			t.Errorf("arena of %d bytes at %p, want %d at a multiple of 2 MiB", len(a), &a[0], n)
		}
		a[n-1] = 1
		if err := unmapArena(m); err != nil {
			t.Error(err)
		}
	}
}

// TestReserveRefuses: what is not available is an error at the start.
func TestReserveRefuses(t *testing.T) {
	d := newDevice(t, Options{}, 1<<20)
	for name, err := range map[string]error{
		"twice":      d.Reserve(device.DeviceTier, 1),
		"negative":   d.Reserve(device.HostTier, -1),
		"no tier":    d.Reserve(device.NumTiers, 1),
		"memory":     d.Reserve(device.HostTier, 1<<52),
		"disk":       d.Reserve(device.DiskTier, 1<<52),
		"everything": d.Reserve(device.HostTier, math.MaxInt64),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	e := newDevice(t, Options{DiskPath: filepath.Join(os.DevNull, "x")})
	if e.Reserve(device.DiskTier, 1) == nil {
		t.Error("a disk tier below a file was accepted")
	}
	if d.Reserve(device.HostTier, 1<<16) != nil {
		t.Error("a refused tier cannot be reserved smaller")
	}
}

// TestPaint: Highest finds the last byte that a call wrote, whatever the tier.
func TestPaint(t *testing.T) {
	const size = 3*bounceLen + 4096
	d := newDevice(t, Options{}, size, size, size)
	for tier := range device.NumTiers {
		if err := d.Paint(tier, 0xA5); err != nil {
			t.Fatal(err)
		}
		if n, err := d.Highest(tier, 0xA5); n != 0 || err != nil {
			t.Fatalf("%s: fresh paint differs at %d, %v", tier, n, err)
		}
		for _, at := range []int64{0, 77, bounceLen - 1, bounceLen, size - 1} {
			if err := d.Write(tier, at, []byte{1}); err != nil {
				t.Fatal(err)
			}
			if n, err := d.Highest(tier, 0xA5); n != at+1 || err != nil {
				t.Errorf("%s: Highest = %d, %v; want %d", tier, n, err, at+1)
			}
		}
	}
	for _, at := range []int64{-1, size, math.MaxInt64} {
		if d.Read(device.HostTier, at, make([]byte, 1)) == nil || d.Write(device.DiskTier, at, make([]byte, 1)) == nil {
			t.Errorf("access at %d was accepted", at)
		}
	}
}

// TestRate: a throttled copy takes at least the link's time. (Benchmarks have to show that it takes
// hardly more.)
func TestRate(t *testing.T) {
	const n, rate = 1 << 20, 1e8
	var o Options
	o.Rate[device.HostToDev] = rate
	d := newDevice(t, o, n, n)
	c := copyCall(device.HostToDev, operand(device.DeviceTier, 0, 1, n/4, n/4), operand(device.HostTier, 0, 1, n/4, n/4))
	span, err := round(t, d, c)
	if err != nil {
		t.Fatal(err)
	}
	if got := span.End - span.Start; got < n/rate {
		t.Errorf("%d bytes at %g bytes/s took %v s", n, rate, got)
	}
	// Copies in a row make up for each other's late ends, and gain nothing by it.
	spans := make([]device.Span, 4)
	first, err := d.Prepare([]device.Call{c, c, c, c}, spans)
	if err != nil {
		t.Fatal(err)
	}
	for i := range spans {
		d.Launch(first + i)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := spans[3].End - spans[0].Start; got < 4*n/rate {
		t.Errorf("four times %d bytes at %g bytes/s took %v s", n, rate, got)
	}
}

// TestDiskError: an I/O error in mid-run ends the round with the call's name.
func TestDiskError(t *testing.T) {
	d := newDevice(t, Options{}, 0, 1<<20, 1<<20)
	_ = d.disk.file.Close()
	_, err := round(t, d, copyCall(device.DiskWrite, operand(device.DiskTier, 0, 1, 1024, 1024), operand(device.HostTier, 0, 1, 1024, 1024)))
	var c *device.CallError
	if !errors.As(err, &c) || c.Op != graph.Copy || !errors.Is(err, os.ErrClosed) {
		t.Errorf("error is %v", err)
	}
}

// TestMisuse: launches and waits that could only hang are errors of the round.
func TestMisuse(t *testing.T) {
	d := newDevice(t, Options{}, 1<<16, 1<<16)
	o := operand(device.DeviceTier, 0, 1, 8, 8)
	n, err := d.Prepare([]device.Call{copyCall(device.Compute, o, o), copyCall(device.Compute, o, o)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	misuses := map[string]func(){
		"launched twice":    func() { d.Launch(n); d.Launch(n) },
		"not been launched": func() { d.Wait(device.HostToDev, n+1) },
		"are prepared":      func() { d.Launch(n + 2) },
	}
	for want, do := range misuses {
		do()
		if err := d.Sync(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	d.Launch(n)
	d.Wait(device.HostToDev, n)
	if err := d.Sync(); err != nil {
		t.Errorf("the round after an error fails too: %v", err)
	}
}

func BenchmarkReserve(b *testing.B) {
	for b.Loop() {
		a, m, err := mapArena(1 << 30)
		if err != nil {
			b.Fatal(err)
		}
		_ = a
		_ = unmapArena(m)
	}
}

// BenchmarkCopy is one copy between tiers of 64 MiB.
func BenchmarkCopy(b *testing.B) {
	const n = 64 << 20
	for _, c := range []struct {
		stream   device.Stream
		dst, src device.Tier
	}{
		{device.HostToDev, device.DeviceTier, device.HostTier},
		{device.DiskWrite, device.DiskTier, device.HostTier},
		{device.DiskRead, device.HostTier, device.DiskTier},
	} {
		b.Run(c.stream.String(), func(b *testing.B) {
			d := New(Options{DiskPath: filepath.Join(b.TempDir(), "disk")})
			defer d.Close()
			for t := range device.NumTiers {
				if err := d.Reserve(t, n); err != nil {
					b.Fatal(err)
				}
			}
			if err := d.Paint(device.DiskTier, 1); err != nil { // blocks never written read as zeros, without a disk
				b.Fatal(err)
			}
			k, err := d.Prepare([]device.Call{copyCall(c.stream, operand(c.dst, 0, 1, n/4, n/4), operand(c.src, 0, 1, n/4, n/4))}, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(n)
			for b.Loop() {
				d.Launch(k)
				if err := d.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHandOff is the cost of an instruction on one stream and of a wait
// between two, without any work.
func BenchmarkHandOff(b *testing.B) {
	d := New(Options{})
	defer d.Close()
	if err := d.Reserve(device.DeviceTier, 4096); err != nil {
		b.Fatal(err)
	}
	const n = 1000
	var calls []device.Call
	o := operand(device.DeviceTier, 0, 1, 8, 8)
	for i := range 2 * n {
		s := device.Compute
		if i >= n && i%2 == 1 {
			s = device.HostToDev
		}
		calls = append(calls, copyCall(s, o, o))
	}
	first, err := d.Prepare(calls, nil)
	if err != nil {
		b.Fatal(err)
	}
	run := func(b *testing.B, from int, wait bool) {
		for b.Loop() {
			for i := from; i < from+n; i++ {
				if wait && i > from {
					d.Wait(calls[i].Stream, first+i-1)
				}
				d.Launch(first + i)
			}
			if err := d.Sync(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/call")
	}
	b.Run("one stream", func(b *testing.B) { run(b, 0, false) })
	b.Run("ping-pong", func(b *testing.B) { run(b, n, true) })
}

// TestSpace: an arena that is resized stays where it is, keeps what both sizes share, and refuses more
// than its address space.
func TestSpace(t *testing.T) {
	const most = 5 * hugePage
	a, err := NewSpace(most - 1)
	if err != nil {
		t.Fatal(err)
	}
	if a.Most() != most || len(a.Bytes()) != 0 {
		t.Errorf("a space for %d bytes has %d", a.Most(), len(a.Bytes()))
	}
	var first *byte
	r := rand.New(rand.NewPCG(1, 1))
	had := 0
	for range 50 {
		n := 1 + r.IntN(most)
		if err := a.Resize(int64(n)); err != nil {
			t.Fatal(err)
		}
		b := a.Bytes()
		if len(b) != n || cap(b) != n {
			t.Fatalf("%d bytes of %d", len(b), n)
		}
		if first == nil {
			first = &b[0]
		}
		if &b[0] != first {
			t.Fatal("the arena moved")
		}
		for i := range min(had, n) {
			if b[i] != byte(i*7) {
				t.Fatalf("byte %d of %d, before %d, is lost", i, n, had)
			}
		}
		for i := range b {
			b[i] = byte(i * 7)
		}
		had = n
	}
	for _, n := range []int64{-1, most + 1} {
		if a.Resize(n) == nil || len(a.Bytes()) != had {
			t.Errorf("%d bytes in a space of %d", n, most)
		}
	}
	if err := a.Resize(0); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}
