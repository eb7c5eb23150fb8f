package cpu

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestLost: when one rank fails, whatever it is doing, the others end their round with an error that
// names it, whatever they are waiting for.
func TestLost(t *testing.T) {
	broken := errors.New("switched off")
	everybody := []int{0, 1, 2, 3}
	x, part := vector(graph.F32, 0, 64), func(k int) device.Operand { return vector(graph.F32, int64(64*k), 16) }
	gather := func(k int) device.Call {
		return device.Call{Op: graph.AllGather, Stream: device.Collective, Peers: everybody, Args: []device.Operand{x, part(k)}}
	}
	tokens := device.Operand{DType: graph.I32, Addr: 4096, Rows: 1, Cols: 1, Stride: 1}
	for name, kill := range map[string]func(d *Device, first int){
		"aborted":        func(d *Device, _ int) { d.Abort(broken) },
		"a wrong launch": func(d *Device, _ int) { d.Launch(1 << 20) },
		"a panic":        func(d *Device, first int) { d.Launch(first + 3) },
	} {
		t.Run(name, func(t *testing.T) {
			list := newFabric(t, 4, Options{Workers: 1})
			errs := make([]error, 4)
			var all sync.WaitGroup
			for k, d := range list {
				calls := []device.Call{gather(k), message(graph.Recv, vector(graph.F32, 8192, 9), (k+1)%4, 1), gather(k),
					{Op: graph.Embed, Attr: graph.Attr{Seq: 1}, Args: []device.Operand{x, tokens, x}}}
				if err := d.Write(0, 4096, []byte{0, 0, 0, 1}); err != nil { // a token that is out of range
					t.Fatal(err)
				}
				first, err := d.Prepare(calls, nil)
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() {
					d.Launch(first)
					if k == 2 {
						d.Wait(device.Compute, first) // dies after the first meeting
						kill(d, first)
						errs[k] = d.Sync()
						return
					}
					d.Launch(first + 1)
					d.Launch(first + 2)
					errs[k] = d.Sync()
				})
			}
			all.Wait()
			for k, err := range errs {
				var lost *device.PeerError
				switch is := errors.As(err, &lost); {
				case k == 2 && (is || err == nil), k == 2 && name == "aborted" && !errors.Is(err, broken):
					t.Errorf("rank 2, which failed, says %v", err)
				case k != 2 && (!is || lost.Rank != 2):
					t.Errorf("rank %d says %v", k, err)
				}
			}
			// It stays that way.
			for _, k := range []int{0, 2} {
				if _, err := round(t, list[k], gather(k)); err == nil || !strings.Contains(err.Error(), "peer lost: rank 2") {
					t.Errorf("rank %d goes on: %v", k, err)
				}
			}
		})
	}
}

// TestInterrupted: a rank that meets nobody learns of a lost one all the same, and skips what it has
// not begun.
func TestInterrupted(t *testing.T) {
	list := newFabric(t, 2, Options{Workers: 1})
	list[0].Abort(errors.New("switched off"))
	x, y := vector(graph.F32, 0, 8), vector(graph.F32, 4096, 8)
	scramble(t, rand.New(rand.NewPCG(5, 5)), list[1], x)
	_, err := round(t, list[1], copyCall(device.Compute, y, x))
	var lost *device.PeerError
	if !errors.As(err, &lost) || lost.Rank != 0 {
		t.Errorf("rank 1 says %v", err)
	}
	if got := get(t, list[1], y); got[0] != 0 {
		t.Errorf("a call of a lost round ran: %v", got)
	}
}

// TestKilled: killing ranks at any moment of an endless series of rounds ends all others.
func TestKilled(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 4))
		hosts := []int{0, 0, 0, 0}
		if seed%2 == 1 {
			hosts = []int{0, 1, 0, 1}
		}
		list := joined(t, hosts, Options{Workers: 1})
		victim, after := r.IntN(4), int64(r.IntN(2000))
		var all sync.WaitGroup
		errs := make([]error, 4)
		for k, d := range list {
			first, err := d.Prepare([]device.Call{
				{Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 1, 2, 3}, Args: []device.Operand{vector(graph.F32, 0, 999)}},
				message(graph.Send, vector(graph.F32, 8192, 9), (k+1)%4, 1),
				message(graph.Recv, vector(graph.F32, 16384, 9), (k+3)%4, 1),
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				for errs[k] == nil {
					for i := range 3 {
						d.Launch(first + i)
					}
					errs[k] = d.Sync()
				}
			})
		}
		f := list[0].options.Fabric
		m := f.groups["[0 1 2 3]"]
		for int64(m.opened.Load()) < after {
			runtime.Gosched()
		}
		list[victim].Abort(errors.New("killed"))
		all.Wait()
		for k, err := range errs {
			var lost *device.PeerError
			if is := errors.As(err, &lost); is == (k == victim) || is && hosts[lost.Rank] != hosts[victim] || is && hosts[k] == hosts[victim] && lost.Rank != victim {
				t.Errorf("seed %d: rank %d was killed, rank %d says %v", seed, victim, k, err)
			}
		}
	}
}

// TestDisagreement: calls that do not fit together fail on all ranks.
func TestDisagreement(t *testing.T) {
	both := []int{0, 1}
	x, y := vector(graph.F32, 0, 64), vector(graph.F32, 4096, 32)
	gather := func(args ...device.Operand) device.Call {
		return device.Call{Op: graph.AllGather, Stream: device.Collective, Peers: both, Args: args}
	}
	sum := func(o device.Operand) device.Call {
		return device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: both, Args: []device.Operand{o}}
	}
	for want, pair := range map[string][2]device.Call{
		"rank 0 is at all_gather and rank 1 at all_reduce":     {gather(x, y), sum(x)},
		"rank 0 sums 64 elements, but rank 1 sums 32":          {sum(x), sum(y)},
		"64 elements, rank 0 has 65":                           {gather(vector(graph.F32, 0, 65), y), gather(vector(graph.F32, 0, 65), y)},
		"rank 0 has f32 and rank 1 has f64":                    {sum(x), sum(vector(graph.F64, 0, 64))},
		"rank 1: its part of all_gather, bytes 0":              {gather(x, y), gather(x, vector(graph.F32, 0, 32))},
		"1 x 64 f32 are sent to rank 1, which receives 1 x 32": {message(graph.Send, x, 1, 0), message(graph.Recv, y, 0, 0)},
	} {
		for _, hosts := range [][]int{{0, 0}, {0, 1}} {
			list := joined(t, hosts, Options{Workers: 1})
			for k, err := range together(t, list, [][]device.Call{{pair[0]}, {pair[1]}}) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("rank %d on hosts %v says %v, want %q", k, hosts, err, want)
				}
			}
		}
	}
}

// TestRefused: what cannot be right is refused when it is prepared.
func TestRefused(t *testing.T) {
	list := newFabric(t, 2, Options{Workers: 1})
	both := []int{0, 1}
	x := vector(graph.F32, 0, 64)
	for want, c := range map[string]device.Call{
		"must be on collective":           {Op: graph.AllReduce, Stream: device.Compute, Peers: both, Args: []device.Operand{x}},
		"0 peers":                         {Op: graph.AllReduce, Stream: device.Collective, Args: []device.Operand{x}},
		"ascending":                       {Op: graph.AllReduce, Stream: device.Collective, Peers: []int{1, 0}, Args: []device.Operand{x}},
		"peer 2 does not exist":           {Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 2}, Args: []device.Operand{x}},
		"rank 0 is not among its peers":   {Op: graph.AllReduce, Stream: device.Collective, Peers: []int{1}, Args: []device.Operand{x}},
		"rank 0 is its own peer":          message(graph.Send, x, 0, 0),
		"collectives operands of one row": {Op: graph.ReduceScatter, Stream: device.Collective, Peers: both, Args: []device.Operand{x, operand(0, 0, 2, 8, 8)}},
		"sums over ranks in f32":          {Op: graph.ReduceScatter, Stream: device.Collective, Peers: both, Args: []device.Operand{vector(graph.BF16, 0, 8), vector(graph.BF16, 64, 16)}},
		"gaps between its 2 rows":         {Op: graph.AllReduce, Stream: device.Collective, Peers: both, Args: []device.Operand{operand(0, 0, 2, 8, 16)}},
		"use the device tier":             {Op: graph.AllReduce, Stream: device.Collective, Peers: both, Args: []device.Operand{operand(device.HostTier, 0, 1, 8, 8)}},
		"operand src is bf16, not f32":    {Op: graph.AllGather, Stream: device.Collective, Peers: both, Args: []device.Operand{x, vector(graph.BF16, 4096, 32)}},
	} {
		if c.Args[0].Tier == device.HostTier {
			if err := list[0].Reserve(device.HostTier, 4096); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := list[0].Prepare([]device.Call{c}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	alone := newDevice(t, Options{Workers: 1}, fabricArena)
	if _, err := alone.Prepare([]device.Call{message(graph.Send, x, 1, 0)}, nil); err == nil || !strings.Contains(err.Error(), "not joined") {
		t.Errorf("a device alone sends: %v", err)
	}
	for _, rank := range []int{0, 2, -1} {
		d := New(Options{Workers: 1, Fabric: list[0].options.Fabric, Rank: rank})
		if err := d.Reserve(device.DeviceTier, 4096); err == nil {
			t.Errorf("a second rank %d of 2 is accepted", rank)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if errs := together(t, list, [][]device.Call{
		{{Op: graph.AllReduce, Stream: device.Collective, Peers: both, Args: []device.Operand{x}}},
		{{Op: graph.AllReduce, Stream: device.Collective, Peers: both, Args: []device.Operand{x}}}}); errors.Join(errs...) != nil {
		t.Errorf("refusing harmed the fabric: %v", errs)
	}
}
