package remote

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// script is a connection whose other side has already said everything.
type script struct {
	net.Conn
	in *bytes.Reader
}

func (s *script) Read(p []byte) (int, error)      { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error)     { return len(p), nil }
func (s *script) SetReadDeadline(time.Time) error { return nil }
func (s *script) Close() error                    { return nil }

// strict is a device without memory that insists on the contract of device.Device.
type strict struct {
	t        testing.TB
	arenas   [device.NumTiers]int64
	calls    []device.Call
	launched map[int]bool
	round    bool
	aborted  error
	closed   bool
}

func (d *strict) insist(ok bool, what string) {
	if !ok || d.closed {
		d.t.Errorf("the device is told %s (closed: %v)", what, d.closed)
	}
}

func (d *strict) Info() device.Info { return device.Info{Name: "strict"} }

func (d *strict) Reserve(tier device.Tier, bytes int64) error {
	d.insist(!d.round, "to reserve in a round")
	if err := device.CheckReserve(tier, bytes, d.arenas, len(d.calls)); err != nil || bytes > 1<<24 {
		return errors.Join(err, errors.New("not so much"))
	}
	d.arenas[tier] = bytes
	return nil
}

func (d *strict) Prepare(calls []device.Call, spans []device.Span) (int, error) {
	d.insist(!d.round && (spans == nil || len(spans) == len(calls)), "to prepare in a round")
	for i := range calls {
		if err := device.Check(&calls[i], d.arenas); err != nil {
			return 0, &device.CallError{Call: i, Op: calls[i].Op, Err: err}
		}
	}
	d.calls = append(d.calls, calls...)
	return len(d.calls) - len(calls), nil
}

func (d *strict) Tune([]device.Call, int64) error {
	d.insist(!d.round, "to tune in a round")
	return nil
}

func (d *strict) Launch(n int) {
	d.insist(n >= 0 && n < len(d.calls), fmt.Sprint("to launch ", n))
	d.round, d.launched[n] = true, true
}

func (d *strict) Wait(s device.Stream, n int) {
	d.insist(s < device.NumStreams && d.launched[n], fmt.Sprint("to wait for ", n))
	d.round = true
}

func (d *strict) Sync() error {
	d.insist(true, "to end a round")
	clear(d.launched)
	err := d.aborted
	d.round, d.aborted = false, nil
	return err
}

func (d *strict) Read(tier device.Tier, addr int64, p []byte) error {
	d.insist(!d.round && len(p) <= pieceBytes, "to read or write")
	if tier >= device.NumTiers || addr < 0 || addr > d.arenas[tier]-int64(len(p)) {
		return errors.New("outside")
	}
	return nil
}

func (d *strict) Write(tier device.Tier, addr int64, p []byte) error { return d.Read(tier, addr, p) }

func (d *strict) Abort(err error)  { d.insist(true, "to abort"); d.aborted = err }
func (d *strict) Done(n int) bool  { d.insist(n >= 0 && n < len(d.calls), "to look"); return true }
func (d *strict) Progress() uint64 { d.insist(true, "to look"); return 1 }
func (d *strict) SetClock(bool)    { d.insist(!d.round, "to set the clock") }

func (d *strict) Close() error {
	d.insist(!d.round, "to close in a round")
	d.closed = true
	return nil
}

// tell lets a leader say something to a new device on both connections.
func tell(t testing.TB, control, side []byte) (onControl, onSide error) {
	d := &strict{t: t, launched: map[int]bool{}}
	e := newLease(&script{in: bytes.NewReader(control)}, d, time.Now(), NewBudget(plenty))
	e.side = &script{in: bytes.NewReader(side)}
	close(e.joined)
	onSide = e.watch(bufio.NewReader(bytes.NewReader(side)))
	onControl = e.serve()
	onSide = errors.Join(onSide, e.watch(bufio.NewReader(bytes.NewReader(side))))
	e.end(func(string) {})
	if !d.closed {
		t.Error("the device is not closed")
	}
	return onControl, onSide
}

// frame is a verb with its fields.
func frame(v verb, fields ...any) []byte {
	b := []byte{byte(v)}
	for _, f := range fields {
		b, _ = binary.Append(b, binary.LittleEndian, f)
	}
	return b
}

func prepared(t testing.TB, calls []device.Call) []byte {
	return bytes.Join([][]byte{shipped(t, frame(doTune, uint64(1)), calls), shipped(t, frame(doPrepare, uint8(1)), calls)}, nil)
}

func shipped(t testing.TB, frame []byte, calls []device.Call) []byte {
	b, err := appendCalls(frame, calls)
	check(t, err)
	return b
}

// conversation is what a leader may rightly say.
func conversation(t testing.TB) (control, side []byte) {
	o := operand(device.DeviceTier, 0, 8)
	control = bytes.Join([][]byte{
		frame(doReserve, uint8(0), uint64(4096)), prepared(t, []device.Call{copyCall(device.Compute, o, o), copyCall(device.DevToHost, o, o)}),
		frame(doWrite, uint8(0), uint64(0), uint32(4)), {1, 2, 3, 4}, frame(doClock, uint8(0)), frame(doLaunch, uint32(0)), frame(doWait, uint8(2), uint32(0)),
		frame(doLaunch, uint32(1)), frame(doSync), frame(doRead, uint8(0), uint64(8), uint32(16)), frame(doClear, uint8(0), uint64(8), uint64(16)),
		frame(doRepeat, uint8(0), uint64(8), uint32(5), uint64(70)),
		frame(doStats), frame(doPing), frame(doClose),
	}, nil)
	return control, append(appendFault(frame(doAbort), &device.CallError{Call: 1, Err: errors.New("why")}), byte(doLook))
}

// TestSaid: what a leader must not say ends its lease or its round, and does not reach the device.
func TestSaid(t *testing.T) {
	control, side := conversation(t)
	if a, b := tell(t, control, side); a != nil || b != nil {
		t.Errorf("a conversation ends with %v and %v", a, b)
	}
	for want, text := range map[string][]byte{
		"verb 0":                           {0},
		fmt.Sprint("verb ", uint8(doLook)): {byte(doLook)},
		"verb 255":                         {255},
		"hung up":                          frame(doLaunch, uint16(0)),
		"bytes at once":                    frame(doWrite, uint8(0), uint64(0), uint32(pieceBytes+1)),
		"4294967295 bytes at":              frame(doRead, uint8(0), uint64(0), uint32(1<<32-1)),
		"a message of":                     frame(doPrepare, uint8(0), uint32(1), uint32(callsBytes+1)),
		"of 67108865 bytes is too long":    frame(doTune, uint64(1), uint32(1), uint32(callsBytes+1)),
		"a malformed message":              append(frame(doPrepare, uint8(0), uint32(1), uint32(5)), 1, 2, 3, 4, 5),
	} {
		if err, _ := tell(t, text, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	if _, err := tell(t, nil, frame(doAbort, uint32(1<<31))); err == nil {
		t.Error("a huge error was read")
	}
	// Within a round, and out of range: strict judges.
	for _, v := range []verb{doReserve, doPrepare, doTune, doRead, doWrite, doClear, doRepeat, doClock, doStats, doPing, doClose} {
		text := append(frame(doLaunch, uint32(9)), byte(v))
		_, _ = tell(t, append(text, make([]byte, 40)...), nil)
	}
}

// FuzzServe: whatever a leader with the key says, only what the device's contract permits reaches the
// device; it is closed at the end, and little memory is used.
func FuzzServe(f *testing.F) {
	control, side := conversation(f)
	f.Add(control, side)
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 { // what a flipped byte makes of it
		other := bytes.Clone(control)
		other[r.IntN(len(other))] = byte(r.Uint32())
		f.Add(other, side)
		cut := r.IntN(len(side))
		f.Add(control[r.IntN(len(control)):], append(bytes.Clone(side[:cut]), byte(r.Uint32())))
	}
	f.Fuzz(func(t *testing.T, control, side []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = tell(t, control, side)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%d bytes were allocated for %d", n, len(control)+len(side))
		}
	})
}

// TestFaults: errors arrive with their texts, their types and the contents of these.
func TestFaults(t *testing.T) {
	plain := errors.New("plain")
	call := &device.CallError{Call: 7, Op: graph.Add, Err: plain}
	peer := &device.PeerError{Rank: 3, Call: 4, Op: graph.Send, Why: "gone"}
	for _, err := range []error{
		plain, call, peer, fmt.Errorf("prepare: %w", call), fmt.Errorf("so: %w", peer),
		&device.CallError{Call: 1, Op: graph.Recv, Err: peer}, fmt.Errorf("c: %w", device.ErrMemory), fmt.Errorf("a: %w", &device.CallError{Err: fmt.Errorf("b: %w", peer)}),
	} {
		refused, failed := readAnswer(bytes.NewReader(appendAnswer(nil, err)), make([]byte, 1))
		check(t, failed)
		if refused.Error() != err.Error() || fmt.Sprintf("%T", err)[:8] == "*device." && fmt.Sprintf("%T", err) != fmt.Sprintf("%T", refused) {
			t.Errorf("%T %q became %T %q", err, err, refused, refused)
		}
		var c, d *device.CallError
		if errors.As(err, &c) != errors.As(refused, &d) || c != nil && (c.Call != d.Call || c.Op != d.Op) {
			t.Errorf("%v: the call was %v and is %v", err, c, d)
		}
		if errors.Is(err, device.ErrMemory) != errors.Is(refused, device.ErrMemory) {
			t.Errorf("%v became %v", err, refused)
		}
		var p, q *device.PeerError
		if errors.As(err, &p) != errors.As(refused, &q) || p != nil && *p != *q {
			t.Errorf("%v: the peer was %v and is %v", err, p, q)
		}
	}
	long := errors.New(strings.Repeat("x", 1<<20))
	if refused, failed := readAnswer(bytes.NewReader(appendAnswer(nil, long)), make([]byte, 1)); failed != nil || len(refused.Error()) != faultText {
		t.Errorf("a long error: %v", failed)
	}
}
