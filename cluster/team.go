package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/device/mpi"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/device/sealed"
)

const (
	gatherLimit = 10 * time.Minute // from the first process of a run to the last: nodes boot, images are pulled
	gatherNote  = 30 * time.Second
	endLimit    = 2 * time.Second // for the others to hear how the run has ended
)

// Team is the processes of a run as rank 0 sees them. Its owner calls End.
type Team struct {
	Others   []string // addresses at which the others wait for calls, by rank from 1
	Key      []byte   // that all know
	Together int      // processes on this host, this one included
	Over     Carrier  // of the bytes between them
	Asked    <-chan struct{}
	Lost     <-chan error // a *LostError, when another process is lost

	deviceless
	launch *Launch
	lib    *mpi.Library
	world  *mpi.World
	asked  chan struct{}
	lost   chan error

	mu      sync.Mutex
	members []*member // by rank; nil: not there yet, and rank 0
	missing int
	all     chan struct{} // closed when none is missing
	lines   sync.WaitGroup
}

// member is a follower as the leader sees it.
type member struct {
	*line
	remote.Member
	left    chan struct{} // has a value when it has left
	ip, own net.IP        // its address, and this process's on the same connection
	named   string        // its address, as the user has named it; "": nobody has
}

// LostError reports that another process of the run is gone.
type LostError struct {
	Rank int
	Host string
	Err  error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("process %d, on %s, is lost: %v; hint: start the same job again, which continues from the latest checkpoint, if there is one", e.Rank, cmp.Or(e.Host, "its host"), e.Err)
}

func (e *LostError) Unwrap() error { return e.Err }

// newTeam returns a team of which only this process is there.
func newTeam(l *Launch) *Team {
	t := &Team{launch: l, asked: make(chan struct{}, 1), lost: make(chan error, 1), members: make([]*member, l.Size), missing: l.Size - 1, all: make(chan struct{})}
	t.Asked, t.Lost = t.asked, t.lost
	return t
}

// Lead waits for the other processes of a run, as rank 0. They find it by the run's folder, or where the launcher says.
func Lead(ctx context.Context, l *Launch, folder string, note func(string)) (*Team, error) {
	t := newTeam(l)
	t.lib = l.findMPI(note)
	at, err := l.listen()
	if err != nil {
		return nil, fmt.Errorf("rank 0 cannot wait for the others: %w", err)
	}
	if err := t.post(at, folder); err != nil {
		return nil, errors.Join(err, at.Close())
	}
	defer remove(folder)
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- remote.Serve(serving, at, t.Key, t, remote.NewBudget(remote.Limits{}), note) }()
	err = t.gather(ctx, note)
	stop()
	if err = errors.Join(err, <-ended); err == nil {
		err = t.welcome()
	}
	if err != nil {
		t.End(1)
		return nil, err
	}
	return t, nil
}

// post says in the run's folder where this process waits. Where that is not possible, the others must know.
func (t *Team) post(at net.Listener, folder string) (err error) {
	n := new(notice)
	if n.Addresses, err = reachable(at); err != nil {
		return err
	}
	if t.Key, err = ownKey(); err != nil {
		return err
	}
	if t.Key == nil {
		t.Key = drawn()
		n.Key = string(t.Key)
	}
	return n.post(folder)
}

// gather waits until all are there.
func (t *Team) gather(ctx context.Context, note func(string)) error {
	limit := time.NewTimer(gatherLimit)
	defer limit.Stop()
	tick := time.NewTicker(gatherNote)
	defer tick.Stop()
	for {
		select {
		case <-t.all:
			return nil
		case err := <-t.lost:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			note("waiting for " + t.absent())
		case <-limit.C:
			return fmt.Errorf("%s did not come within %v; hint: check that the launcher has started the same command on all hosts, with the same `out` on a folder that they share, or with %s and a rank 0 that they can reach", t.absent(), gatherLimit, "MASTER_ADDR, MASTER_PORT, ATHANOR_KEY")
		}
	}
}

// absent names the processes that are not there yet.
func (t *Team) absent() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []int
	for r, m := range t.members[1:] {
		if m == nil {
			list = append(list, r+1)
		}
	}
	const most = 8
	if len(list) > most {
		return fmt.Sprintf("%d of %d processes, %v and so on", len(list), t.launch.Size, list[:most])
	}
	return fmt.Sprintf("%d of %d processes, %v", len(list), t.launch.Size, list)
}

// Join takes the line of a follower, or refuses it and says why.
func (t *Team) Join(m remote.Member, c *sealed.Conn) error {
	e := newMember(newLine(c), m, c)
	if err := t.admit(e); err != nil {
		_ = e.say(word{Refused: err.Error()})
		e.close(err)
		return fmt.Errorf("process %d: %w", m.Rank, err)
	}
	t.keep(e)
	return nil
}

func newMember(l *line, m remote.Member, c net.Conn) *member {
	return &member{line: l, Member: m, left: make(chan struct{}, 1), ip: addressOf(c.RemoteAddr()), own: addressOf(c.LocalAddr())}
}

// keep listens to a member until its line is closed.
func (t *Team) keep(e *member) {
	t.lines.Go(func() {
		e.keep(func(w word) {
			switch {
			case w.Stop:
				tell(t.asked, struct{}{})
			case w.Left:
				tell(e.left, struct{}{})
			}
		})
		tell(t.lost, error(&LostError{Rank: e.Rank, Host: e.Host, Err: e.err}))
	})
}

// tell puts a value into a channel that has room for one, unless there is one.
func tell[T any](to chan T, v T) {
	select {
	case to <- v:
	default:
	}
}

func (t *Team) admit(e *member) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch m := e.Member; {
	case m.Size != t.launch.Size || m.Rank < 1 || m.Rank >= m.Size:
		return fmt.Errorf("process %d of %d cannot be one of this run, which has %d; hint: all processes must be started by one launcher", m.Rank, m.Size, t.launch.Size)
	case t.members[m.Rank] != nil:
		return fmt.Errorf("there is a process %d already, on %s; hint: all processes must be started by one launcher", m.Rank, t.members[m.Rank].Host)
	}
	t.members[e.Rank] = e
	if t.missing--; t.missing == 0 {
		close(t.all)
	}
	return nil
}

// welcome tells all how many they are on their hosts, and sets what the leader says of them.
func (t *Team) welcome() error {
	own := hostName()
	count := map[string]int{own: 1}
	var outside net.IP // this host's address for others
	lacks := t.lacks(versionOf(t.lib))
	for _, e := range t.members[1:] {
		if count[e.Host]++; !e.own.IsLoopback() {
			outside = e.own
		}
	}
	t.Together = count[own]
	for _, e := range t.members[1:] {
		host := e.named
		if host == "" {
			host = e.ip.String()
		}
		if e.ip.IsLoopback() && outside != nil { // other hosts, too, must reach it
			host = outside.String()
		}
		t.Others = append(t.Others, net.JoinHostPort(host, fmt.Sprint(e.Port)))
		if err := e.say(word{Together: count[e.Host], MPI: lacks == ""}); err != nil {
			return &LostError{Rank: e.Rank, Host: e.Host, Err: err}
		}
	}
	shareCores(t.Together)
	if t.Over = connections(lacks); lacks != "" {
		return nil
	}
	world, err := t.launch.enter(t.lib, t.anyLost)
	if err != nil {
		return err
	}
	t.world = world
	t.Over = t.choose()
	return nil
}

// anyLost returns the loss of a process, if one is lost.
func (t *Team) anyLost() error {
	select {
	case err := <-t.lost:
		return err
	default:
		return nil
	}
}

// Hosts returns on how many hosts the processes are.
func (t *Team) Hosts() int {
	names := []string{hostName()}
	for _, e := range t.members[1:] {
		names = append(names, e.Host)
	}
	slices.Sort(names)
	return len(slices.Compact(names))
}

// End tells the others that the run has ended with an exit code, which will be theirs. If the code says that nobody has
// failed, all leave MPI; nobody exits before all have, since mpiexec ends the others of one that exits.
func (t *Team) End(code int) {
	t.mu.Lock()
	members := slices.DeleteFunc(slices.Clone(t.members), func(e *member) bool { return e == nil })
	t.mu.Unlock()
	for _, e := range members {
		_ = e.say(word{Ended: true, Code: code}) // one that is gone needs not know
	}
	if inPeace(code) {
		t.launch.leave(t.world)
	}
	limit := time.After(restLimit(t.world, code))
	for over := false; !over && len(members) > 0; members = members[1:] {
		select {
		case <-members[0].left:
		case <-members[0].gone:
		case <-limit:
			over = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.members {
		if e != nil {
			e.close(errors.New("the run has ended"))
		}
	}
	t.lines.Wait()
}

// restLimit is how long the processes of a run wait for each other when it has ended with an exit code.
func restLimit(w *mpi.World, code int) time.Duration {
	if w != nil && inPeace(code) {
		return leaveLimit
	}
	return endLimit
}

// saved is the exit code of a run that was asked to stop.
const saved = 75

// inPeace reports whether a run that ends with an exit code has all its processes.
func inPeace(code int) bool { return code == 0 || code == saved }

func addressOf(a net.Addr) net.IP {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP
	}
	return nil
}
