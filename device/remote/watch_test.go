package remote

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/program"
)

// hanging is a device whose rounds do not end before it is released. If it is only slow, it progresses
// each time that it is looked at, and its round ends after some looks.
type hanging struct {
	*counted
	inSync  chan struct{} // closed when a round is to end
	release chan struct{}
	slow    bool
	looks   atomic.Uint64
}

func (d *hanging) Done(int) bool { return false }
func (d *hanging) Abort(error)   {}

func (d *hanging) Progress() uint64 {
	n := d.looks.Add(1)
	if !d.slow {
		return 0
	}
	if n == 30 {
		close(d.release)
	}
	return n
}

func (d *hanging) Sync() error {
	select {
	case <-d.inSync:
	default:
		close(d.inSync)
	}
	<-d.release
	return d.counted.Sync()
}

// newHanging is a host of hanging devices, and the next such device.
func newHanging(t *testing.T, slow bool) (h *host, next *hanging) {
	next = &hanging{inSync: make(chan struct{}), release: make(chan struct{}), slow: slow}
	h = newHost(t, func(d device.Device) device.Device {
		next.counted = d.(*counted)
		return next
	})
	return h, next
}

// TestAbortHanging: a device that does not end its round when ordered to is soon given up; its host
// goes on and frees it when it comes to rest.
func TestAbortHanging(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	h, there := newHanging(t, false)
	d := connect(t, h.addr, Place{}, arena)
	o := operand(device.DeviceTier, 0, 8)
	first, err := d.Prepare([]device.Call{copyCall(device.Compute, o, o)}, nil)
	check(t, err)
	d.Launch(first)
	ended := make(chan error)
	go func() { ended <- d.Sync() }()
	<-there.inSync
	start := time.Now()
	d.Abort(errors.New("enough"))
	err = <-ended
	if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "enough") || took > 2*rest {
		t.Errorf("after %v: %v", took, err)
	}
	if _, err := Describe(h.addr, testKey, Place{}); err != nil {
		t.Errorf("the host does not go on: %v", err)
	}
	close(there.release)
	h.idle()
}

// TestAbort: the order to end a round reaches a rank that waits for another, whose peers
// learn who was lost.
func TestAbort(t *testing.T) {
	h := newHost(t, nil)
	x := device.Operand{DType: graph.F32, Rows: 1, Cols: 8, Stride: 8}
	reduce := device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 1, 2}, Args: []device.Operand{x}}
	var devices []*Device
	errs := make([]error, 2) // the third rank never comes
	var all sync.WaitGroup
	for r := range 3 {
		devices = append(devices, connect(t, h.addr, Place{Fabric: "abort", Rank: r, Ranks: 3}, arena))
	}
	for r := range errs {
		first, err := devices[r].Prepare([]device.Call{reduce}, nil)
		check(t, err)
		all.Go(func() {
			devices[r].Launch(first)
			errs[r] = devices[r].Sync()
		})
	}
	devices[0].Abort(errors.New("enough"))
	all.Wait()
	var lost *device.PeerError
	if errs[0] == nil || errors.As(errs[0], &lost) || !strings.Contains(errs[0].Error(), "enough") {
		t.Errorf("rank 0, which was aborted, says %v", errs[0])
	}
	if !errors.As(errs[1], &lost) || lost.Rank != 0 {
		t.Errorf("rank 1 says %v", errs[1])
	}
}

// one is a program of one instruction.
func one() *program.Program {
	p := &program.Program{Height: [device.NumTiers]int64{1 << 13}}
	for b := range 2 {
		p.Buffers = append(p.Buffers, program.Buffer{Name: string(rune('x' + b)), Rows: 1, Cols: 16, Size: 64, Addr: int64(b) << 12})
	}
	region := func(b int) program.Region { return program.Region{Buf: b, Rows: 1, Cols: 16, Stride: 16} }
	p.Instrs = []program.Instr{{Op: graph.Copy, Args: []program.Region{region(1), region(0)}}}
	return p
}

// TestWatched: an engine notices that a remote device hangs, names the instruction, and can be left; it
// tolerates one that is slow.
func TestWatched(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for name, slow := range map[string]bool{"hangs": false, "is slow": true} {
		t.Run(name, func(t *testing.T) {
			h, there := newHanging(t, slow)
			d := connect(t, h.addr, Place{})
			p := one()
			check(t, exec.Reserve(d, p))
			e, err := exec.New(p, d)
			check(t, err)
			e.Patience = 300 * time.Millisecond // of 30 looks, less than 10 fit in
			_, err = e.Step(t.Context())
			if slow {
				check(t, err)
			} else if err == nil || !strings.Contains(err.Error(), "no progress") || !strings.Contains(err.Error(), "i0 copy y") {
				t.Errorf("error is %v", err)
			}
			e.Close()
			check(t, d.Close())
			if !slow {
				close(there.release)
			}
			h.idle()
		})
	}
}

// TestDone: what a look sees of the calls is what the device says, in this round only.
func TestDone(t *testing.T) {
	hold := make(chan bool)
	h := newHost(t, func(d device.Device) device.Device { return &held{d.(*counted), hold} })
	d := connect(t, h.addr, Place{}, arena)
	o := operand(device.DeviceTier, 0, 8)
	var calls []device.Call
	for range 21 {
		calls = append(calls, copyCall(device.Compute, o, o))
	}
	_, err := d.Prepare(calls, nil)
	check(t, err)
	for round := range 3 {
		want := func(n int) bool { return n%(round+2) == 0 }
		for n := range calls {
			if want(n) {
				d.Launch(n)
			}
		}
		ended := make(chan error)
		go func() { ended <- d.Sync() }()
		seen := func() (n int) {
			d.Progress()
			for k := range calls {
				if d.Done(k) && !want(k) {
					t.Errorf("call %d is done and was not launched", k)
				} else if d.Done(k) {
					n++
				}
			}
			return n
		}
		for seen() < (len(calls)+round+1)/(round+2) { // else the test does not end
		}
		hold <- true
		check(t, <-ended)
		if d.Done(0) {
			t.Error("a call of another round is done")
		}
	}
	if d.Done(-1) || d.Done(1<<40) {
		t.Error("calls are done that do not exist")
	}
}

// held is a device whose rounds end when it is told to end them.
type held struct {
	*counted
	hold chan bool
}

func (d *held) Sync() error {
	<-d.hold
	return d.counted.Sync()
}

// TestPlainDevice: a device without the optional interfaces can do what is possible without them.
func TestPlainDevice(t *testing.T) {
	h := newHost(t, func(d device.Device) device.Device { return struct{ device.Device }{d} })
	d := connect(t, h.addr, Place{}, arena)
	if a, b := d.Progress(), d.Progress(); a == b {
		t.Error("it seems to hang")
	}
	p := []byte{1, 2, 3}
	check(t, d.Write(0, 5, p))
	check(t, d.Clear(0, 6, 1))
	check(t, d.Read(0, 5, p))
	if p[0] != 1 || p[1] != 0 || p[2] != 3 {
		t.Errorf("cleared %v", p)
	}
	if d.Clear(0, 0, -1) == nil || d.Clear(0, 1, arena) == nil {
		t.Error("bytes outside were cleared")
	}
	for _, n := range [][2]int64{{0, 8}, {-1, 8}, {pieceBytes + 1, 8}, {8, -1}, {8, arena}} {
		if d.Repeat(0, 1, n[0], n[1]) == nil {
			t.Errorf("%d bytes were repeated to %d", n[0], n[1])
		}
	}
	d.SetClock(false)
	d.Abort(errors.New("nobody hears it"))
	check(t, d.Sync())
	if d.Stats() != (device.Stats{}) {
		t.Error("it counts")
	}
}

// dated has an origin long ago, which its spans do not count from.
type dated struct{ *counted }

func (d dated) Origin() time.Time { return time.Now().Add(-1000 * time.Second) }

// TestDated: spans are converted from the clock that the device says it has.
func TestDated(t *testing.T) {
	h := newHost(t, func(d device.Device) device.Device { return dated{d.(*counted)} })
	d := connect(t, h.addr, Place{}, arena)
	o := operand(device.DeviceTier, 0, 8)
	spans := make([]device.Span, 1)
	first, err := d.Prepare([]device.Call{copyCall(device.Compute, o, o)}, spans)
	check(t, err)
	d.Launch(first)
	check(t, d.Sync())
	if at := spans[0].Start + 1000; at < -1 || at > 10 {
		t.Errorf("the span is %v", spans[0])
	}
}

// panicking is a device with a bug.
type panicking struct{ *counted }

func (panicking) Prepare([]device.Call, []device.Span) (int, error) { panic("a bug") }

// TestPanic: a bug in one device ends that device, not the host.
func TestPanic(t *testing.T) {
	h := newHost(t, func(d device.Device) device.Device { return panicking{d.(*counted)} })
	d := connect(t, h.addr, Place{}, arena)
	if _, err := d.Prepare(nil, nil); err == nil || !strings.Contains(err.Error(), "hung up") {
		t.Errorf("error is %v", err)
	}
	h.idle()
	connect(t, h.addr, Place{}, arena)
}
