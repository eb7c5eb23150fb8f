package machine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/session"
)

// KeyVariable is the environment variable with what hosts prove to each other that they
// know.
const KeyVariable = "ATHANOR_KEY"

// Key returns what this host knows.
func Key() ([]byte, error) {
	key := []byte(os.Getenv(KeyVariable))
	if len(key) < 16 {
		return nil, fmt.Errorf("%s must be the same secret text on all hosts, of 16 characters or more; hint: `openssl rand -hex 32` makes one", KeyVariable)
	}
	return key, nil
}

// hostsBackend is the backend of ranks on the cores of several hosts, of which this one is
// the first. They take ranks in turn, so neighbours are on different hosts: what joins two
// ranks, which is measured between the first two, is the network, and of ranks in a grid
// of stages and replicas it is stages that it divides, whose messages are small beside
// sums of gradients. All hosts are described by the slowest and least.
type hostsBackend struct {
	here   *cpuBackend
	others []string // addresses
	about  []remote.Description
	key    []byte
	ranks  int
}

// newHosts asks the other hosts what they are.
func newHosts(c *config.Config) (*hostsBackend, error) {
	n := len(c.Hosts) + 1
	key, err := Key()
	if err != nil {
		return nil, c.Fault("hosts", err.Error())
	}
	b := &hostsBackend{here: newCPU(c, c.Ranks/n), others: c.Hosts, key: key, ranks: c.Ranks}
	if b.ranks%n != 0 {
		return nil, c.Fault("ranks", fmt.Sprintf("%d cannot be divided among %d hosts, this one included; hint: a multiple", b.ranks, n))
	}
	for _, addr := range b.others {
		d, err := remote.Describe(addr, b.key)
		if err != nil {
			return nil, err
		}
		b.about = append(b.about, d)
	}
	return b, nil
}

func (b *hostsBackend) hosts() int { return len(b.others) + 1 }

// share returns the ranks per host of n.
func (b *hostsBackend) share(n int) int { return max(n/b.hosts(), 1) }

func (b *hostsBackend) id() string {
	text := "cpu"
	for i, d := range b.about {
		text += fmt.Sprintf(" %s %s %s %d", b.others[i], d.Processor, d.Kernels, d.Cores)
	}
	return text
}

// memory returns what all hosts have together if each has only what the least has.
func (b *hostsBackend) memory(dir string) (hardware.Memory, error) {
	m, err := b.here.memory(dir)
	if err != nil {
		return m, err
	}
	for _, addr := range b.others {
		d, err := remote.Describe(addr, b.key)
		if err != nil {
			return m, err
		}
		m.Host, m.Disk = min(m.Host, d.Host), min(m.Disk, d.Disk)
	}
	m.Host, m.Disk = m.Host*int64(b.hosts()), m.Disk*int64(b.hosts())
	m.Device = m.Host
	return m, nil
}

// probed returns one rank of each host, or as many as a host's cores suffice for.
func (b *hostsBackend) probed() int { return min(b.ranks, b.hosts()*b.here.probed()) }

func (b *hostsBackend) atOnce() int {
	least := b.here.atOnce()
	for _, d := range b.about {
		least = min(least, max(1, d.Cores/max(d.Cores/b.share(b.ranks), 1)))
	}
	return min(b.ranks, b.hosts()*least)
}

func (b *hostsBackend) alone(rank int, disk string) (device.Device, error) {
	if rank%b.hosts() == 0 {
		return b.here.alone(rank, disk)
	}
	p := b.place(1)
	p.Rank, p.Ranks, p.Share, p.Fabric = 0, 1, b.share(b.ranks), ""
	return b.dial(rank, p, time.Now())
}

// dial opens a device on the host of a rank.
func (b *hostsBackend) dial(rank int, p remote.Place, origin time.Time) (device.Device, error) {
	d, err := remote.Open(b.others[rank%b.hosts()-1], b.key, p, origin)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// place describes a new fabric of n ranks.
func (b *hostsBackend) place(n int) remote.Place {
	p := remote.Place{
		Fabric: rand.Text(), Ranks: n, Hosts: append([]string{""}, b.others...), HostOf: make([]int, n),
		Rate: b.here.options.Rate, Apart: b.here.options.Apart, Share: b.share(n),
	}
	for r := range p.HostOf {
		p.HostOf[r] = r % b.hosts()
	}
	return p
}

func (b *hostsBackend) open(n int, disk string) (list []device.Device, err error) {
	if n == 1 {
		return b.here.open(1, disk)
	}
	p := b.place(n)
	f := cpu.NewFabricAcross(n, newHub(p, 0, b.key))
	o := b.here.options
	o.Fabric, o.Workers = f, workers(p.Share)
	for p.Rank = range n {
		var d device.Device
		if p.HostOf[p.Rank] == 0 {
			o.Rank, o.DiskPath = p.Rank, fmt.Sprint(disk, p.Rank)
			d = cpu.New(o)
		} else if d, err = b.dial(p.Rank, p, f.Opened()); err != nil {
			return nil, errors.Join(err, session.CloseAll(list))
		}
		list = append(list, d)
	}
	return list, nil
}

// newHub returns the links between a host's ranks and the others'.
func newHub(p remote.Place, here int, key []byte) *link.Hub {
	return link.NewHub(p.HostOf, here, func(from, to int, k link.Kind) (net.Conn, error) {
		return remote.Link(p.Hosts[p.HostOf[to]], key, remote.Hello{Fabric: p.Fabric, From: from, To: to, Kind: uint8(k)})
	})
}

func (b *hostsBackend) apart() backend {
	own := *b
	own.here = b.here.apart().(*cpuBackend)
	return &own
}

func (b *hostsBackend) headUnit(int) int { return 0 }

func (b *hostsBackend) idle() int { return 0 }

func (b *hostsBackend) close() error { return nil }
