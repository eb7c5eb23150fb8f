package machine

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
)

// wires carry bytes between two processes of a test, or lose them.
type wires struct {
	lose, fail bool

	mu    sync.Mutex
	bytes map[wire][]byte // on their way
	moved int
}

// wire is a direction of a pipe.
type wire struct {
	from, to int
	kind     link.Kind
}

// carrier is one end of a pipe.
type carrier struct {
	*wires
	out, in wire
}

func (w *wires) open(_, own, other int, k link.Kind) (link.Carrier, error) {
	return &carrier{w, wire{own, other, k}, wire{other, own, k}}, nil
}

func (c *carrier) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail {
		return 0, errors.New("a broken wire")
	}
	if c.moved += len(p); !c.lose {
		c.bytes[c.out] = append(c.bytes[c.out], p...)
	}
	return len(p), nil
}

func (c *carrier) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(p, c.bytes[c.in])
	c.bytes[c.in] = c.bytes[c.in][n:]
	return n, nil
}

func (c *carrier) Pending() bool { return false }

func (c *carrier) Close() error { return nil }

// TestTime: what is timed goes over the links that are given, or over none of them; links that fail, or that lead
// nowhere, are an error soon, and the other process goes on.
func TestTime(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	w := &wires{bytes: map[wire][]byte{}}
	key := []byte("a key of this test")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	part := Part{Spill: t.TempDir(), Budget: remote.NewBudget(remote.Limits{Memory: 1 << 30, Ranks: 2}), Links: w.open}
	go func() { ended <- part.Serve(ctx, l, key, func(string) {}) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	others := []string{"192.0.2.1:1", l.Addr().String()} // the first is not to be called
	for _, c := range []struct {
		links link.Open
		fail  bool
		lose  bool
		want  string
	}{{links: w.open}, {}, {links: w.open, fail: true, want: "a broken wire"}, {links: w.open, lose: true, want: "nothing came of it"}, {}} {
		w.moved, w.fail, w.lose = 0, c.fail, c.lose
		limit := time.Minute
		if c.lose {
			limit = 20 * time.Millisecond
		}
		var e Exchange
		err := e.time(others, 2, key, c.links, limit)
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		case err != nil:
			t.Error(err)
		case e.Few <= 0 || e.Many <= 0 || (w.moved >= fewBytes+manyBytes) != (c.links != nil):
			t.Errorf("%v, and %d bytes went over the links", e, w.moved)
		}
	}
}

// TestBeats: connections must be clearly faster than what the launcher has brought.
func TestBeats(t *testing.T) {
	mpi := Exchange{1, 9}
	for _, c := range []struct {
		connections Exchange
		want        bool
	}{{Exchange{1, 9}, false}, {Exchange{0.5, 8.6}, false}, {Exchange{0.9, 8}, true}, {Exchange{20, 1}, false}} {
		if got := c.connections.Beats(mpi); got != c.want {
			t.Errorf("%v against %v: %v", c.connections, mpi, got)
		}
	}
}
