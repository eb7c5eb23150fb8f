package remote

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestLimits: leaders together take no more of a host than its limits, what is left is what it describes,
// whoever is refused is told which flag says so, and all is given back.
func TestLimits(t *testing.T) {
	h := newHostWith(t, nil, Limits{Memory: 1 << 20, Disk: 1 << 16, Ranks: 2})
	describe := func() (host, disk int64, ranks int) {
		about, err := Describe(h.addr, testKey, Place{})
		check(t, err)
		if about.Device != 0 || about.Host > 1<<20 { // the host says 0 and 1 TiB
			t.Errorf("it offers %+v", about)
		}
		return about.Host, about.Disk, about.Ranks
	}
	host, _, ranks := describe()
	if host != 1<<20-1<<16 || ranks != 2 {
		t.Errorf("%d bytes and %d ranks are offered", host, ranks)
	}
	refused := func(err error, flag string, memory bool) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), flag) || strings.Count(err.Error(), "hint:") != 1 || errors.Is(err, device.ErrMemory) != memory {
			t.Errorf("error is %v, want one with %s", err, flag)
		}
	}
	a, b := connect(t, h.addr, Place{}, 1<<19), connect(t, h.addr, Place{})
	_, err := Open(h.addr, testKey, Place{}, time.Now())
	refused(err, "--max-ranks", false)
	refused(b.Reserve(device.HostTier, 1<<20), "--memory", true)
	refused(b.Reserve(device.DiskTier, 1<<16+1), "--disk-space", true)
	check(t, b.Reserve(device.DiskTier, 1<<16))
	if _, _, ranks := describe(); ranks != 0 {
		t.Errorf("%d ranks are offered", ranks)
	}
	o := operand(device.DeviceTier, 0, 8)
	calls := make([]device.Call, 100)
	for i := range calls {
		calls[i] = copyCall(device.Compute, o, o)
	}
	for err = nil; err == nil; {
		_, err = a.Prepare(calls, nil)
	}
	refused(err, "--memory", true)
	check(t, a.Tune(calls[:1], 0))
	check(t, errors.Join(a.Close(), b.Close()))
	h.idle()
	for { // a lease ends after its device is closed
		if host, disk, ranks := describe(); host == 1<<20-1<<16 && disk == 0 && ranks == 2 {
			break
		}
		runtime.Gosched()
	}
}

// TestCallsCount: calls are counted while they are read: a message of few bytes with many calls takes little
// memory.
func TestCallsCount(t *testing.T) {
	text := shipped(t, frame(doPrepare, uint8(0)), make([]device.Call, 400000))
	d := &strict{t: t, launched: map[int]bool{}}
	answer := &heard{script: script{in: bytes.NewReader(append(text, byte(doClose)))}}
	e := newLease(answer, d, time.Now(), NewBudget(Limits{Memory: 1 << 20}))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := e.serve()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 || err != nil {
		t.Errorf("%d bytes were allocated for %d, %v", n, len(text), err)
	}
	refused, err := readAnswer(&answer.said, make([]byte, 1))
	if !errors.Is(refused, device.ErrMemory) || err != nil {
		t.Errorf("the answer is %v, %v", refused, err)
	}
}

// heard is a script that keeps what it is told.
type heard struct {
	script
	said bytes.Buffer
}

func (h *heard) Write(p []byte) (int, error) { return h.said.Write(p) }

// TestDisplaced: strangers who are idle keep no leader out, and the log says so once.
func TestDisplaced(t *testing.T) {
	h := newHost(t, nil)
	for range places + 30 {
		c, err := net.Dial("tcp", h.addr)
		check(t, err)
		defer c.Close()
	}
	for range 10 {
		if _, err := Describe(h.addr, testKey, Place{}); err != nil {
			t.Error(err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := strings.Count(strings.Join(h.notes, "\n"), "gives way"); n != 1 {
		t.Errorf("the log says so %d times: %q", n, h.notes)
	}
}

// guest is a connection from an address.
type guest struct {
	net.Conn
	from   string
	closed bool
}

func (g *guest) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(g.from)} }
func (g *guest) Close() error         { g.closed = true; return nil }

// TestCrowd: the one that gives way is the oldest of the address that has most places.
func TestCrowd(t *testing.T) {
	var g guests
	var list []*guest
	enter := func(from string) (told string) {
		list = append(list, &guest{from: from})
		return g.enter(list[len(list)-1])
	}
	enter("10.0.0.1")
	for range places - 2 {
		enter("10.0.0.2")
	}
	enter("10.0.0.3")
	if told := enter("10.0.0.4"); !strings.Contains(told, "62 of them from 10.0.0.2") {
		t.Errorf("the log is told %q", told)
	}
	for i, c := range list {
		if c.closed != (i == 1) || g.leave(c) == c.closed {
			t.Errorf("connection %d from %s: closed %v", i, c.from, c.closed)
		}
	}
}

// TestFlipped: a bit that is flipped on the way, wherever that is, is never taken for what was sent: the
// device is lost, and the error or the host's log says why.
func TestFlipped(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 3))
	h := newHost(t, nil)
	for range testkit.Count(20, 60, 600) {
		budget := r.IntN(1 << (8 + r.IntN(12)))
		n := newNetwork(t, h.addr, budget, false)
		n.flip = true
		addr := n.l.Addr().String()
		err := use(addr)
		n.fail()
		h.idle()
		switch {
		case n.flipped == 1 && err == nil: // of control, of which all is read
			t.Errorf("byte %d was flipped, and nobody noticed", budget)
		case err != nil && !strings.Contains(err.Error(), addr):
			t.Errorf("byte %d was flipped: %v", budget, err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !strings.Contains(strings.Join(h.notes, "\n"), "bytes were changed on the way") {
		t.Errorf("the log does not say why: %q", h.notes)
	}
}
