// Package link carries bytes between ranks of different processes, mostly on different
// hosts.
//
// Ranks of one process meet in shared memory or over a bus. Ranks of different processes have TCP
// connections, their pipes, one per pair of ranks and kind of traffic:
//
//	rank 0 ===Gather=== rank 1     collectives, both ways
//	       ---Up------>            messages from the lower rank, and who has arrived
//	       <--Down-----            messages from the higher rank, and who has arrived
//	       ===Calls====            headers of calls before they run, both ways (GPUs only)
//
// No other order needs to be kept: a rank's calls of a kind are on one stream, and programs are proved
// to issue the calls of two ranks in the same order, since otherwise the ranks would wait for each
// other within one process, too. So a pipe needs no labels and no acknowledgements; its bytes go from
// arena to arena, through the records of package sealed. A call begins with a Header, by which each side
// sees that both mean the same call.
//
// A Hub has the pipes of one process's ranks. Which of two hosts calls the other is fixed by their
// order, so only the later ones have to listen, and the first, which leads the run, may be behind a
// router.
//
// Known weakness: two ranks of one host that need the same bytes of a third receive them separately.
// That does not matter while a host has one rank or two.
package link

import (
	"errors"
	"fmt"
	"sync"

	"github.com/athanor-llm/athanor/device/sealed"
)

// Kind of traffic between two ranks.
type Kind uint8

const (
	Gather   Kind = iota // collectives
	Up                   // messages from the lower of two ranks to the higher
	Down                 // and from the higher to the lower
	Calls                // what is prepared, both ways
	NumKinds             // number of kinds
)

// Message returns the kind of the messages from one rank to another.
func Message(from, to int) Kind {
	if from < to {
		return Up
	}
	return Down
}

// Carrier carries a pipe's bytes, in their order, both ways. It never waits: Write takes and Read gives what is possible
// now, perhaps nothing; Pending reports whether some of what Write took is still to be sent, with which another Write, even of nothing,
// goes on. A connection of package sealed whose socket does not wait is one.
type Carrier interface {
	Write(p []byte) (int, error)
	Read(p []byte) (int, error)
	Pending() bool
	Close() error
}

// Open returns what carries the pipe of one kind between a rank here and one on another host. Both ends call it.
type Open func(host, own, other int, k Kind) (Carrier, error)

// Dial connects a rank of this process to one of another.
type Dial func(from, to int, k Kind) (*sealed.Conn, error)

// Hub has the pipes of the ranks of one process. Its methods are safe for concurrent use.
type Hub struct {
	hosts []int // by rank
	here  int
	dial  Dial
	open  Open // nil: pipes are connections

	mu    sync.Mutex
	pipes map[end]*Pipe
	err   error // the hub is closed
}

// end is a pipe as one of its ranks sees it.
type end struct {
	own, other int
	kind       Kind
}

// NewHub returns the hub of host here. hosts has the host of every rank.
func NewHub(hosts []int, here int, dial Dial) *Hub {
	return &Hub{hosts: hosts, here: here, dial: dial, pipes: map[end]*Pipe{}}
}

// NewHubOver returns the hub of host here whose pipes are not connections: both ends open them.
func NewHubOver(hosts []int, here int, open Open) *Hub {
	h := NewHub(hosts, here, nil)
	h.open = open
	return h
}

// IsLocal reports whether a rank is in this process.
func (h *Hub) IsLocal(rank int) bool { return h.hosts[rank] == h.here }

// ShareProcess reports whether two ranks are in one process.
func (h *Hub) ShareProcess(a, b int) bool { return h.hosts[a] == h.hosts[b] }

// Pipe returns the pipe of one kind between a rank here and one elsewhere, the same each time. It calls
// the other host if that is this host's part; otherwise nothing is sent or received until that host has
// called.
func (h *Hub) Pipe(own, other int, k Kind) (*Pipe, error) {
	h.mu.Lock()
	p, known := h.pipes[end{own, other, k}]
	if !known && h.err == nil {
		p = h.add(end{own, other, k})
	}
	err := h.err
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if known {
		return p, nil
	}
	if h.open != nil {
		c, err := h.open(h.hosts[other], own, other, k)
		if err != nil {
			return nil, fmt.Errorf("a link from rank %d to rank %d: %w", own, other, err)
		}
		return p, p.carry(c)
	}
	if h.here > h.hosts[other] {
		return p, nil
	}
	c, err := h.dial(own, other, k)
	if err != nil {
		return nil, fmt.Errorf("a link from rank %d to rank %d: %w", own, other, err)
	}
	return p, p.connect(c)
}

// add makes a pipe. The hub is locked.
func (h *Hub) add(e end) *Pipe {
	p := &Pipe{}
	h.pipes[e] = p
	return p
}

// Accept takes a connection that another host's rank from has made to rank to here.
func (h *Hub) Accept(from, to int, k Kind, c *sealed.Conn) error {
	if err := h.expects(from, to, k); err != nil {
		return errors.Join(err, c.Close())
	}
	h.mu.Lock()
	p, ok := h.pipes[end{to, from, k}]
	if !ok && h.err == nil {
		p = h.add(end{to, from, k})
	}
	err := h.err
	h.mu.Unlock()
	if err != nil {
		return errors.Join(err, c.Close())
	}
	return p.connect(c)
}

// expects returns an error unless another host may call for this pipe.
func (h *Hub) expects(from, to int, k Kind) error {
	n := len(h.hosts)
	switch {
	case from < 0 || from >= n || to < 0 || to >= n || k >= NumKinds:
		return fmt.Errorf("link: impossible call from rank %d for rank %d among %d ranks, kind %d", from, to, n, k)
	case !h.IsLocal(to):
		return fmt.Errorf("link: a call for rank %d, which is on host %d, not %d", to, h.hosts[to], h.here)
	case h.open != nil:
		return fmt.Errorf("link: host %d calls, but no connections are made in this run", h.hosts[from])
	case h.hosts[from] >= h.here:
		return fmt.Errorf("link: host %d calls host %d, which is the one to call", h.hosts[from], h.here)
	}
	return nil
}

// Close ends all pipes: whoever sends or receives gets an error. A closed hub stays closed.
func (h *Hub) Close() error {
	h.mu.Lock()
	if h.err != nil {
		h.mu.Unlock()
		return nil
	}
	h.err = errors.New("the links to other hosts are closed")
	pipes := h.pipes
	h.pipes = nil
	h.mu.Unlock()
	var errs []error
	for _, p := range pipes {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}
