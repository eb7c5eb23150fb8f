package remote

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
)

const arena = 1 << 16

// between says which stream moves data between two tiers.
var between = map[[2]device.Tier]device.Stream{
	{device.DeviceTier, device.DeviceTier}: device.Compute,
	{device.HostTier, device.HostTier}:     device.HostCompute,
	{device.HostTier, device.DeviceTier}:   device.HostToDev,
	{device.DeviceTier, device.HostTier}:   device.DevToHost,
	{device.DiskTier, device.HostTier}:     device.DiskRead,
	{device.HostTier, device.DiskTier}:     device.DiskWrite,
}

// randomCalls are copies and sums of floats within and between all tiers.
func randomCalls(r *rand.Rand, n int) (list []device.Call) {
	for len(list) < n {
		from, to := device.Tier(r.IntN(3)), device.Tier(r.IntN(3))
		s, ok := between[[2]device.Tier{from, to}]
		size := 1 + r.IntN(1024)
		dst, src := operand(to, int64(r.IntN(8)*4096), size), operand(from, int64((8+r.IntN(8))*4096), size)
		if !ok {
			continue
		}
		c := copyCall(s, dst, src)
		if from == to {
			c.Op = []graph.Op{graph.Copy, graph.Add}[r.IntN(2)]
		}
		list = append(list, c)
	}
	return list
}

// drive runs calls one after the other and returns the arenas' bytes.
func drive(t *testing.T, d device.Device, seed uint64) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	for tier := range device.NumTiers {
		floats := make([]byte, arena)
		for i := range floats {
			floats[i] = byte(r.Uint32())
			if i%4 == 3 { // of any size, but finite
				floats[i] &= 0x3f
			}
		}
		if err := d.Write(tier, 0, floats); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		calls := randomCalls(r, 1+r.IntN(400))
		first, err := d.Prepare(calls, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range calls {
			if i > 0 {
				d.Wait(c.Stream, first+i-1)
			}
			d.Launch(first + i)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	all := make([]byte, int(device.NumTiers)*arena)
	for tier := range device.NumTiers {
		if err := d.Read(tier, 0, all[int(tier)*arena:][:arena]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestSame: a remote device computes the bytes that a local one does, and counts the
// same.
func TestSame(t *testing.T) {
	h := newHost(t, nil)
	for seed := range uint64(5) {
		local := cpu.New(cpu.Options{Workers: 2, DiskPath: filepath.Join(t.TempDir(), "disk")})
		for tier := range device.NumTiers {
			if err := local.Reserve(tier, arena); err != nil {
				t.Fatal(err)
			}
		}
		remote := connect(t, h.addr, Place{}, arena, arena, arena)
		if !bytes.Equal(drive(t, local, seed), drive(t, remote, seed)) {
			t.Errorf("seed %d: the bytes differ", seed)
		}
		a, b := local.Stats(), remote.Stats()
		a.Worked, b.Worked = [device.NumStreams]float64{}, [device.NumStreams]float64{} // is time
		if a != b {
			t.Errorf("seed %d: counted %v and %v", seed, a, b)
		}
		want := local.Info()
		want.Host = h.addr
		if remote.Info() != want {
			t.Errorf("%v, want %v", remote.Info(), want)
		}
		if err := errors.Join(local.Close(), remote.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestBulk: reads and writes of any length arrive whole, as do zeros.
func TestBulk(t *testing.T) {
	h := newHost(t, nil)
	const size = 2*pieceBytes + 12345
	d := connect(t, h.addr, Place{}, size)
	r := rand.New(rand.NewPCG(1, 2))
	model := make([]byte, size)
	for i := range model {
		model[i] = byte(r.Uint32())
	}
	if err := d.Write(device.DeviceTier, 0, model); err != nil {
		t.Fatal(err)
	}
	for range 60 {
		at := r.IntN(size)
		n := min(r.IntN(1<<r.IntN(24)), size-at)
		switch r.IntN(4) {
		case 3:
			period := 1 + r.IntN(min(n, pieceBytes)+1)
			if period > n {
				continue
			}
			for i := period; i < n; i++ {
				model[at+i] = model[at+i-period]
			}
			if err := d.Repeat(device.DeviceTier, int64(at), int64(period), int64(n)); err != nil {
				t.Fatal(err)
			}
		case 0:
			p := model[at : at+n]
			for i := range p {
				p[i] ^= 0x55
			}
			if err := d.Write(device.DeviceTier, int64(at), p); err != nil {
				t.Fatal(err)
			}
		case 1:
			clear(model[at : at+n])
			if err := d.Clear(device.DeviceTier, int64(at), int64(n)); err != nil {
				t.Fatal(err)
			}
		default:
			p := make([]byte, n)
			if err := d.Read(device.DeviceTier, int64(at), p); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p, model[at:at+n]) {
				t.Fatalf("%d bytes at %d differ", n, at)
			}
		}
	}
}

// tuned is a device that can tune calls, and is told to do so before anything else.
type tuned struct {
	*counted
	calls  []device.Call
	memory int64
	fails  error
}

func (d *tuned) Tune(calls []device.Call, memory int64) error {
	d.calls, d.memory = calls, memory
	return d.fails
}

// TestTune: a device on another host tunes the calls there, also thousands, and says why it cannot: also since a
// round is under way, or since an earlier write failed. One that never can leaves them as they are.
func TestTune(t *testing.T) {
	calls := randomCalls(rand.New(rand.NewPCG(1, 1)), 2000)
	var there *tuned
	h := newHost(t, func(d device.Device) device.Device {
		there = &tuned{counted: d.(*counted)}
		return there
	})
	d := connect(t, h.addr, Place{})
	check(t, d.Tune(calls, 1<<33))
	if !reflect.DeepEqual(there.calls, calls) || there.memory != 1<<33 {
		t.Errorf("%d other calls were tuned, or in %d bytes", len(there.calls), there.memory)
	}
	there.fails = &device.CallError{Call: 3, Op: graph.Add, Err: errors.New("too hot")}
	var e *device.CallError
	if err := d.Tune(calls, 1<<33); !errors.As(err, &e) || e.Call != 3 || !strings.Contains(err.Error(), "too hot") {
		t.Errorf("error is %v", err)
	}
	check(t, d.Reserve(device.DeviceTier, arena))
	there.calls, there.fails = nil, nil
	check(t, d.Write(device.DeviceTier, arena, []byte{1}))
	if err := d.Tune(calls, 1); err == nil || !strings.Contains(err.Error(), "arena") || there.calls != nil {
		t.Errorf("after a write outside of the arena, %d calls are tuned, %v", len(there.calls), err)
	}
	copied := device.Operand{DType: graph.F32, Rows: 1, Cols: 4, Stride: 4}
	first, err := d.Prepare([]device.Call{{Op: graph.Copy, Args: []device.Operand{copied, copied}}}, nil)
	check(t, err)
	d.Launch(first)
	if err := d.Tune(calls, 1); err == nil || !strings.Contains(err.Error(), "round is under way") || there.calls != nil {
		t.Errorf("in a round, %d calls are tuned, %v", len(there.calls), err)
	}
	check(t, d.Sync())
	check(t, d.Tune(calls, 1))
	check(t, connect(t, newHost(t, nil).addr, Place{}).Tune(calls, 1))
}

// TestErrors: errors are those of a local device: their types, the calls that they name and their
// texts. The next round is not spoilt by them.
func TestErrors(t *testing.T) {
	h := newHost(t, nil)
	o := operand(device.DeviceTier, 0, 8)
	tokens := device.Operand{DType: graph.I32, Addr: 4096, Rows: 1, Cols: 1, Stride: 1}
	calls := []device.Call{
		copyCall(device.Compute, o, o), copyCall(device.Compute, o, o),
		{Op: graph.Embed, Attr: graph.Attr{Seq: 1}, Args: []device.Operand{operand(device.DeviceTier, 8192, 64), tokens, operand(device.DeviceTier, 0, 64)}},
	}
	for name, do := range map[string]func(d device.Device) error{
		"twice":    func(d device.Device) error { return d.Reserve(device.DeviceTier, 1) },
		"no tier":  func(d device.Device) error { return d.Reserve(device.NumTiers, 1) },
		"negative": func(d device.Device) error { return d.Reserve(device.HostTier, -1) },
		"a bad call": func(d device.Device) error {
			_, err := d.Prepare([]device.Call{calls[0], {Op: graph.Add}}, nil)
			return err
		},
		"not an operator": func(d device.Device) error {
			_, err := d.Prepare([]device.Call{{Op: graph.NumOps + 3}}, nil)
			return err
		},
		"outside":      func(d device.Device) error { return d.Read(device.DeviceTier, arena-1, make([]byte, 2)) },
		"negative too": func(d device.Device) error { return d.Read(device.DeviceTier, -1, make([]byte, 2)) },
		"a write": func(d device.Device) error {
			return errors.Join(d.Write(device.DeviceTier, math.MaxInt64, make([]byte, 2)), d.Sync())
		},
		"a panic":             func(d device.Device) error { d.Launch(0); d.Launch(2); d.Launch(1); return d.Sync() },
		"launched twice":      func(d device.Device) error { d.Launch(0); d.Launch(0); return d.Sync() },
		"not been launched":   func(d device.Device) error { d.Wait(device.HostToDev, 1); return d.Sync() },
		"not prepared":        func(d device.Device) error { d.Launch(3); return d.Sync() },
		"less than nothing":   func(d device.Device) error { d.Launch(-1); return d.Sync() },
		"wait for what isn't": func(d device.Device) error { d.Wait(device.HostToDev, 1<<40); return d.Sync() },
	} {
		t.Run(name, func(t *testing.T) {
			local := cpu.New(cpu.Options{Workers: 2})
			defer local.Close()
			if err := local.Reserve(device.DeviceTier, arena); err != nil {
				t.Fatal(err)
			}
			remote := connect(t, h.addr, Place{}, arena)
			var errs [2]error
			for i, d := range []device.Device{local, remote} {
				if err := d.Write(0, 4096, []byte{0, 0, 0, 1}); err != nil { // a token that is out of range
					t.Fatal(err)
				}
				if _, err := d.Prepare(calls, nil); err != nil {
					t.Fatal(err)
				}
				errs[i] = do(d)
				d.Launch(0)
				if err := d.Sync(); err != nil {
					t.Errorf("the next round: %v", err)
				}
			}
			if errs[0] == nil || errs[1] == nil {
				t.Fatalf("errors are %v and %v", errs[0], errs[1])
			}
			var a, b *device.CallError
			if errors.As(errs[0], &a) != errors.As(errs[1], &b) || a != nil && (a.Call != b.Call || a.Op != b.Op || a.Error() != b.Error()) {
				t.Errorf("%v and %v", errs[0], errs[1])
			}
			if name != "wait for what isn't" && !strings.HasSuffix(errs[1].Error(), errs[0].Error()) {
				t.Errorf("%q and %q", errs[0], errs[1])
			}
		})
	}
}

// TestSpans: the spans of a round lie in the time that the leader saw it take, in the
// order of the calls, and stay as they are without a clock.
func TestSpans(t *testing.T) {
	h := newHost(t, nil)
	origin := time.Now().Add(-time.Hour)
	d, err := Open(h.addr, testKey, Place{}, origin)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Reserve(device.DeviceTier, 1<<20); err != nil {
		t.Fatal(err)
	}
	big := operand(device.DeviceTier, 0, 1<<18)
	calls := []device.Call{copyCall(device.Compute, big, big), copyCall(device.DevToHost, big, big), copyCall(device.Compute, big, big)}
	spans := make([]device.Span, len(calls))
	if _, err := d.Prepare(calls[:1], nil); err != nil {
		t.Fatal(err)
	}
	first, err := d.Prepare(calls, spans)
	if err != nil {
		t.Fatal(err)
	}
	run := func() (from, to float64) {
		from = time.Since(origin).Seconds()
		d.Launch(0)
		for i, c := range calls {
			if i > 0 {
				d.Wait(c.Stream, first+i-1)
			}
			d.Launch(first + i)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		return from, time.Since(origin).Seconds()
	}
	for range 5 {
		from, to := run()
		const slack = 0.05 // the answer may be late on a busy machine
		last := from - slack
		for i, s := range spans {
			if s.Start < last || s.End < s.Start || s.End > to+slack {
				t.Errorf("call %d ran from %v to %v, of %v to %v", i, s.Start, s.End, from, to)
			}
			last = s.End
		}
	}
	before := [3]device.Span(spans)
	d.SetClock(false)
	if run(); before != [3]device.Span(spans) {
		t.Error("without a clock, spans change")
	}
	d.SetClock(true)
	if run(); before == [3]device.Span(spans) {
		t.Error("with the clock on again, spans stay")
	}
}
