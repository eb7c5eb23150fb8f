package remote

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

var testKey = []byte("a key of this test")

// plenty is more than any test takes.
var plenty = Limits{Memory: 1 << 50, Disk: 1 << 50, Ranks: 1 << 20}

// host is a host with devices of the CPU.
type host struct {
	addr string
	wrap func(device.Device) device.Device // nil: none
	dir  string

	mu      sync.Mutex
	changed *sync.Cond
	fabrics map[string]*cpu.Fabric
	origins map[string]time.Time // of their clocks
	open    int                  // devices
	links   chan *sealed.Conn
	ended   chan error // of Serve
	notes   []string
}

// newHost serves until the test ends, and then has no open device.
func newHost(t testing.TB, wrap func(device.Device) device.Device) *host {
	t.Helper()
	return newHostWith(t, wrap, plenty)
}

// newHostWith is newHost with bounds.
func newHostWith(t testing.TB, wrap func(device.Device) device.Device, limits Limits) *host {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{
		addr: l.Addr().String(), wrap: wrap, dir: t.TempDir(), fabrics: map[string]*cpu.Fabric{}, origins: map[string]time.Time{},
		links: make(chan *sealed.Conn, 8), ended: make(chan error, 1),
	}
	h.changed = sync.NewCond(&h.mu)
	ctx, stop := context.WithCancel(context.Background())
	go func() { h.ended <- Serve(ctx, l, testKey, h, NewBudget(limits), h.note) }()
	t.Cleanup(func() {
		stop()
		if err := <-h.ended; err != nil {
			t.Error(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.open != 0 {
			t.Errorf("%d devices are still open", h.open)
		}
		if t.Failed() {
			t.Logf("the host says %q", h.notes)
		}
	})
	return h
}

func (h *host) note(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, text)
	h.changed.Broadcast()
}

// idle waits until the host has no device open.
func (h *host) idle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.open > 0 {
		h.changed.Wait()
	}
}

func (h *host) Closed(Place) {}

func (h *host) Describe(Place) (Description, error) {
	return Description{Processor: "a processor", Cores: 3, Host: 1 << 40}, nil
}

func (h *host) Open(p Place) (device.Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.Share == 99 {
		return nil, fmt.Errorf("too many share")
	}
	o := cpu.Options{Workers: 2, DiskPath: filepath.Join(h.dir, fmt.Sprint(p.Fabric, "-", p.Rank)), Rate: p.Rate, Apart: p.Apart, Rank: p.Rank}
	origin := time.Now()
	if p.Fabric != "" {
		if h.fabrics[p.Fabric] == nil {
			h.fabrics[p.Fabric], h.origins[p.Fabric] = cpu.NewFabric(p.Ranks), origin
		}
		origin = h.origins[p.Fabric]
		o.Fabric = h.fabrics[p.Fabric]
	} else {
		o.DiskPath += fmt.Sprint(len(h.notes), origin.UnixNano())
	}
	h.open++
	d := &counted{Device: cpu.New(o), host: h, origin: origin}
	if h.wrap != nil {
		return h.wrap(d), nil
	}
	return d, nil
}

// parsed is a program as package machine has it.
type parsed struct {
	*program.Program
	*exec.Listing
}

func (h *host) Script(text string) (Script, error) {
	p, err := program.Parse(text)
	if err != nil {
		return nil, err
	}
	list, err := exec.NewListing(p)
	return parsed{p, list}, err
}

// Results are buffers that are called results.
func (p parsed) Results() (list []device.Operand) {
	for i, b := range p.Buffers {
		if strings.HasPrefix(b.Name, "result") {
			list = append(list, p.Operand(program.Region{Buf: i, Rows: b.Rows, Cols: b.Cols, Stride: b.Cols}))
		}
	}
	return list
}

func (p parsed) State(d device.Device) (State, error) {
	a, err := exec.NewArenas(p.Program, d)
	return arenas{a}, err
}

type arenas struct{ *exec.Arenas }

func (a arenas) DrawState(s device.StateRange, from device.Beginning) error {
	return session.DrawState(a.Arenas, s, from)
}

func (h *host) Folder() string { return h.dir }

func (h *host) Join(m Member, c *sealed.Conn) error { return c.Close() }

func (h *host) Start(p Process, c *sealed.Conn) error { return c.Close() }

func (h *host) Link(hello Hello, c *sealed.Conn) error {
	if hello.Fabric == "" {
		return fmt.Errorf("no fabric")
	}
	h.links <- c
	return nil
}

// counted is a device that its host knows to be open.
type counted struct {
	*cpu.Device
	host   *host
	origin time.Time
}

func (c *counted) Origin() time.Time { return c.origin }

func (c *counted) Close() error {
	err := c.Device.Close()
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	c.host.open--
	c.host.changed.Broadcast()
	return err
}

// connect opens a device at addr and reserves arenas.
func connect(t testing.TB, addr string, p Place, sizes ...int64) *Device {
	t.Helper()
	d, err := Open(addr, testKey, p, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	for tier, n := range sizes {
		if err := d.Reserve(device.Tier(tier), n); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func operand(t device.Tier, addr int64, n int) device.Operand {
	return device.Operand{Tier: t, DType: graph.F32, Addr: addr, Rows: 1, Cols: n, Stride: n}
}

func copyCall(s device.Stream, dst, src device.Operand) device.Call {
	return device.Call{Op: graph.Copy, Stream: s, Args: []device.Operand{dst, src}}
}
