package remote

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// network is between a leader and a host. It fails after a number of bytes, counting both directions.
type network struct {
	l    net.Listener
	to   string
	all  bool // it fails for all connections, not only for the one with that byte
	flip bool // it does not fail, but changes that byte
	wait sync.WaitGroup

	mu      sync.Mutex
	budget  int
	conns   []net.Conn
	flipped int // connection, counted from 1, of which a byte was changed
}

func newNetwork(t *testing.T, to string, budget int, all bool) *network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	n := &network{l: l, to: to, budget: budget, all: all}
	n.wait.Go(n.run)
	t.Cleanup(func() {
		_ = l.Close()
		n.fail()
		n.wait.Wait()
	})
	return n
}

func (n *network) run() {
	for {
		a, err := n.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", n.to)
		if err != nil {
			_ = a.Close()
			continue
		}
		n.mu.Lock()
		n.conns = append(n.conns, a, b)
		n.mu.Unlock()
		number := len(n.conns) / 2
		n.wait.Go(func() { n.pass(a, b, number) })
		n.wait.Go(func() { n.pass(b, a, number) })
	}
}

// pass copies what the budget allows. Then it cuts the connection, or changes a byte.
func (n *network) pass(to, from net.Conn, number int) {
	defer to.Close()
	defer from.Close()
	p := make([]byte, 512)
	for {
		k, err := from.Read(p)
		if err != nil {
			return
		}
		n.mu.Lock()
		allowed := min(k, n.budget)
		n.budget -= allowed
		if allowed < k && !n.all { // the others may go on
			n.budget = 1 << 40
		}
		if allowed < k && n.flip {
			n.flipped = number
			p[allowed] ^= 4
			allowed = k
		}
		n.mu.Unlock()
		if _, err := to.Write(p[:allowed]); err != nil {
			return
		}
		if allowed < k {
			if n.all {
				n.fail()
			}
			return
		}
	}
}

func (n *network) fail() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Close()
	}
}

// use does all that can be done with a device, and returns the first error.
func use(addr string) error {
	d, err := Open(addr, testKey, Place{}, time.Now())
	if err != nil {
		return err
	}
	defer d.Close()
	const n = 1 << 16
	o, p := operand(device.DeviceTier, 0, n/4), operand(device.HostTier, 0, n/4)
	bytes := make([]byte, n)
	for tier := range device.DiskTier {
		if err := d.Reserve(tier, n); err != nil {
			return err
		}
	}
	calls := []device.Call{copyCall(device.HostToDev, o, p), copyCall(device.DevToHost, p, o)}
	first, err := d.Prepare(calls, make([]device.Span, 2))
	if err != nil {
		return err
	}
	for range 3 {
		if err := d.Write(device.HostTier, 0, bytes); err != nil {
			return err
		}
		d.Launch(first)
		d.Wait(device.DevToHost, first)
		d.Launch(first + 1)
		d.Progress()
		d.Done(first)
		if err := d.Sync(); err != nil {
			return err
		}
		if err := d.Read(device.HostTier, 0, bytes); err != nil {
			return err
		}
		d.Stats()
	}
	return d.Close()
}

// TestCut: wherever a network fails, the leader gets an error that names the host, and
// the host frees the device and serves the next leader.
func TestCut(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	h := newHost(t, nil)
	lost := 0
	for range 150 {
		budget, all := r.IntN(1<<(1+r.IntN(20))), r.IntN(2) == 0
		n := newNetwork(t, h.addr, budget, all)
		err := use(n.l.Addr().String())
		if err != nil {
			lost++
			if !strings.Contains(err.Error(), n.l.Addr().String()) || strings.Count(err.Error(), "hint:") > 1 {
				t.Errorf("cut after %d bytes: %v", budget, err)
			}
		}
		n.fail()
		h.idle()
	}
	t.Logf("%d of 150 were lost", lost)
	if lost < 30 {
		t.Errorf("only %d were lost", lost)
	}
	check(t, use(h.addr))
}

// TestLost: every method of a lost device returns the same error, and nothing blocks.
func TestLost(t *testing.T) {
	h := newHost(t, nil)
	n := newNetwork(t, h.addr, 1<<40, true)
	d := connect(t, n.l.Addr().String(), Place{}, arena)
	o := operand(device.DeviceTier, 0, 8)
	first, err := d.Prepare([]device.Call{copyCall(device.Compute, o, o)}, nil)
	check(t, err)
	n.fail()
	for range 5000 {
		d.Launch(first)
		d.Wait(device.Compute, first)
	}
	want := d.Sync()
	if want == nil || !strings.Contains(want.Error(), "is lost") || strings.Count(want.Error(), "hint:") != 1 {
		t.Fatalf("error is %v", want)
	}
	p := make([]byte, 8)
	_, prepare := d.Prepare(nil, nil)
	for name, err := range map[string]error{
		"sync": d.Sync(), "read": d.Read(0, 0, p), "write": d.Write(0, 0, p), "much": d.Write(0, 0, make([]byte, arena)),
		"clear": d.Clear(0, 0, 8), "repeat": d.Repeat(0, 0, 1, 8), "reserve": d.Reserve(1, 8), "prepare": prepare,
	} {
		if err == nil || err.Error() != want.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
	d.Abort(errors.New("too late"))
	d.Progress()
	if d.Done(first) || d.Stats() != (device.Stats{}) {
		t.Error("it knows something")
	}
}

// TestManyLeaders: hosts serve many devices at a time, and those of vanished leaders are
// closed while the others go on.
func TestManyLeaders(t *testing.T) {
	h := newHost(t, nil)
	var all sync.WaitGroup
	for k := range 12 {
		all.Go(func() {
			if k%3 != 0 {
				if err := use(h.addr); err != nil {
					t.Error(err)
				}
				return
			}
			d, err := Open(h.addr, testKey, Place{}, time.Now())
			if err != nil {
				t.Error(err)
				return
			}
			_ = d.control.Close() // as a process that is killed
			_ = d.side.conn.Close()
		})
	}
	all.Wait()
	h.idle()
}

// TestStop: Serve ends with its context, whoever is connected.
func TestStop(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	h := newHost(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Serve(ctx, l, testKey, h, NewBudget(plenty), nil) }()
	d, err := Open(l.Addr().String(), testKey, Place{}, time.Now())
	check(t, err)
	silent, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer silent.Close()
	stop()
	check(t, <-ended)
	if err := d.Sync(); err == nil {
		t.Error("a device of a host that stopped goes on")
	}
	_, _ = io.Copy(io.Discard, silent) // ends
	h.idle()
}

// TestLeaving: if the side connection ends while a device is being closed, that is no loss: its end may
// be seen before the answer, which comes on control.
func TestLeaving(t *testing.T) {
	h := newHost(t, nil)
	d := connect(t, h.addr, Place{}, arena)
	d.leaving.Store(true) // as Close does before it asks
	check(t, d.side.conn.Conn.(*net.TCPConn).CloseRead())
	d.missing(io.EOF)
	check(t, d.Close())
	h.idle()
}
