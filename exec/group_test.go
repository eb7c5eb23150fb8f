package exec_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/null"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// newGroup joins a device and an engine per program.
func newGroup(t *testing.T, programs []*program.Program, open func(rank int) device.Device) (*exec.Group, []*exec.Engine) {
	t.Helper()
	var engines []*exec.Engine
	for k, p := range programs {
		d := open(k)
		if err := exec.Reserve(d, p); err != nil {
			t.Fatal(err)
		}
		e, err := exec.New(p, d)
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
		t.Cleanup(func() {
			e.Close()
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	g := exec.NewGroup(engines)
	t.Cleanup(g.Close)
	return g, engines
}

func onCPU(t *testing.T, ranks int) func(rank int) device.Device {
	f := cpu.NewFabric(ranks)
	return func(rank int) device.Device {
		return cpu.New(cpu.Options{Workers: 1, Fabric: f, Rank: rank, DiskPath: filepath.Join(t.TempDir(), "disk")})
	}
}

func onNull(t *testing.T, ranks int, cost func(rank int) null.Cost) func(rank int) device.Device {
	f := null.NewFabric(ranks)
	return func(rank int) device.Device {
		d, err := f.Device(rank, cost(rank))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// TestRanks: several ranks compute what their programs mean, bit for bit, step
// after step, and count the bytes between them as the timelines do.
func TestRanks(t *testing.T) {
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 11))
		ranks := 1 + r.IntN(5)
		w := randomWorld(r, ranks, 10+r.IntN(80))
		devices := make([]*cpu.Device, ranks)
		open := onCPU(t, ranks)
		g, engines := newGroup(t, w.programs, func(rank int) device.Device {
			devices[rank] = open(rank).(*cpu.Device)
			return devices[rank]
		})
		memory := make([][][]float32, ranks)
		for k, p := range w.programs {
			for b := range p.Buffers {
				values := make([]float32, elems)
				for i := range values {
					values[i] = r.Float32() * 1000
				}
				memory[k] = append(memory[k], values)
				if err := engines[k].WriteFloats(p.Buffers[b].Name, values); err != nil {
					t.Fatal(err)
				}
			}
		}
		const steps = 3
		for range steps {
			if _, err := g.Step(t.Context()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			w.interpret(memory)
		}
		timelines, err := g.Timelines()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float64, elems)
		for k, p := range w.programs {
			for b := range p.Buffers {
				if err := engines[k].ReadBuffer(p.Buffers[b].Name, got); err != nil {
					t.Fatal(err)
				}
				for i, want := range memory[k][b] {
					if got[i] != float64(want) {
						t.Fatalf("seed %d, rank %d: %s[%d] = %v, want %v", seed, k, p.Buffers[b].Name, i, got[i], want)
					}
				}
			}
			var bytes int64
			for _, n := range devices[k].Stats().Network {
				bytes += n
			}
			if bytes != steps*timelines[k].Network {
				t.Errorf("seed %d, rank %d: %d bytes received in %d steps, the timeline says %d", seed, k, bytes, steps, timelines[k].Network)
			}
		}
	}
}

// randomCosts are seconds by rank and instruction; devices and simulation ask
// for them rank by rank in program order.
func randomCosts(r *rand.Rand, programs []*program.Program) func(rank int) null.Cost {
	seconds := make([][]float64, len(programs))
	for k, p := range programs {
		seconds[k] = make([]float64, len(p.Instrs))
		for i := range seconds[k] {
			if r.IntN(5) > 0 {
				seconds[k][i] = r.ExpFloat64()
			}
		}
	}
	return func(rank int) null.Cost {
		i := -1
		return func(*device.Call) float64 { i++; return seconds[rank][i] }
	}
}

// simulate runs all programs, with costs by rank.
func simulate(t *testing.T, programs []*program.Program, costs func(rank int) null.Cost) ([]*sim.Timeline, error) {
	t.Helper()
	rank, i, cost := 0, 0, costs(0)
	return simulateBy(programs, sim.CostFunc(func(c *device.Call) float64 {
		for i == len(programs[rank].Instrs) {
			rank, i = rank+1, 0
			cost = costs(rank)
		}
		i++
		return cost(c)
	}))
}

func simulateBy(programs []*program.Program, cost sim.Coster) ([]*sim.Timeline, error) {
	spans, err := sim.SpansFirst(programs, len(programs), cost)
	if err != nil {
		return nil, err
	}
	return sim.NewAll(programs, spans)
}

// TestVirtualRanks is L4 for several ranks: virtual clocks that meet show
// exactly what the simulation says, on every rank, however the goroutines are
// interleaved, and the two share no code.
func TestVirtualRanks(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 12))
		ranks := 1 + r.IntN(6)
		w := randomWorld(r, ranks, 1+r.IntN(200))
		costs := randomCosts(r, w.programs)
		want, err := simulate(t, w.programs, costs)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		g, _ := newGroup(t, w.programs, onNull(t, ranks, costs))
		for range 3 {
			if _, err := g.Step(t.Context()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			got, err := g.Timelines()
			if err != nil {
				t.Fatal(err)
			}
			for k := range got {
				if got[k].Makespan != want[k].Makespan || !slices.Equal(got[k].Spans, want[k].Spans) {
					t.Fatalf("seed %d, rank %d: null device %v, simulation %v", seed, k, got[k].Makespan, want[k].Makespan)
				}
			}
		}
	}
}

// TestSteadyRanks is L6 for several ranks, a thousand steps of it.
func TestSteadyRanks(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 13))
	w := randomWorld(r, 4, 30)
	one := func(int) null.Cost { return func(*device.Call) float64 { return 1 } }
	for name, open := range map[string]func(int) device.Device{"cpu": onCPU(t, 4), "null": onNull(t, 4, one)} {
		g, _ := newGroup(t, w.programs, open)
		ctx := context.Background()
		failed := false
		before := runtime.NumGoroutine()
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := g.Step(ctx); err != nil {
				failed = true
			}
		}); n >= 1 || failed {
			t.Errorf("%s: %v allocations per step (failed: %v)", name, n, failed)
		}
		testkit.GoroutinesEnd(t, before)
	}
}

// TestLostRank: a panic on one rank, anywhere, ends the step on all of them,
// and the group blames the rank and the instruction that failed.
func TestLostRank(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 14))
		ranks := 2 + r.IntN(3)
		w := randomWorld(r, ranks, 40)
		victim := r.IntN(ranks)
		p := w.programs[victim]
		tokens := len(p.Buffers)
		p.Buffers = append(p.Buffers, program.Buffer{Name: "tokens", DType: graph.I32, Rows: 1, Cols: 1, Size: 4096, Addr: p.Height[0]})
		p.Height[0] += 4096
		at := r.IntN(len(p.Instrs) + 1)
		wild := program.Instr{Op: graph.Embed, Attr: graph.Attr{Seq: 1}, Args: []program.Region{flat(0, 0, 8), flat(tokens, 0, 1), flat(1, 0, 8)}}
		p.Instrs = slices.Insert(p.Instrs, at, wild)
		for i := at + 1; i < len(p.Instrs); i++ {
			for k, n := range p.Instrs[i].Waits {
				if n >= at {
					p.Instrs[i].Waits[k]++
				}
			}
		}
		g, engines := newGroup(t, w.programs, onCPU(t, ranks))
		if err := engines[victim].WriteInts("tokens", []int32{1 << 20}); err != nil {
			t.Fatal(err)
		}
		_, err := g.Step(t.Context())
		var lost *exec.PeerLostError
		if !errors.As(err, &lost) || lost.Rank != victim || lost.Instr != at || !strings.Contains(err.Error(), "panic") {
			t.Fatalf("seed %d: rank %d fails at i%d: %v", seed, victim, at, err)
		}
		for k, err := range g.Errs() {
			var peer *device.PeerError
			if k != victim && err != nil && (!errors.As(err, &peer) || peer.Rank != victim) {
				t.Errorf("seed %d, rank %d: %v", seed, k, err)
			}
		}
		if _, err := g.Step(t.Context()); err == nil {
			t.Errorf("seed %d: a group without rank %d goes on", seed, victim)
		}
	}
}

// watchedDevice does something before and after a round ends.
type watchedDevice struct {
	*cpu.Device
	before, after func()
}

func (d *watchedDevice) Sync() error {
	d.before()
	defer d.after()
	return d.Device.Sync()
}

// TestLostAfterwards: a rank that is lost when its own part of the step is done,
// while another's is not, is still the one that is blamed.
func TestLostAfterwards(t *testing.T) {
	gone, nothing := make(chan struct{}), func() {}
	open := onCPU(t, 2)
	g, _ := newGroup(t, pair(), func(rank int) device.Device {
		d := &watchedDevice{open(rank).(*cpu.Device), nothing, nothing}
		if rank == 0 {
			d.before = func() { <-gone }
		} else {
			d.after = func() {
				d.Abort(errors.New("gone"))
				close(gone)
			}
		}
		return d
	})
	_, err := g.Step(t.Context())
	var lost *exec.PeerLostError
	if !errors.As(err, &lost) || lost.Rank != 1 || !strings.Contains(err.Error(), "gone") {
		t.Errorf("rank 1 is lost: %v", err)
	}
}

// hangingDevice launches nothing until it is closed.
type hangingDevice struct {
	*cpu.Device
	release, ended chan struct{}
}

func (d *hangingDevice) Launch(n int) {
	<-d.release
	d.Device.Launch(n)
}

func (d *hangingDevice) Sync() error {
	defer close(d.ended)
	return d.Device.Sync()
}

func (d *hangingDevice) Close() error {
	close(d.release)
	<-d.ended
	return d.Device.Close()
}

// pair is two ranks that copy, add up what all have and copy back.
func pair() (list []*program.Program) {
	for k := range 2 {
		p := &program.Program{Rank: k, Height: [device.NumTiers]int64{1 << 13, 0, 0}}
		for b := range 2 {
			p.Buffers = append(p.Buffers, program.Buffer{Name: string(rune('x' + b)), Rows: 1, Cols: 16, Size: 64, Addr: int64(b) << 12})
		}
		x, y := flat(0, 0, 16), flat(1, 0, 16)
		p.Instrs = []program.Instr{
			{Op: graph.Copy, Args: []program.Region{y, x}},
			between(graph.AllReduce, device.Collective, []int{0, 1}, 0, y),
			{Op: graph.Copy, Args: []program.Region{x, y}, Waits: []int{1}},
		}
		p.Instrs[1].Waits = []int{0}
		list = append(list, p)
	}
	return list
}

// TestHangingRank: the watchdog of the rank that hangs reports it; those of ranks
// that wait for it do not.
func TestHangingRank(t *testing.T) {
	open := onCPU(t, 2)
	g, engines := newGroup(t, pair(), func(rank int) device.Device {
		d := open(rank).(*cpu.Device)
		if rank == 0 {
			return d
		}
		return &hangingDevice{d, make(chan struct{}), make(chan struct{})}
	})
	for _, e := range engines {
		e.Patience = 200 * time.Millisecond
	}
	_, err := g.Step(t.Context())
	var lost *exec.PeerLostError
	if !errors.As(err, &lost) || lost.Rank != 1 || lost.Instr != 0 || !strings.Contains(err.Error(), "rank 1: i0 copy") {
		t.Fatalf("error is %v", err)
	}
	var peer *device.PeerError
	if err := g.Errs()[0]; !errors.As(err, &peer) || peer.Rank != 1 || !strings.Contains(err.Error(), "rank 0: i1 all_reduce") {
		t.Errorf("rank 0 says %v", err)
	}
}

// TestDeadlock: ranks that wait for each other fail with what they wait for: on
// the CPU by the watchdogs, on virtual clocks at once; and the simulation finds
// it beforehand.
func TestDeadlock(t *testing.T) {
	var programs []*program.Program
	for k := range 2 {
		p := pair()[k]
		x, y := flat(0, 0, 16), flat(1, 0, 16)
		p.Instrs = []program.Instr{
			between(graph.Recv, device.Recv, []int{1 - k}, k, x),
			between(graph.Send, device.Send, []int{1 - k}, 1-k, y),
		}
		p.Instrs[1].Waits = []int{0}
		programs = append(programs, p)
	}
	one := func(int) null.Cost { return func(*device.Call) float64 { return 1 } }
	if _, err := simulate(t, programs, one); err == nil || !strings.Contains(err.Error(), "rank 1, recv: i0 (recv) waits for i1 of rank 0") {
		t.Errorf("simulation: %v", err)
	}
	for name, open := range map[string]func(int) device.Device{"cpu": onCPU(t, 2), "null": onNull(t, 2, one)} {
		g, engines := newGroup(t, programs, open)
		for _, e := range engines {
			e.Patience = 20 * time.Millisecond
		}
		_, err := g.Step(t.Context())
		var lost *exec.PeerLostError
		if !errors.As(err, &lost) || lost.Instr != 0 || !strings.Contains(err.Error(), "i0 recv x") {
			t.Errorf("%s: %v", name, err)
		}
		for k, err := range g.Errs() {
			if err == nil {
				t.Errorf("%s: rank %d ends well", name, k)
			}
		}
	}
}

func TestGroupCancelled(t *testing.T) {
	g, _ := newGroup(t, pair(), onCPU(t, 2))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Step(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if list, err := g.Step(t.Context()); err != nil || len(list) != 2 { // it did not begin
		t.Errorf("%v, %v", list, err)
	}
}
