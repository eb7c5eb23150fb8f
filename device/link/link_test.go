package link

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/graph"
)

// hubs returns the hubs of two hosts with one rank each.
func hubs(t testing.TB) (list [2]*Hub) {
	t.Helper()
	hosts := []int{0, 1}
	for i := range list {
		list[i] = NewHub(hosts, i, func(from, to int, k Kind) (*sealed.Conn, error) {
			a, b, err := sealed.Loopback()
			if err != nil {
				return nil, err
			}
			return a, list[1].Accept(from, to, k, b)
		})
		t.Cleanup(func() { list[i].Close() })
	}
	return list
}

// ends returns both ends of a pipe.
func ends(t testing.TB, k Kind) (list [2]*Pipe, both [2]*Hub) {
	t.Helper()
	both = hubs(t)
	for _, i := range []int{1, 0} { // who is to be called first
		p, err := both[i].Pipe(i, 1-i, k)
		if err != nil {
			t.Fatal(err)
		}
		list[i] = p
	}
	return list, both
}

// TestPipe: what one end sends is what the other receives, both ways at the same time, however it is
// cut into pieces and however much there is.
func TestPipe(t *testing.T) {
	for seed := range uint64(20) {
		pair, _ := ends(t, Gather)
		r := rand.New(rand.NewPCG(seed, 1))
		var sent [2][]byte
		for i := range sent {
			sent[i] = make([]byte, r.IntN(1<<r.IntN(23)+1))
			for k := range sent[i] {
				sent[i][k] = byte(r.Uint32())
			}
		}
		var all sync.WaitGroup
		for i, p := range pair {
			mine, others := pieces(r, len(sent[i])), pieces(r, len(sent[1-i]))
			got := make([]byte, len(sent[1-i]))
			all.Go(func() {
				at := 0
				for _, n := range mine {
					p.Send(sent[i][at : at+n])
					at += n
				}
				if err := flush(p); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				at := 0
				for _, n := range others {
					if err := receive(p, got[at:at+n]); err != nil {
						t.Error(err)
					}
					at += n
				}
				if !bytes.Equal(got, sent[1-i]) {
					t.Errorf("seed %d: end %d receives other bytes", seed, i)
				}
			})
		}
		all.Wait()
	}
}

// flush pumps until nothing is left.
func flush(p *Pipe) error {
	for {
		if _, left, err := p.Pump(); err != nil || !left {
			return err
		}
		runtime.Gosched()
	}
}

// receive fills b.
func receive(p *Pipe, b []byte) error {
	for len(b) > 0 {
		n, err := p.Receive(b)
		if err != nil {
			return err
		}
		b = b[n:]
		runtime.Gosched()
	}
	return nil
}

// pieces cuts n at random.
func pieces(r *rand.Rand, n int) (list []int) {
	for n > 0 {
		k := min(n, r.IntN(1<<r.IntN(22)+1))
		list = append(list, k)
		n -= k
	}
	return list
}

// TestPipeClosed: whoever sends, receives or waits for a connection when a hub of either
// side is closed gets an error.
func TestPipeClosed(t *testing.T) {
	for closer := range 2 {
		pair, both := ends(t, Up)
		one := make([]byte, 1<<24)
		errs := make(chan error)
		for _, p := range pair {
			go func() { errs <- receive(p, make([]byte, 1<<30)) }()
			go func() {
				var err error
				for err == nil { // one end does not read so much
					p.Send(one)
					err = flush(p)
				}
				errs <- err
			}()
		}
		waiting := &Pipe{}
		go func() { errs <- receive(waiting, one) }()
		if err := errors.Join(waiting.close(), both[closer].Close(), both[closer].Close()); err != nil {
			t.Error(err)
		}
		for range 5 {
			if err := <-errs; err == nil {
				t.Error("no error")
			}
		}
		if _, err := both[closer].Pipe(closer, 1-closer, Down); err == nil {
			t.Error("a closed hub gives out pipes")
		}
	}
}

// TestLost: a pipe that ends means that the other rank is lost; bytes that were changed on the way, that
// this one says so.
func TestLost(t *testing.T) {
	damaged := &sealed.DamagedError{Conn: "a - b"}
	for want, err := range map[int]error{2: errClosed, 1: fmt.Errorf("link: %w", damaged)} {
		if lost := Lost(1, 2, graph.Recv, err); lost.Rank != want || lost.Why != err.Error() {
			t.Errorf("%v: %v", err, lost)
		}
	}
}

// TestAccept: a hub refuses calls that nobody should make, and closes their connections.
func TestAccept(t *testing.T) {
	for want, c := range map[string]end{
		"is on host 2":             {2, 0, Gather},
		"rank 4 for rank 1":        {1, 4, Gather},
		"rank -1 for":              {1, -1, Gather},
		"for rank 9 among 4":       {9, 0, Gather},
		"kind 4":                   {1, 0, NumKinds},
		"host 2 calls host 1":      {1, 2, Gather},
		"host 1 calls host 1":      {1, 3, Gather},
		"already a connection":     {3, 0, Down},
		"the links to other hosts": {1, 0, Up},
	} {
		h := NewHub([]int{0, 1, 2, 1}, 1, nil)
		call := func() (far *sealed.Conn, err error) {
			a, b, err := sealed.Loopback()
			if err != nil {
				t.Fatal(err)
			}
			return a, h.Accept(c.other, c.own, c.kind, b)
		}
		switch want {
		case "already a connection":
			if _, err := call(); err != nil {
				t.Fatal(err)
			}
		case "the links to other hosts":
			h.Close()
		}
		far, err := call()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", c, err, want)
		}
		if n, err := far.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%v: the connection is open", c)
		}
		far.Close()
		h.Close()
	}
}

// TestHeader: a call's header tells the other end what the call is.
func TestHeader(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		operand := func() device.Operand {
			if r.IntN(4) == 0 {
				return device.Operand{}
			}
			return device.Operand{DType: graph.DType(r.IntN(int(graph.NumDTypes))), Addr: r.Int64N(1 << 40), Rows: 1 + r.IntN(5), Cols: r.IntN(1 << 30), Stride: r.IntN(1 << 30)}
		}
		ops := []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce, graph.AllToAll, graph.Send, graph.Recv}
		c := device.Call{Op: ops[r.IntN(len(ops))], Tag: r.IntN(9), Args: []device.Operand{operand(), operand()}, Peers: []int{0, 1}}
		c.Attr.Acc = r.IntN(2) == 0
		b := Header(&c, []int{0, 1})
		got := device.Call{Args: make([]device.Operand, 2), Peers: []int{0, 1}}
		if err := Meet(&got, b, b); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if fmt.Sprint(got) != fmt.Sprint(c) {
			t.Errorf("seed %d: %v came as %v", seed, c, got)
		}
		if MeetingOf(b) != MeetingOf(Header(&device.Call{Op: c.Op, Tag: c.Tag}, []int{0, 1})) {
			t.Error("calls of the same ranks with the same tag do not meet")
		}
		away := Header(&c, []int{0, 2})
		if err := Meet(&got, away, b); err == nil || MeetingOf(away) == MeetingOf(b) {
			t.Error("calls of different groups meet")
		}
		other := c
		other.Tag++
		if err := Meet(&got, Header(&other, []int{0, 1}), b); err == nil {
			t.Error("calls with different tags meet")
		}
	}
}

// FuzzHeader: whatever arrives instead of a header, it is an error or a call that Agree can judge.
func FuzzHeader(f *testing.F) {
	own := device.Call{Op: graph.AllGather, Args: []device.Operand{{Rows: 1, Cols: 8, Stride: 8}, {Rows: 1, Cols: 4, Stride: 4}}, Peers: []int{0, 1}}
	header := Header(&own, []int{0, 1})
	f.Add(header)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != HeaderLen {
			return
		}
		copy(b[16:32], header[16:32]) // else it is always refused
		c := device.Call{Args: make([]device.Operand, 2), Peers: slices.Clone(own.Peers)}
		if Meet(&c, header, b) == nil {
			_ = device.Agree([]*device.Call{&own, &c})
		}
	})
}

// BenchmarkPipe is 64 MiB from one rank to another.
func BenchmarkPipe(b *testing.B) {
	const n = 64 << 20
	list, _ := ends(b, Gather)
	sent, got := make([]byte, n), make([]byte, n)
	b.SetBytes(n)
	for b.Loop() {
		var all sync.WaitGroup
		all.Go(func() {
			list[0].Send(sent)
			_ = flush(list[0])
		})
		_ = receive(list[1], got)
		all.Wait()
	}
}
