package machine

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/session"
)

// KeyVariable is the environment variable with the secret that hosts prove to each other that they know.
const KeyVariable = "ATHANOR_KEY"

// Key returns the secret that this host knows.
func Key() ([]byte, error) {
	key := []byte(os.Getenv(KeyVariable))
	if len(key) < 16 {
		return nil, fmt.Errorf("the environment variable %s must hold a secret of at least 16 characters, the same on all hosts; hint: `openssl rand -hex 32` makes one", KeyVariable)
	}
	return key, nil
}

// hostsBackend is the backend of ranks on several hosts, of which this one is the first. Ranks are dealt out to
// the hosts in turn, so neighbours are on different hosts unless they share sequences or matrices. The link between ranks, which is measured between
// the first two, is thus the network. In a grid of stages and replicas, it separates stages, whose messages are
// small compared with sums of gradients. All hosts are described by the slowest and smallest.
type hostsBackend struct {
	here   localBackend // for the ranks of this host
	others []string     // addresses
	grid   *hardware.Network
	about  []remote.Description
	key    []byte
	// together is how many of the hosts are processes on this one.
	together int64
	links    link.Open    // over which ranks exchange bytes; nil: over connections
	over     string       // what that is
	nccl     string       // version of NCCL, over which GPUs do; "": they do not
	place    remote.Place // what is the same for all devices
}

// newHosts asks the other hosts to describe themselves. note is told how GPUs exchange bytes.
func newHosts(r *Request, dir string, note func(string)) (*hostsBackend, error) {
	if r.Key == nil { // no process was started there
		return nil, r.Fault("hosts", "this command uses this host only; hint: leave hosts out")
	}
	if r.Together > 1 && device.IsGPU(r.Device) {
		return nil, r.Fault("device", fmt.Sprintf("%d processes of the run are on this host, but one process has all of a host's GPUs; hint: start one process per host, such as with srun --ntasks-per-node=1, and set ranks: auto", r.Together))
	}
	b := &hostsBackend{others: r.Hosts, key: r.Key, together: int64(max(r.Together, 1)), links: r.Links, over: r.Over, place: remote.Place{Device: r.Device, MPI: r.Links != nil}}
	counts, err := b.counts(r, dir)
	if err != nil {
		return nil, err
	}
	b.grid = gridOf(counts)
	own := *r
	own.Ranks = counts[0]
	if b.here, err = newLocal(&own, dir); err != nil {
		return nil, err
	}
	b.place.SumRows, b.place.Rate = b.here.headUnit(r.Sequence), rates(r)
	for i, addr := range b.others {
		d, err := remote.Describe(addr, b.key, b.placeOn(i+1))
		if err != nil {
			return nil, err
		}
		if need := counts[i+1]; d.Ranks < need {
			return nil, fmt.Errorf("hosts: %s can open %d ranks now, but this run needs %d there; hint: wait until another run ends, or start athanor serve there with a larger --max-ranks", addr, d.Ranks, need)
		}
		b.about = append(b.about, d)
	}
	ids, nccl := b.here.boards()
	b.nccl, err = commonNCCL(ids, nccl, b.others, b.about)
	b.place.NCCL = b.nccl != ""
	switch {
	case !device.IsGPU(r.Device):
	case err == nil:
		note("GPUs of different processes exchange bytes over " + b.nccl)
	default:
		note(fmt.Sprintf("GPUs of different processes exchange bytes over %s, through the hosts' memory, not over NCCL: %v", cmp.Or(b.over, "TCP"), err))
	}
	return b, nil
}

// commonNCCL returns the version of NCCL that this host, whose version is nccl, and all others have, or says why not all can be
// reached over it: between two ranks that have one GPU, it moves nothing.
func commonNCCL(ids []string, nccl string, names []string, others []remote.Description) (string, error) {
	if nccl == "" {
		return "", errors.New("this process has none, or is not to use it; hint: athanor doctor says which")
	}
	all := slices.Clone(ids)
	for i, d := range others {
		if d.NCCL != nccl {
			return "", fmt.Errorf("%s has %s, and this process %s", names[i], cmp.Or(d.NCCL, "none"), nccl)
		}
		all = append(all, d.Boards...)
	}
	slices.Sort(all)
	if n := len(all); len(slices.Compact(all)) < n {
		return "", errors.New("two ranks have one GPU")
	}
	return nccl, nil
}

// wiresBytes is what NCCL is assumed to take of each GPU for its connections.
const wiresBytes = 1 << 30

// counts returns how many ranks each host has: equally many, or as nearly as their number and the GPUs allow.
func (b *hostsBackend) counts(r *Request, dir string) ([]int, error) {
	n, gpus := len(b.others)+1, device.IsGPU(r.Device)
	if r.Ranks%n == 0 && !gpus {
		return slices.Repeat([]int{r.Ranks / n}, n), nil
	}
	one := *r
	one.Ranks = 1
	here, err := newLocal(&one, dir)
	if err != nil {
		return nil, err
	}
	room := []int{r.Ranks}
	if gpus {
		room[0] = 1 + here.idle()
	}
	if err := here.close(); err != nil {
		return nil, err
	}
	place := b.place
	place.Share = 1
	for _, addr := range b.others {
		d, err := remote.Describe(addr, b.key, place)
		if err != nil {
			return nil, err
		}
		if gpus {
			d.Ranks = min(d.Ranks, 1+d.Idle)
		}
		room = append(room, d.Ranks)
	}
	counts := spreadRanks(r.Ranks, room)
	if counts == nil {
		return nil, r.Fault("ranks", fmt.Sprintf("%d do not fit on the hosts, which have room for %v, this one first, and need at least one each; hint: use fewer, or more hosts", r.Ranks, room))
	}
	return counts, nil
}

// spreadRanks returns how many of the ranks each host has, as equally many as their room allows; nil if that is not enough, or
// if a host would have none.
func spreadRanks(ranks int, room []int) []int {
	counts := make([]int, len(room))
	for range ranks {
		least := -1
		for h := range room {
			if counts[h] < room[h] && (least < 0 || counts[h] < counts[least]) {
				least = h
			}
		}
		if least < 0 {
			return nil
		}
		counts[least]++
	}
	if slices.Contains(counts, 0) {
		return nil
	}
	return counts
}

// placeOn returns what is the same for the devices of a host.
func (b *hostsBackend) placeOn(host int) remote.Place {
	p := b.place
	p.Share = b.grid.RanksOn(host)
	return p
}

func (b *hostsBackend) network() *hardware.Network { return b.grid }

func (b *hostsBackend) hosts() int { return len(b.others) + 1 }

func (b *hostsBackend) id() string {
	text := b.here.id()
	if b.together == int64(b.hosts()) { // of one host there is nothing else to say
		return fmt.Sprintf("%s in each of %d processes, over %s", text, b.hosts(), b.over)
	}
	if over := cmp.Or(b.nccl, b.over); over != "" {
		text += ", over " + over
	}
	for i, d := range b.about {
		name, _, _ := net.SplitHostPort(b.others[i]) // ports may be others each time
		text += fmt.Sprintf(" %s %s %s %d %s", name, d.Processor, d.Kernels, d.Cores, strings.Join(d.GPUs, ", "))
	}
	return text
}

// memory returns what all ranks have together if each has only the least that any of them has.
func (b *hostsBackend) memory(dir string, process int64) (hardware.Memory, error) {
	m, err := b.here.memory(dir, process)
	if err != nil {
		return m, err
	}
	own := int64(b.grid.RanksOn(0)) * b.together
	m.Host, m.Disk = m.Host/own, m.Disk/own
	if m.Shared {
		m.Device = min(m.Device, m.Host)
	}
	n := int64(b.grid.RanksOn(0))
	for i, addr := range b.others {
		d, err := remote.Describe(addr, b.key, b.placeOn(i+1))
		if err != nil {
			return m, err
		}
		own := int64(b.grid.RanksOn(i + 1))
		m.Device, m.Host, m.Disk = min(m.Device, d.Device), min(m.Host, d.Host/own), min(m.Disk, d.Disk/own)
		n += own
	}
	m.Host, m.Disk = n*m.Host, n*m.Disk
	if b.nccl != "" {
		m.Device = max(0, m.Device-wiresBytes)
	}
	if m.Shared {
		m.Device = m.Host
	}
	return m, nil
}

// probed counts as many ranks on each host as on this one, as far as there are any.
func (b *hostsBackend) probed() int { return min(b.hosts()*b.here.probed(), b.grid.Ranks()) }

func (b *hostsBackend) atOnce() int {
	least := b.here.atOnce()
	for i, d := range b.about {
		least = min(least, max(1, d.Cores/max(d.Cores/b.grid.RanksOn(i+1), 1)))
	}
	return b.hosts() * least
}

func (b *hostsBackend) alone(rank int, disk string) (device.Device, error) {
	host, own := b.grid.Place(rank)
	if host == 0 {
		return b.here.alone(own, disk)
	}
	p := b.placeOn(host)
	p.Own = own
	return b.dial(host, p, clock.Now())
}

// dial opens a device on another host.
func (b *hostsBackend) dial(host int, p remote.Place, origin time.Time) (device.Device, error) {
	d, err := remote.Open(b.others[host-1], b.key, p, origin)
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (b *hostsBackend) open(n int, disk string) (list []device.Device, err error) {
	if n == 1 {
		return b.here.open(1, disk)
	}
	p := b.place
	p.Fabric, p.Ranks, p.Hosts, p.HostOf = rand.Text(), n, append([]string{""}, b.others...), make([]int, n)
	for r := range p.HostOf {
		p.HostOf[r] = b.grid.Host(r)
	}
	open, origin := b.here.openShared(n, newHub(p, 0, b.links, func(addr string, h remote.Hello) (*sealed.Conn, error) {
		return remote.Link(addr, b.key, h)
	}), b.place.NCCL)
	for p.Rank = range n {
		var d device.Device
		p.Share = b.grid.RanksOn(p.HostOf[p.Rank])
		if _, p.Own = b.grid.Place(p.Rank); p.HostOf[p.Rank] == 0 {
			d, err = open(p.Rank, p.Own, fmt.Sprint(disk, p.Rank))
		} else {
			d, err = b.dial(p.HostOf[p.Rank], p, origin)
		}
		if err != nil {
			return nil, errors.Join(err, session.CloseAll(list))
		}
		list = append(list, d)
	}
	return list, nil
}

// newHub returns the links between a host's ranks and the others'.
func newHub(p remote.Place, here int, links link.Open, dial func(addr string, h remote.Hello) (*sealed.Conn, error)) *link.Hub {
	if p.MPI {
		return link.NewHubOver(p.HostOf, here, links)
	}
	return link.NewHub(p.HostOf, here, func(from, to int, k link.Kind) (*sealed.Conn, error) {
		return dial(p.Hosts[p.HostOf[to]], remote.Hello{Fabric: p.Fabric, From: from, To: to, Kind: uint8(k)})
	})
}

func (b *hostsBackend) allCores() backend { return b }

func (b *hostsBackend) oneAtATime() backend {
	own := *b
	own.here, own.place.Apart = b.here.oneAtATime().(localBackend), true
	return &own
}

func (b *hostsBackend) headUnit(seq int) int { return b.here.headUnit(seq) }

func (b *hostsBackend) idle() int { return b.here.idle() }

func (b *hostsBackend) close() error { return b.here.close() }
