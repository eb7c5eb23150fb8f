package remote

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/build"
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
i0 copy(b, a) d2h key=0,0,-,copy
i1 copy(a, b) h2d key=0,0,-,copy wait=i0
end
`

// TestLoad: a process runs a program that it was given once, again and again, and its answers are those of calls that are
// launched one by one; a program of another build is refused, with both builds named, as is one that cannot be read or is
// too large for the budget, and then the budget is whole and the device goes on.
func TestLoad(t *testing.T) {
	p, err := program.Parse(tiny)
	check(t, err)
	tiny := p.String()
	h := newHostWith(t, nil, Limits{Memory: 64 << 10, Ranks: 1})
	d := connect(t, h.addr, Place{}, 64, 64)
	load := func(text string) error {
		d.out = binary.LittleEndian.AppendUint32(append(d.out, byte(doLoad)), uint32(len(text)))
		return d.askWith([]byte(text))
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
	spans := make([]device.Span, 2)
	first, err := d.Load(tiny, spans)
	check(t, err)
	for want := range byte(3) {
		check(t, d.Write(device.DeviceTier, 0, []byte{want, 1, 2, 3}))
		d.Run(first)
		check(t, d.Sync())
		got := make([]byte, 4)
		check(t, d.Read(device.HostTier, 0, got))
		if got[0] != want || spans[1].Start < spans[0].End || spans[0].End == 0 {
			t.Errorf("%v, %v", got, spans)
		}
	}
	d.Run(first + 1)
	if err := d.Sync(); err == nil || !strings.Contains(err.Error(), "no program begins with call 1") {
		t.Error(err)
	}
}
