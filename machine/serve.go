package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/verify"
)

// servedRanks is how many ranks of other hosts' runs this one has at once, if nobody says otherwise.
const servedRanks = 64

// ServeLimits returns what other hosts' runs may take together, if nobody says otherwise: the memory of this host, and
// what is free on the disk of folder dir.
func ServeLimits(dir string) (remote.Limits, error) {
	m, err := sysmem.Read()
	if err != nil {
		return remote.Limits{}, err
	}
	disk, _, err := hardware.DiskSpace(dir)
	return remote.Limits{Memory: m.Total, Disk: disk, Ranks: servedRanks}, err
}

// Part is what a process lets the leader of its run have.
type Part struct {
	Spill  string         // folder for what its ranks spill to the disk
	Folder string         // the run's, in which it writes its part of checkpoints; "": it is not the leader's
	Budget *remote.Budget // of what they take
	Links  link.Open      // over which ranks may exchange bytes; nil: connections only
}

// Serve lets the leader, which proves that it knows the key, have ranks on this host's cores or GPUs, in its memory and on the
// disk of part.Spill, until ctx is done.
func (part Part) Serve(ctx context.Context, l net.Listener, key []byte, note func(string)) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	h := &host{dir: part.Spill, folder: part.Folder, cache: cache, key: key, links: part.Links, note: note, fabrics: map[string]*fabric{}}
	return remote.Serve(ctx, l, key, h, part.Budget, note)
}

// host opens devices for other hosts' runs.
type host struct {
	dir, folder, cache string
	key                []byte
	links              link.Open
	note               func(string)

	mu      sync.Mutex
	fabrics map[string]*fabric
}

// fabric is this host's part of one.
type fabric struct {
	open    func(rank, own int, disk string) (device.Device, error)
	hub     *link.Hub
	devices int // that are open
}

// backend returns the backend of this host's ranks of a run.
func (h *host) backend(p remote.Place) (localBackend, error) {
	b, err := newLocal(&Request{Device: p.Device, Ranks: max(p.Share, 1)}, h.cache)
	if err != nil {
		return nil, err
	}
	return b.led(p), nil
}

// Describe describes this host to a run.
func (h *host) Describe(p remote.Place) (remote.Description, error) {
	d := remote.Description{Processor: hardware.Processor(), Kernels: gemm.Kernels(), Cores: runtime.GOMAXPROCS(0)}
	b, err := h.backend(p)
	if err != nil {
		return d, err
	}
	d.GPUs, d.Idle = b.cards(), b.idle()
	d.Boards, d.NCCL = b.boards()
	m, err := b.memory(h.dir, 0)
	d.Device, d.Host, d.Disk = m.Device, m.Host, m.Disk
	return d, errors.Join(err, b.close())
}

// Open opens the device of one rank.
func (h *host) Open(p remote.Place) (device.Device, error) {
	if p.MPI && h.links == nil {
		return nil, errors.New("this process is in no MPI run; hint: leave MPI to the launcher of the run")
	}
	b, err := h.backend(p)
	if err != nil {
		return nil, err
	}
	disk := filepath.Join(h.dir, ".athanor-spill-"+rand.Text())
	if p.Fabric == "" {
		return b.alone(p.Own, disk)
	}
	f := h.join(p, b)
	d, err := f.open(p.Rank, p.Own, disk)
	if err != nil {
		h.Closed(p)
		return nil, err
	}
	return d, nil
}

// script is a program that this host runs for another.
type script struct {
	*program.Program
	*exec.Listing
}

// Results are the sum of losses and what clipping says.
func (s script) Results() (list []device.Operand) {
	for i, b := range s.Buffers {
		if b.Name == "loss.total" || b.Name == program.Clip {
			list = append(list, s.Operand(program.Region{Buf: i, Rows: b.Rows, Cols: b.Cols, Stride: b.Cols}))
		}
	}
	return list
}

// State returns access to a device's memory.
func (s script) State(d device.Device) (remote.State, error) {
	a, err := exec.NewArenas(s.Program, d)
	return state{a}, err
}

// state is what a device holds of a program's state.
type state struct{ *exec.Arenas }

// DrawState writes what parameters begin with.
func (s state) DrawState(r device.StateRange, from device.Beginning) error {
	return session.DrawState(s.Arenas, r, from)
}

// Folder is the run's.
func (h *host) Folder() string { return h.folder }

// Script reads a program. One that this build would print otherwise was made by another, and means something else here.
func (h *host) Script(text string) (remote.Script, error) {
	p, err := program.Parse(text)
	if err != nil {
		return nil, err
	}
	if p.String() != text {
		return nil, fmt.Errorf("rank %d's program is read as another one here; hint: run the same build of athanor on all hosts", p.Rank)
	}
	if err := verify.VerifyAlone(p); err != nil {
		return nil, err
	}
	list, err := exec.NewListing(p)
	if err != nil {
		return nil, err
	}
	return script{p, list}, nil
}

// join returns this host's part of a fabric, which the first of its ranks to join creates.
func (h *host) join(p remote.Place, b localBackend) *fabric {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.fabrics[p.Fabric]
	if !ok {
		f = &fabric{hub: newHub(p, p.HostOf[p.Rank], h.links, h.dial)}
		f.open, _ = b.openShared(p.Ranks, f.hub, p.NCCL)
		h.fabrics[p.Fabric] = f
	}
	f.devices++
	return f
}

// dial connects a rank here to one elsewhere. What comes of it is written here, but not told to the leader, who has
// named the address: else it could look around in this host's network.
func (h *host) dial(addr string, hello remote.Hello) (*sealed.Conn, error) {
	c, err := remote.Link(addr, h.key, hello)
	if err != nil {
		h.note(fmt.Sprintf("rank %d does not reach rank %d: %v", hello.From, hello.To, err))
		return nil, errUnreached
	}
	return c, nil
}

var errUnreached = errors.New("that rank's host was not reached from this rank's; hint: what athanor has printed on this rank's host says why")

// Closed forgets a fabric when its last device is closed.
func (h *host) Closed(p remote.Place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.fabrics[p.Fabric]
	if !ok { // the device was alone
		return
	}
	if f.devices--; f.devices == 0 {
		delete(h.fabrics, p.Fabric)
	}
}

// Join refuses: only the process that leads a run takes others into it.
func (h *host) Join(m remote.Member, c *sealed.Conn) error {
	return errors.Join(fmt.Errorf("process %d joins a run that is not led from here", m.Rank), c.Close())
}

// Start refuses: only an agent starts processes.
func (h *host) Start(p remote.Process, c *sealed.Conn) error {
	return errors.Join(fmt.Errorf("process %d is to be started by a process of a run", p.Rank), c.Close())
}

// Link accepts a connection from a rank elsewhere to one here.
func (h *host) Link(hello remote.Hello, c *sealed.Conn) error {
	h.mu.Lock()
	f, ok := h.fabrics[hello.Fabric]
	h.mu.Unlock()
	if !ok {
		return errors.Join(fmt.Errorf("rank %d connects to rank %d of a run that has no ranks on this host", hello.From, hello.To), c.Close())
	}
	return f.hub.Accept(hello.From, hello.To, link.Kind(hello.Kind), c)
}
