package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// Serve lets runs that are led from other hosts, which prove that they know the key, have
// ranks on this one's cores and memory and, for what they spill, on the disk of folder
// dir, until ctx is done.
func Serve(ctx context.Context, l net.Listener, key []byte, dir string, note func(string)) error {
	return remote.Serve(ctx, l, key, &host{dir: dir, key: key, fabrics: map[string]*part{}}, note)
}

// host opens devices for other hosts' runs.
type host struct {
	dir string
	key []byte

	mu      sync.Mutex
	fabrics map[string]*part
}

// part is what this host has of a fabric.
type part struct {
	fabric  *cpu.Fabric
	hub     *link.Hub
	devices int // that are open
}

// Describe says what this host is.
func (h *host) Describe() (remote.Description, error) {
	m, err := hardware.LocalMemory(h.dir)
	return remote.Description{
		Processor: hardware.Processor(), Kernels: gemm.Kernels(), Cores: runtime.GOMAXPROCS(0),
		Host: m.Host, Disk: m.Disk,
	}, err
}

// Open opens the device of one rank.
func (h *host) Open(p remote.Place) (device.Device, error) {
	o := cpu.Options{
		Workers: workers(max(p.Share, 1)), Rate: p.Rate, Apart: p.Apart, Rank: p.Rank,
		DiskPath: filepath.Join(h.dir, fmt.Sprintf(".athanor-spill-%d-%s-%d", os.Getpid(), p.Fabric, p.Rank)),
	}
	if p.Fabric == "" {
		o.Rank = 0
		return cpu.New(o), nil
	}
	o.Fabric = h.join(p)
	return &served{Device: cpu.New(o), leave: sync.OnceFunc(func() { h.leave(p.Fabric) })}, nil
}

// join returns this host's part of a fabric, which the first of its ranks makes.
func (h *host) join(p remote.Place) *cpu.Fabric {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.fabrics[p.Fabric]
	if !ok {
		hub := newHub(p, p.HostOf[p.Rank], h.key)
		f = &part{hub: hub, fabric: cpu.NewFabricAcross(p.Ranks, hub)}
		h.fabrics[p.Fabric] = f
	}
	f.devices++
	return f.fabric
}

// leave forgets a fabric with its last device.
func (h *host) leave(fabric string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.fabrics[fabric]
	if f.devices--; f.devices == 0 {
		delete(h.fabrics, fabric)
	}
}

// Link takes a connection from a rank elsewhere to one here.
func (h *host) Link(hello remote.Hello, c net.Conn) error {
	h.mu.Lock()
	f, ok := h.fabrics[hello.Fabric]
	h.mu.Unlock()
	if !ok {
		return errors.Join(fmt.Errorf("rank %d calls rank %d of a run that has none here", hello.From, hello.To), c.Close())
	}
	return f.hub.Accept(hello.From, hello.To, link.Kind(hello.Kind), c)
}

// served is a device that leaves its fabric when it is closed.
type served struct {
	*cpu.Device
	leave func()
}

func (s *served) Close() error {
	defer s.leave()
	return s.Device.Close()
}
