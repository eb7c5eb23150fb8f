package remote

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/build"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
)

// tiny is a program of two copies, the second of which waits for the first.
const tiny = `athanor-program 1
name "two copies"
rank 0
plan_hash ""
row_unit 0
batch_row 0
capacity 65536 65536 0
height 64 64 0
bound 64 64 0
buffer a device weights f32 1x16 size=64 align=64 addr=0 persistent
buffer b host weights f32 1x16 size=64 align=64 addr=0 persistent
buffer result host weights f32 1x2 size=8 align=4 addr=4 persistent
i0 copy(b, a) d2h key=0,0,-,copy
i1 copy(a, b) h2d key=0,0,-,copy wait=i0
end
`

// TestLoad: a process runs a program that it was given once, again and again, without allocating anything, with what its calls
// do as the result; a program of another build is refused, with both builds named, as is one that cannot be read or is
// too large for the budget, and then the budget is whole and the device goes on.
func TestLoad(t *testing.T) {
	p, err := program.Parse(tiny)
	check(t, err)
	tiny := p.String()
	h := newHostWith(t, nil, Limits{Memory: 64 << 10, Ranks: 1})
	d := connect(t, h.addr, Place{}, 64, 64)
	load := func(text string) error {
		d.out = binary.LittleEndian.AppendUint32(append(d.out, byte(doLoad)), uint32(len(text)))
		return d.ask([]byte(text))
	}
	for _, c := range []struct{ text, why string }{
		{"athanor v9\n" + tiny, "rank 0 is another build, \"athanor v9\", than this process, \"" + build.Text()},
		{build.Text() + "\n" + tiny[:100], "the program is not safe to run"},
		{build.Text() + "\n" + strings.Repeat(" ", 8<<10), "a program takes"},
	} {
		if err := load(c.text); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%v, not %q", err, c.why)
		}
	}
	spans, result := make([]device.Span, 2), make([]byte, 8)
	first, err := d.Load(tiny, spans)
	check(t, err)
	for want := range byte(3) {
		check(t, d.Write(device.DeviceTier, 0, []byte{want, 1, 2, 3, want + 1}))
		d.Run(first)
		check(t, d.Sync())
		if len(d.known) != 1 || d.known[0].bytes != 8 {
			t.Fatalf("results %v", d.known)
		}
		now, then := make([]byte, 8), make([]byte, 8)
		check(t, d.Read(device.HostTier, 4, now))
		check(t, d.Write(device.HostTier, 32, []byte{1}))
		check(t, d.Read(device.HostTier, 4, then)) // from there
		if !bytes.Equal(now, then) || now[0] != want+1 || len(d.known) > 0 {
			t.Errorf("%v, then %v", now, then)
		}
		got := make([]byte, 4)
		check(t, d.Read(device.HostTier, 0, got))
		if got[0] != want || spans[1].Start < spans[0].End || spans[0].End == 0 {
			t.Errorf("%v, %v", got, spans)
		}
	}
	if n := testing.AllocsPerRun(20, func() {
		d.Run(first)
		if d.Sync() != nil || d.Read(device.HostTier, 4, result) != nil {
			t.Error("a step fails")
		}
	}); n > 0 {
		t.Errorf("a step makes %v allocations", n)
	}
	d.Run(first + 1)
	if err := d.Sync(); err == nil || !strings.Contains(err.Error(), "no program begins with call 1") {
		t.Error(err)
	}
}

// TestSave: a process writes what its rank holds to a file of the run's folder, and returns the checksum; what it does not
// hold, files that are not there, and paths that lead out of the folder are refused, and then nothing is written.
func TestSave(t *testing.T) {
	p, err := program.Parse(strings.Replace(tiny, "i0 copy", "home 5 p a\ni0 copy", 1))
	check(t, err)
	h := newHost(t, nil)
	d := connect(t, h.addr, Place{}, 64, 64)
	first, err := d.Load(p.String(), make([]device.Span, 2))
	check(t, err)
	values := make([]byte, 64)
	for i := range values {
		values[i] = byte(i)
	}
	check(t, d.Write(device.DeviceTier, 0, values))
	check(t, os.Mkdir(filepath.Join(h.dir, "sub"), 0o755))
	outside := filepath.Join(t.TempDir(), "outside")
	check(t, os.WriteFile(filepath.Join(h.dir, "sub", "file"), []byte("0123456789"), 0o644))
	check(t, os.WriteFile(outside, []byte("another"), 0o644))
	check(t, os.Symlink(outside, filepath.Join(h.dir, "link")))
	mark, err := paths.Mark(filepath.Join(h.dir, "sub", "file"))
	check(t, err)
	for name, want := range map[string]bool{"sub/file": true, "sub/none": false, "../x": false, outside: false} {
		if got, err := d.Shares(name, mark); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	held := device.StateRange{Param: 5, As: graph.F32, First: 2, N: 3}
	d.Save(first, "sub/file", device.FileBlock{Offset: 4}, held)
	sums, err := d.Saved()
	check(t, err)
	if want := crc32.Checksum(values[8:20], crc32.MakeTable(crc32.Castagnoli)); len(sums) != 1 || sums[0] != want {
		t.Errorf("%08x, want %08x", sums, want)
	}
	text, err := os.ReadFile(filepath.Join(h.dir, "sub", "file"))
	check(t, err)
	if string(text) != "0123"+string(values[8:20]) {
		t.Errorf("%q", text)
	}
	d.Fill(first, "sub/file", 4, device.StateRange{Param: 5, As: graph.F32, First: 9, N: 3}) // what was saved, elsewhere
	_, err = d.Saved()
	check(t, err)
	got := make([]byte, 64)
	check(t, d.Read(device.DeviceTier, 0, got))
	copy(values[36:48], values[8:20])
	if !bytes.Equal(got, values) {
		t.Errorf("%v, want %v", got, values)
	}
	values = make([]byte, 64)
	for i := range 16 {
		binary.LittleEndian.PutUint32(values[4*i:], math.Float32bits(1))
	}
	d.Draw(first, device.Beginning{Init: uint8(model.Ones)}, device.StateRange{Param: 5, N: 16})
	_, err = d.Saved()
	check(t, err)
	check(t, d.Read(device.DeviceTier, 0, got))
	if !bytes.Equal(got, values) {
		t.Errorf("%v, want ones", got)
	}
	d.Draw(first, device.Beginning{}, device.StateRange{Param: 5, N: 1 << 30})
	if _, err := d.Saved(); err == nil {
		t.Error("a range of any size is drawn")
	}
	check(t, d.Write(device.DeviceTier, 0, slices.Repeat([]byte{9}, 64)))
	for file, what := range map[string]device.StateRange{"sub/none": held, "../outside": held, "sub/file": {Param: 5, As: graph.F32, N: 10}} {
		d.Fill(first, file, 0, what)
		if _, err := d.Saved(); err == nil {
			t.Errorf("%s is read", file)
		}
	}
	for _, c := range []struct {
		first int
		file  string
		what  device.StateRange
	}{
		{first, "sub/none", held}, {first, "../outside", held}, {first, outside, held}, {first, "link", held}, {first + 1, "sub/file", held},
		{first, "sub/file", device.StateRange{Param: 5, As: graph.F32, First: 14, N: 3}},
		{first, "sub/file", device.StateRange{Param: 4, As: graph.F32, N: 3}},
		{first, "sub/file", device.StateRange{Param: 5, As: graph.BF16, N: 3}},
		{first, "sub/file", device.StateRange{Param: 5, As: 200, N: 3}},
	} {
		d.Save(c.first, c.file, device.FileBlock{}, c.what)
		if sums, err := d.Saved(); err == nil {
			t.Errorf("%+v: %v", c, sums)
		}
	}
	if again, err := os.ReadFile(filepath.Join(h.dir, "sub", "file")); err != nil || string(again) != string(text) {
		t.Errorf("%q, %v", again, err)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "another" {
		t.Errorf("%q, %v", text, err)
	}
	d.Save(first, "sub/none", device.FileBlock{}, held)
	if _, err := d.Saved(); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%v is no error of a file", err)
	}
	if _, err := d.Saved(); err != nil {
		t.Error(err)
	}
}
