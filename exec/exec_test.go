package exec_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/testkit"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/null"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

func newCPU(t *testing.T, p *program.Program) (*cpu.Device, *exec.Engine) {
	t.Helper()
	d := cpu.New(cpu.Options{Workers: 2, DiskPath: filepath.Join(t.TempDir(), "disk")})
	if err := exec.Reserve(d, p); err != nil {
		t.Fatal(err)
	}
	e, err := exec.New(p, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, e
}

func step(t *testing.T, e *exec.Engine) exec.Result {
	t.Helper()
	r, err := e.Step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestMeaning: streams, waits, copies and tiers compute what the program
// means, bit for bit, step after step (L1 in miniature).
func TestMeaning(t *testing.T) {
	for seed := range uint64(testkit.Count(5, 15, 30)) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := randomProgram(r, 10+r.IntN(150))
		_, e := newCPU(t, p)
		memory := randomMemory(r, p)
		for b := range memory {
			if err := e.WriteFloats(p.Buffers[b].Name, memory[b]); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			step(t, e)
			interpret(p, memory)
		}
		got := make([]float64, elems)
		for b := range memory {
			if err := e.ReadBuffer(p.Buffers[b].Name, got); err != nil {
				t.Fatal(err)
			}
			for i, want := range memory[b] {
				if got[i] != float64(want) {
					t.Fatalf("seed %d: %s[%d] = %v, want %v", seed, p.Buffers[b].Name, i, got[i], want)
				}
			}
		}
	}
}

// TestVirtualClock is L4: executing on the null device's clock takes exactly
// as long as the simulation says, instruction by instruction.
func TestVirtualClock(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		p := randomProgram(r, 1+r.IntN(200))
		seconds := make([]float64, len(p.Instrs))
		for i := range seconds {
			seconds[i] = r.ExpFloat64()
			if r.IntN(5) == 0 {
				seconds[i] = 0
			}
		}
		i := 0 // both ask for costs in program order
		cost := func(*device.Call) float64 { i++; return seconds[i-1] }

		want, err := sim.Run(p, sim.CostFunc(cost))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		i = 0
		d := null.New(cost)
		if err := exec.Reserve(d, p); err != nil {
			t.Fatal(err)
		}
		e, err := exec.New(p, d)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := step(t, e).Timeline()
			if err != nil {
				t.Fatal(err)
			}
			if got.Makespan != want.Makespan || !slices.Equal(got.Spans, want.Spans) {
				t.Fatalf("seed %d: null device %v, simulation %v", seed, got.Makespan, want.Makespan)
			}
		}
		e.Close()
	}
}

// TestBytesAndPeaks is L2 and L3 in miniature: what the device counted while it
// executed, what is left in painted arenas, what the timeline of the program
// says and what follows from the list of instructions agree.
func TestBytesAndPeaks(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := randomProgram(r, 1+r.IntN(60))
		d, e := newCPU(t, p)
		var written, touched [device.NumTiers]int64
		var moved [device.NumTiers][device.NumTiers]int64
		for _, in := range p.Instrs {
			for k, a := range in.Args {
				b := &p.Buffers[a.Buf]
				end := b.Addr + 4*int64(slices.Max(elements(a))+1)
				touched[b.Tier] = max(touched[b.Tier], end)
				if k == 0 {
					written[b.Tier] = max(written[b.Tier], end)
				}
			}
			if in.Op == graph.Copy {
				dst, src := p.Buffers[in.Args[0].Buf].Tier, p.Buffers[in.Args[1].Buf].Tier
				moved[src][dst] += 4 * int64(len(elements(in.Args[1])))
			}
		}
		const paint = 0xA5
		for tier := range device.NumTiers {
			if err := d.Paint(tier, paint); err != nil {
				t.Fatal(err)
			}
		}
		tl, err := step(t, e).Timeline()
		if err != nil {
			t.Fatal(err)
		}
		stats := d.Stats()
		if stats.Peak != touched || stats.Moved != moved || tl.Moved != moved {
			t.Fatalf("seed %d: device %+v; timeline moved %v; want peaks %v, moved %v", seed, stats, tl.Moved, touched, moved)
		}
		for tier := range device.NumTiers {
			high, err := d.Highest(tier, paint)
			if err != nil || high > written[tier] {
				t.Fatalf("seed %d: %s tier changed up to %d, want at most %d (%v)", seed, tier, high, written[tier], err)
			}
			if tl.Peak[tier] != p.Height[tier] || tl.Peaks()[tier] != p.Height[tier] {
				t.Fatalf("seed %d: timeline peak %v, live %v, want %v", seed, tl.Peak, tl.Peaks(), p.Height)
			}
		}
	}
}

// TestMeasuredOrder: measured spans respect streams and waits.
func TestMeasuredOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	p := randomProgram(r, 200)
	_, e := newCPU(t, p)
	tl, err := step(t, e).Timeline()
	if err != nil {
		t.Fatal(err)
	}
	var last [device.NumStreams]float64
	for i, in := range p.Instrs {
		if tl.Spans[i].Start < last[in.Stream] || tl.Spans[i].End < tl.Spans[i].Start {
			t.Errorf("i%d on %s is %v, its predecessor ended at %v", i, in.Stream, tl.Spans[i], last[in.Stream])
		}
		last[in.Stream] = tl.Spans[i].End
		for _, w := range in.Waits {
			if tl.Spans[i].Start < tl.Spans[w].End {
				t.Errorf("i%d starts at %v, but it waits for i%d: %v", i, tl.Spans[i].Start, w, tl.Spans[w])
			}
		}
	}
}

// TestSteadyStep is L6: a steady step allocates nothing.
func TestSteadyStep(t *testing.T) {
	p := randomProgram(rand.New(rand.NewPCG(5, 5)), 100)
	_, onCPU := newCPU(t, p)
	d := null.New(func(*device.Call) float64 { return 1 })
	if err := exec.Reserve(d, p); err != nil {
		t.Fatal(err)
	}
	onNull, err := exec.New(p, d)
	if err != nil {
		t.Fatal(err)
	}
	defer onNull.Close()
	for name, e := range map[string]*exec.Engine{"cpu": onCPU, "null": onNull} {
		ctx := context.Background()
		failed := false
		n := testing.AllocsPerRun(20, func() {
			if _, err := e.Step(ctx); err != nil {
				failed = true
			}
		})
		if n >= 1 || failed {
			t.Errorf("%s: %v allocations per step of %d instructions, want 0 (failed: %v)", name, n, len(p.Instrs), failed)
		}
	}
}

// stuckDevice completes the first calls of a round and then hangs.
type stuckDevice struct {
	*null.Device
	completes int
	release   chan struct{}
}

func (d *stuckDevice) Done(call int) bool { return call < d.completes }
func (d *stuckDevice) Sync() error        { <-d.release; return nil }

func TestWatchdog(t *testing.T) {
	d := &stuckDevice{null.New(func(*device.Call) float64 { return 1 }), 2, make(chan struct{})}
	defer close(d.release)
	p := &program.Program{Height: [device.NumTiers]int64{1 << 20, 1 << 20, 0}}
	for _, tier := range []device.Tier{device.DeviceTier, device.HostTier} {
		p.Buffers = append(p.Buffers, program.Buffer{Name: "x." + tier.String(), Tier: tier, Rows: 1, Cols: 16, Size: 64})
	}
	up := []program.Region{whole(0, &p.Buffers[0]), whole(1, &p.Buffers[1])}
	p.Instrs = []program.Instr{
		{Op: graph.Copy, Stream: device.HostToDev, Args: up},
		{Op: graph.Add, Stream: device.HostCompute, Args: []program.Region{up[1], up[1]}},
		{Op: graph.Copy, Stream: device.DevToHost, Args: []program.Region{up[1], up[0]}, Key: program.Key{Segment: 3, Micro: 7, Chunk: -1, Dir: program.Transfer}},
		{Op: graph.Copy, Stream: device.HostToDev, Args: up, Waits: []int{1, 2}},
	}
	if err := exec.Reserve(d, p); err != nil {
		t.Fatal(err)
	}
	e, err := exec.New(p, d)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.Patience = 10 * time.Millisecond
	_, err = e.Step(t.Context())
	if err == nil {
		t.Fatal("a hanging step ended well")
	}
	for _, want := range []string{"i2 copy x.host on d2h, segment 3, micro-batch 7", "i3 copy x.device on h2d", "waits for i2"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q:\n%v", want, err)
		}
	}
	for _, no := range []string{"i0", "waits for i1", "i1 add"} {
		if strings.Contains(err.Error(), no) {
			t.Errorf("error blames %q, which is done:\n%v", no, err)
		}
	}
	if _, again := e.Step(t.Context()); again == nil {
		t.Error("a broken engine goes on")
	}
}

// TestFailure: a panic in a kernel becomes an error that names the
// instruction, the rest of the round is skipped, and nothing hangs.
func TestFailure(t *testing.T) {
	p := &program.Program{Height: [device.NumTiers]int64{1 << 20, 0, 0}, Rank: 5}
	for i, b := range []program.Buffer{
		{Name: "x", DType: graph.F32, Rows: 1, Cols: 8}, {Name: "tokens", DType: graph.I32, Rows: 1, Cols: 1},
		{Name: "wte", DType: graph.F32, Rows: 4, Cols: 8}, {Name: "y", DType: graph.F32, Rows: 1, Cols: 8},
	} {
		b.Size, b.Addr = 4096, 4096*int64(i)
		p.Buffers = append(p.Buffers, b)
	}
	reg := func(i int) program.Region { return whole(i, &p.Buffers[i]) }
	p.Instrs = []program.Instr{
		{Op: graph.Embed, Attr: graph.Attr{Seq: 1}, Args: []program.Region{reg(0), reg(1), reg(2)}},
		{Op: graph.Copy, Stream: device.HostToDev, Args: []program.Region{reg(3), reg(0)}, Waits: []int{0}},
	}
	_, e := newCPU(t, p)
	if err := e.WriteInts("tokens", []int32{1 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := e.WriteFloats("y", []float32{9, 9, 9, 9, 9, 9, 9, 9}); err != nil {
		t.Fatal(err)
	}
	_, err := e.Step(t.Context())
	if err == nil || !strings.Contains(err.Error(), "rank 5: i0 embed x on compute") || !strings.Contains(err.Error(), "panic") {
		t.Fatalf("error is %v", err)
	}
	y := make([]float64, 8)
	if err := e.ReadBuffer("y", y); err != nil || y[0] != 9 {
		t.Errorf("instructions after the failed one ran: y = %v, %v", y, err)
	}
}

func TestCancelled(t *testing.T) {
	p := randomProgram(rand.New(rand.NewPCG(6, 6)), 5)
	_, e := newCPU(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Step(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	step(t, e) // it did not begin, so the engine is not broken
}

// TestHomes: what is written is read back, on every tier, in bf16 rounded to the
// nearest, and replicas follow.
func TestHomes(t *testing.T) {
	p := &program.Program{Height: [device.NumTiers]int64{1 << 14, 1 << 14, 1 << 14}}
	add := func(name string, tier device.Tier, d graph.DType, n int) int {
		var addr int64
		for _, b := range p.Buffers {
			if b.Tier == tier {
				addr = b.Addr + 4096
			}
		}
		p.Buffers = append(p.Buffers, program.Buffer{Name: name, Tier: tier, DType: d, Rows: 1, Cols: n, Size: int64(n) * d.Size(), Addr: addr})
		return len(p.Buffers) - 1
	}
	home := func(kind optimizer.Kind, at, buf, off, n int, replica bool) {
		p.Homes = append(p.Homes, program.Home{Param: 3, Kind: kind, At: at, Replica: replica, Region: program.Region{Buf: buf, Off: off, Rows: 1, Cols: n, Stride: n}})
	}
	a, b, c, d := add("a", device.HostTier, graph.F32, 100), add("b", device.DiskTier, graph.F32, 100), add("c", device.DeviceTier, graph.F32, 100), add("d", device.DeviceTier, graph.BF16, 64)
	home(optimizer.Weights, 0, a, 10, 40, false)
	home(optimizer.Weights, 0, c, 5, 60, true)
	home(optimizer.Weights, 40, b, 3, 20, false)
	home(optimizer.HalfWeights, 0, d, 1, 60, false)
	_, e := newCPU(t, p)

	r := rand.New(rand.NewPCG(7, 7))
	want, got := make([]float32, 60), make([]float32, 60)
	for i := range want {
		want[i] = float32(r.NormFloat64())
	}
	if parts := e.Parts(3, optimizer.Weights); !slices.Equal(parts, [][2]int{{0, 40}, {40, 60}}) || e.Parts(3, optimizer.FirstMoment) != nil {
		t.Fatalf("parts %v, %v", parts, e.Parts(3, optimizer.FirstMoment))
	}
	for _, kind := range []optimizer.Kind{optimizer.Weights, optimizer.HalfWeights} {
		if err := errors.Join(e.WriteHome(3, kind, 0, want), e.ReadHome(3, kind, 0, got)); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if kind == optimizer.Weights && got[i] != want[i] || math.Abs(float64(got[i]-want[i])) > math.Abs(float64(want[i]))/256 {
				t.Fatalf("%s[%d] = %v, want %v", kind, i, got[i], want[i])
			}
		}
		for range 100 { // parts of it, also across homes
			first := r.IntN(60)
			part := make([]float32, r.IntN(60-first)+1)
			if err := e.ReadHome(3, kind, first, part); err != nil || !slices.Equal(part, got[first:][:len(part)]) {
				t.Fatalf("%s from %d on: %v (%v), want %v", kind, first, part, err, got[first:][:len(part)])
			}
			if kind != optimizer.Weights {
				continue
			}
			for i := range part {
				part[i] = float32(r.NormFloat64())
			}
			copy(want[first:], part)
			if err := errors.Join(e.WriteHome(3, kind, first, part), e.ReadHome(3, kind, 0, got)); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%d elements from %d on were written: %v (%v), want %v", len(part), first, got, err, want)
			}
		}
	}
	replica := make([]float64, 100)
	if err := e.ReadBuffer("c", replica); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if float32(replica[5+i]) != want[i] {
			t.Fatalf("replica[%d] = %v, want %v", i, replica[5+i], want[i])
		}
	}
	for _, err := range []error{
		e.WriteFloats("x", nil), e.WriteFloats("a", want), e.WriteInts("a", make([]int32, 100)), e.ReadBuffer("a", nil),
	} {
		if err == nil {
			t.Error("accepted a wrong name, kind or length")
		}
	}
}

// tunable is a device that can tune calls, before arenas are reserved.
type tunable struct {
	*null.Device
	t        *testing.T
	tuned    []int // numbers of calls
	memory   int64
	reserved bool
	fails    error
}

func (d *tunable) Tune(calls []device.Call, memory int64) error {
	d.memory = memory
	if d.reserved {
		d.t.Error("calls are tuned after an arena has been reserved")
	}
	d.tuned = append(d.tuned, len(calls))
	return d.fails
}

func (d *tunable) Reserve(tier device.Tier, bytes int64) error {
	d.reserved = true
	return d.Device.Reserve(tier, bytes)
}

// TestTuned: the calls of all programs are tuned, while memory is free; what goes wrong then is an error.
func TestTuned(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	a, b := randomProgram(r, 10), randomProgram(r, 20)
	b.Height[device.DeviceTier] = a.Height[device.DeviceTier] + 64
	for _, list := range [][]*program.Program{{a, b}, {b, a}} {
		d := &tunable{Device: null.New(func(*device.Call) float64 { return 1 }), t: t}
		if err := exec.Reserve(d, list...); err != nil {
			t.Fatal(err)
		}
		if want := []int{len(list[0].Instrs), len(list[1].Instrs)}; !slices.Equal(d.tuned, want) || !d.reserved {
			t.Errorf("programs of %d instructions were tuned, not of %d", d.tuned, want)
		}
		if want := b.Height[device.DeviceTier]; d.memory != want {
			t.Errorf("tuning may take %d bytes, but the arena has %d", d.memory, want)
		}
	}
	why := errors.New("too hot")
	if err := exec.Reserve(&tunable{Device: null.New(func(*device.Call) float64 { return 1 }), t: t, fails: why}, a); !errors.Is(err, why) {
		t.Errorf("error is %v", err)
	}
}
