package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/device/mpi"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/machine"
)

// Ended reports that the run has ended with an exit code other than 0, for a reason that rank 0 has given.
type Ended struct{ Code int }

func (e *Ended) Error() string {
	return fmt.Sprintf("the run has ended with exit code %d; rank 0 says why", e.Code)
}

const (
	lookAgain = 200 * time.Millisecond // for a leader that is not there yet
	leaveTime = time.Second            // for devices to be closed when the leader is lost
)

// Follow gives this process's cores or GPUs, its share of the host's memory and, for what is spilled, of the disk of
// folder spill to the run that rank 0 leads, until it ends. It returns nil or *Ended as the leader's exit code is,
// *LostError if the leader is lost. When ctx is done, it asks the leader to stop and goes on until that has happened.
// folder is the run's. What this process does for the run goes without saying: rank 0 tells the user.
func Follow(ctx context.Context, l *Launch, folder, spill string) error {
	host := ""
	if l.alone() {
		host = "127.0.0.1"
	}
	at, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer at.Close()
	f := &follower{launch: l, folder: folder, spill: spill, lib: l.findMPI(func(string) {})}
	self := remote.Member{Rank: l.Rank, Size: l.Size, Port: at.Addr().(*net.TCPAddr).Port, Host: hostName(), MPI: versionOf(f.lib)}
	c, err := f.find(ctx, self)
	if err != nil {
		return err
	}
	return f.follow(ctx, newLine(c), at)
}

// Attend is what Follow is for a process that an agent has started, to which it listens at in and which it answers at out.
func Attend(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	key, err := machine.Key()
	if err != nil {
		return err
	}
	to := newLine(pipes{in, out})
	w, err := to.hear()
	if err != nil || w.Post == nil {
		return errors.Join(errors.New("athanor serve starts processes of runs, and says what they are; nobody else does"), err)
	}
	at, err := net.Listen("tcp", net.JoinHostPort(w.Post.Host, "0"))
	if err != nil {
		return err
	}
	defer at.Close()
	l := &Launch{Source: byAgents, Rank: w.Post.Rank, Size: w.Post.Size}
	if err := to.say(word{Member: &remote.Member{Rank: l.Rank, Size: l.Size, Port: at.Addr().(*net.TCPAddr).Port, Host: hostName()}}); err != nil {
		return err
	}
	f := &follower{launch: l, spill: w.Post.Spill, key: key, lent: &w.Post.Limits, claims: make(chan claim, 1)}
	return f.follow(ctx, to, at)
}

// follower is a process that does not lead.
type follower struct {
	launch        *Launch
	folder, spill string
	key           []byte
	lib           *mpi.Library
	world         *mpi.World

	// Of an agent's process.
	lent     *remote.Limits // to all runs on this host; nil: no agent has started this process
	claiming sync.Mutex
	claims   chan claim // answers
}

// claim asks the agent for a part of the host.
func (f *follower) claim(to *line, l remote.Limits) (left remote.Limits, ok bool) {
	f.claiming.Lock()
	defer f.claiming.Unlock()
	if err := to.say(word{Claim: &claim{Limits: l}}); err != nil {
		return left, false
	}
	select {
	case c := <-f.claims:
		return c.Limits, c.OK
	case <-to.gone:
		return left, false
	}
}

// find connects to the leader, which may come later.
func (f *follower) find(ctx context.Context, self remote.Member) (*sealed.Conn, error) {
	own, err := ownKey()
	if err != nil {
		return nil, err
	}
	limit := time.NewTimer(gatherLimit)
	defer limit.Stop()
	for {
		addresses, key, why := f.leader(own)
		for _, addr := range addresses {
			c, err := remote.Join(addr, key, self)
			if err == nil {
				f.key = key
				return c, nil
			}
			why = err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-limit.C:
			return nil, fmt.Errorf("rank 0 was not found within %v: %w; hint: the folder `out` must be shared by all hosts, or the launcher must set MASTER_ADDR and MASTER_PORT, and %s be the same for all", gatherLimit, why, machine.KeyVariable)
		case <-time.After(lookAgain):
		}
	}
}

// leader returns where the leader may be, by the file in the run's folder and by the launcher, and the key. own is the
// environment's key.
func (f *follower) leader(own []byte) (addresses []string, key []byte, err error) {
	n, err := look(f.folder)
	if key = own; err == nil {
		if addresses = n.Addresses; own == nil {
			key = []byte(n.Key)
		}
	}
	if l := f.launch; l.Leader != "" && l.Port != 0 && key != nil {
		addresses = append(addresses, net.JoinHostPort(l.Leader, strconv.Itoa(l.Port)))
	}
	return addresses, key, err
}

// follow serves until the run ends.
func (f *follower) follow(ctx context.Context, to *line, at net.Listener) error {
	words := make(chan word, 1)
	go to.keep(func(w word) {
		switch {
		case w.Claim != nil && f.claims != nil:
			f.claims <- *w.Claim
		case w != (word{}):
			words <- w
		}
	})
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	var served chan error
	rest := func() { // what devices have spilled is removed when they are closed
		if stop(); served != nil {
			select {
			case <-served:
			case <-time.After(leaveTime):
			}
		}
	}
	defer rest()
	asked := ctx.Done()
	for {
		select {
		case <-asked:
			asked = nil
			_ = to.say(word{Stop: true}) // a leader that is lost is noticed below
		case err := <-served:
			return fmt.Errorf("this process no longer waits for the leader's calls: %w", err)
		case <-to.gone:
			return &LostError{Rank: 0, Err: to.err}
		case w := <-words:
			switch {
			case w.Stop:
				_ = to.say(word{Stop: true})
			case w.Refused != "":
				return errors.New(w.Refused)
			case w.Ended:
				if inPeace(w.Code) {
					f.launch.leave(f.world)
				}
				_ = to.say(word{Left: true})
				select {
				case <-to.gone:
				case <-time.After(restLimit(f.world, w.Code)):
				}
				to.close(nil)
				if w.Code != 0 {
					return &Ended{w.Code}
				}
				return nil
			case w.Together > 0 && served == nil:
				shareCores(w.Together)
				if w.MPI {
					if err := f.enter(to); err != nil {
						return err
					}
				}
				var err error
				if served, err = f.serve(serving, to, at, w.Together); err != nil {
					return err
				}
			}
		}
	}
}

// enter joins the MPI world, unless the leader is lost first.
func (f *follower) enter(to *line) (err error) {
	f.world, err = f.launch.enter(f.lib, func() error {
		select {
		case <-to.gone:
			return &LostError{Rank: 0, Err: to.err}
		default:
			return nil
		}
	})
	return err
}

// serve opens devices for the leader, with this process's share of the host.
func (f *follower) serve(ctx context.Context, to *line, at net.Listener, together int) (chan error, error) {
	if err := os.MkdirAll(f.spill, 0o755); err != nil {
		return nil, err
	}
	budget, err := f.budget(to, together)
	if err != nil {
		return nil, err
	}
	part := machine.Part{Spill: f.spill, Folder: f.folder, Budget: budget}
	if f.world != nil {
		part.Links = linksOver(f.world)
	}
	served := make(chan error, 1)
	go func() { served <- part.Serve(ctx, at, f.key, func(string) {}) }()
	return served, nil
}

// budget returns what the leader may take here: of what an agent lends, or of a share of the host.
func (f *follower) budget(to *line, together int) (*remote.Budget, error) {
	if f.lent != nil {
		return &remote.Budget{Limits: *f.lent, Take: func(l remote.Limits) (remote.Limits, bool) { return f.claim(to, l) }}, nil
	}
	limits, err := machine.ServeLimits(f.spill)
	if err != nil {
		return nil, err
	}
	if m, err := sysmem.Read(); err == nil {
		limits.Memory = min(limits.Memory, m.Available)
	}
	limits.Memory, limits.Disk = limits.Memory/int64(together), limits.Disk/int64(together)
	return remote.NewBudget(limits), nil
}

// hostName tells hosts apart, and containers on one host.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		name = "a host"
	}
	return name
}

// shareCores makes this process use only its share of the cores that it has together with others of the run, unless the
// launcher has given it less. A user's GOMAXPROCS holds.
func shareCores(together int) {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	all := float64(onlineCores())
	if quota := sysmem.Cores(); quota > 0 {
		all = min(all, quota)
	}
	if n := max(1, int(all)/together); n < runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}

// onlineCores returns the number of cores of this host, of which the launcher may have given this process some; where
// that is not known, those that the process has.
func onlineCores() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return runtime.NumCPU()
	}
	n := 0
	for _, part := range strings.Split(strings.TrimSpace(string(text)), ",") {
		first, last, ranged := strings.Cut(part, "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if err == nil && ranged {
			hi, err = strconv.Atoi(last)
		}
		if err != nil {
			return runtime.NumCPU()
		}
		n += hi - lo + 1
	}
	return max(n, runtime.NumCPU())
}
