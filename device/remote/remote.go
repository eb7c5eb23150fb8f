// Package remote is a device of another process, mostly on another host. What is said to it travels over TCP.
//
// The leader is the process with the plan, the data and the checkpoints. For each rank
// on another host it has one Device here; that host runs Serve, which opens real
// devices and has the programs of its ranks: in a step it is sent the rows of the batch,
// and launches the program's calls itself. What else drives devices (session, probing)
// does not notice:
//
//	leader                                     host
//	exec ─► remote.Device ── control ─────────► Serve ─► exec.Listing ─► device/cpu | device/cuda
//	             └────────── side ────────────►   └── Abort, Done, Progress
//	                                           host ◄── data ──► host
//
// A device has two connections. Control carries everything in the order in which its caller said it:
// inputs and the number of a program have no answer, so a step is a few messages in one
// direction, and an answer at its end (wire.go). Side carries what must not wait behind that: the order
// to end a round, and looks at its progress. Side is also the life line: it is never full, so the death
// of a process or a host shows there, and whoever sees one connection end closes the other.
//
// Data connections are between ranks on different hosts. This package accepts them and passes them on
// (Opener.Link); what travels there is not its business.
//
//	greet.go    how both sides of a connection recognise each other
//	wire.go     frames; errors as values
//	device.go   Device, the leader's end of control; side.go its end of side
//	serve.go    Serve: who may connect, and as what; guests.go those who have not proved the key
//	lease.go    one opened device on its host; script.go the programs that it runs,
//	            saving.go what it writes of checkpoints
//	budget.go   what leaders may take of a host together
//
// Safety. Both sides prove that they know a key before either parses anything but fields
// of fixed size. From then on all that travels is encrypted and authenticated, in its order (package
// sealed). Whoever knows the key is trusted with the host's cores and with a bounded part of its memory
// and disk, but what it says is checked: it cannot crash Serve, only be cut off. Known weakness: a leader
// says where its run's other hosts are, so it can make a host call addresses that the leader cannot reach;
// what comes of that is written in the host's log, and not told to the leader.
//
// Clocks. Spans are converted to the leader's clock when a round ends: the answer says what time it is
// on the host, and is assumed to have taken half of the shortest round trip seen when the device was
// opened. So spans are late by what this answer took beyond that, and off by half the difference
// between the two directions: some ten microseconds on a local network.
package remote

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/sealed"
)

// Place says where and as what a device is opened.
type Place struct {
	Device string                     // cpu or cuda
	Fabric string                     // joins devices that were opened with the same; "": alone
	Rank   int                        // of the fabric
	Ranks  int                        // of the fabric
	Hosts  []string                   // by host: its address; "": the leader, which nobody dials
	HostOf []int                      // by rank: index in Hosts
	Rate   [device.NumStreams]float64 // see cpu.Options.Rate
	Apart  bool                       // see cpu.Options.Apart
	Share  int                        // ranks that share the host's cores
	Own    int                        // which of them this one is
	MPI    bool                       // ranks of different processes exchange bytes over MPI, see Member
	NCCL   bool                       // and GPUs over NCCL
	// SumRows: see cuda.Options.SumRows.
	SumRows int
}

// maxRanks bounds what a place may claim.
const maxRanks = 1 << 16

// onGPU reports whether the device's memory is a GPU's.
func (p *Place) onGPU() bool { return device.IsGPU(p.Device) }

// check rejects a place that no leader can mean.
func (p *Place) check() error {
	switch {
	case p.Fabric == "" && (p.Ranks > 1 || p.Rank != 0):
		return fmt.Errorf("rank %d of %d belongs to no fabric", p.Rank, p.Ranks)
	case p.Fabric != "" && (p.Rank < 0 || p.Rank >= p.Ranks || p.Ranks > maxRanks):
		return fmt.Errorf("there is no rank %d among %d", p.Rank, p.Ranks)
	case len(p.HostOf) != 0 && len(p.HostOf) != p.Ranks:
		return fmt.Errorf("hosts are given for %d of %d ranks", len(p.HostOf), p.Ranks)
	case p.Share < 0 || p.Own < 0 || p.Own > p.Share || p.SumRows < 0:
		return fmt.Errorf("impossible share of the cores: part %d of %d", p.Own, p.Share)
	}
	for r, h := range p.HostOf {
		if h < 0 || h >= len(p.Hosts) {
			return fmt.Errorf("rank %d is on host %d of %d", r, h, len(p.Hosts))
		}
	}
	for s, rate := range p.Rate {
		if !(rate >= 0) || math.IsInf(rate, 0) {
			return fmt.Errorf("impossible rate of %g bytes per second on stream %s", rate, device.Stream(s))
		}
	}
	return nil
}

// Hello says what a data connection between two ranks is for.
type Hello struct {
	Fabric   string
	From, To int   // ranks; the host of To is dialled
	Kind     uint8 // as both ends have agreed
}

// Member is a process that joins those that a launcher has started as one run.
type Member struct {
	Rank, Size int    // which it is, of how many
	Port       int    // at which it will Serve
	Host       string // name of its host
	MPI        string // version of the MPI library that it has loaded; "": none
}

// Process is one of a run that its leader asks a host to start.
type Process struct {
	Rank, Size int    // which it is, of how many
	Build      string // of the leader, see package build
}

// Description is what a host says about itself.
type Description struct {
	Processor, Kernels, Version string
	Cores                       int
	GPUs                        []string // that its ranks have
	Boards                      []string // which ones these are, among all hosts'
	NCCL                        string   // version of NCCL over which they can be reached; "": none
	Device, Host, Disk          int64    // available bytes; on the device, the least of any rank
	Ranks                       int      // that may be opened
	Idle                        int      // GPUs besides those asked for
	// Ahead is by how much the host's clock is ahead of this one's, less the time in which its answer travelled.
	Ahead time.Duration
}

// Dated is a device that says where its spans' clock begins. For others, Serve takes the moment before
// they were opened, which is too early by the time that opening them took.
type Dated interface{ Origin() time.Time }

// alive makes the kernel notice within 15 seconds that a host no longer exists, even if nothing is
// sent. A process that is only stopped keeps its connections.
var alive = net.KeepAliveConfig{Enable: true, Idle: 6 * time.Second, Interval: 3 * time.Second, Count: 3}

const vanished = 15 * time.Second // as alive has it

// describeLimit is how long a host may take to say what it is: it may have to look at GPUs.
const describeLimit = time.Minute

// Describe asks a host what it offers ranks in such a place.
func Describe(addr string, key []byte, p Place) (Description, error) {
	var about Description
	conn, err := dial(addr, key, &opening{Purpose: describing, Place: p})
	if err == nil {
		defer conn.Close()
		if err = conn.SetDeadline(time.Now().Add(describeLimit)); err == nil {
			if err = readResult(conn, &about); err == nil {
				about.Ahead -= sinceEpoch()
			}
		}
	}
	if err != nil {
		return Description{}, at(addr, err)
	}
	return about, nil
}

// sinceEpoch is what this host's clock says.
func sinceEpoch() time.Duration { return time.Duration(time.Now().UnixNano()) }

// Link opens a data connection to the host of rank h.To. Its Opener has it when Link
// returns, or refuses it soon by closing it.
func Link(addr string, key []byte, h Hello) (*sealed.Conn, error) {
	conn, err := dial(addr, key, &opening{Purpose: linking, Link: h})
	if err != nil {
		return nil, at(addr, err)
	}
	return conn, nil
}

// Join connects to the process that leads a run, which serves at addr. What is said on the connection is up to both.
func Join(addr string, key []byte, m Member) (*sealed.Conn, error) {
	conn, err := dial(addr, key, &opening{Purpose: joining, Member: m})
	if err != nil {
		return nil, at(addr, err)
	}
	return conn, nil
}

// Start asks the host that serves at addr for a process of a run. What is said on the connection is up to both.
func Start(addr string, key []byte, p Process) (*sealed.Conn, error) {
	conn, err := dial(addr, key, &opening{Purpose: starting, Process: p})
	if err != nil {
		return nil, at(addr, err)
	}
	return conn, nil
}

// at names the host of an error.
func at(addr string, err error) error { return fmt.Errorf("remote: host %s: %w", addr, hungUp(err)) }

// hungUp says what the end of a connection means.
func hungUp(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return hinted(errors.New("it hung up"))
	}
	return err
}

// hinted adds where to look to an error that has no hint of its own.
func hinted(err error) error {
	if strings.Contains(err.Error(), "hint:") {
		return err
	}
	return fmt.Errorf("%w; hint: see what athanor has printed on that host", err)
}
