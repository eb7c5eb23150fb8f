package sim

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// copies makes a program of n copies, the i-th of buffer i (host, size i+1
// times 4096 bytes) to buffer n+i (device), on the stream that place returns.
func copies(n int, place func(i int) (device.Stream, []int)) *program.Program {
	p := &program.Program{}
	for _, tier := range []device.Tier{device.HostTier, device.DeviceTier} {
		for i := range n {
			b := program.Buffer{Tier: tier, Rows: 1, Cols: 1024 * (i + 1), Size: 4096 * int64(i+1), Addr: p.Height[tier]}
			p.Height[tier] += b.Size
			p.Buffers = append(p.Buffers, b)
		}
	}
	for i := range n {
		s, waits := place(i)
		r := program.Region{Buf: n + i, Rows: 1, Cols: 1024 * (i + 1), Stride: 1024 * (i + 1)}
		src := r
		src.Buf = i
		p.Instrs = append(p.Instrs, program.Instr{Op: graph.Copy, Stream: s, Args: []program.Region{r, src}, Waits: waits})
	}
	return p
}

// bySize: a copy of 4096 bytes takes a second.
var bySize = CostFunc(func(c *device.Call) float64 { return float64(c.Args[0].Bytes()) / 4096 })

func mustRun(t *testing.T, p *program.Program, c Coster) *Timeline {
	t.Helper()
	tl, err := Run(p, c)
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

// TestClosedForms checks shapes whose makespan is known: copies of 1..n
// seconds in one stream, side by side, and in a chain across two streams.
func TestClosedForms(t *testing.T) {
	const n = 9
	serial := mustRun(t, copies(n, func(int) (device.Stream, []int) { return device.HostToDev, nil }), bySize)
	if want := float64(n * (n + 1) / 2); serial.Makespan != want || serial.Busy[device.HostToDev] != want || len(serial.Critical) != n {
		t.Errorf("one stream: makespan %v, busy %v, critical %v; want %v", serial.Makespan, serial.Busy, serial.Critical, want)
	}
	beside := mustRun(t, copies(n, func(i int) (device.Stream, []int) { return device.Stream(i), nil }), bySize)
	if beside.Makespan != n || !slices.Equal(beside.Critical, []int{n - 1}) {
		t.Errorf("side by side: makespan %v, critical %v; want %v", beside.Makespan, beside.Critical, n)
	}
	chain := mustRun(t, copies(n, func(i int) (device.Stream, []int) {
		if i == 0 {
			return 0, nil
		}
		return device.Stream(i % 2), []int{i - 1}
	}), bySize)
	if chain.Makespan != n*(n+1)/2 || len(chain.Critical) != n {
		t.Errorf("chain: makespan %v, critical %v", chain.Makespan, chain.Critical)
	}
	var bytes int64
	for i := range int64(n) {
		bytes += 4096 * (i + 1)
	}
	if chain.Moved[device.HostTier][device.DeviceTier] != bytes {
		t.Errorf("moved %v, want %d from host to device", chain.Moved, bytes)
	}
	// In the chain exactly one copy runs at a time: its two buffers are live.
	if chain.Peaks() != [device.NumTiers]int64{4096 * n, 4096 * n, 0} || chain.Peak != [device.NumTiers]int64{bytes, bytes, 0} {
		t.Errorf("live peaks %v, address peaks %v", chain.Peaks(), chain.Peak)
	}
}

// launched is bySize with some time before each copy to the device.
type launched struct {
	CostFunc
	seconds float64
}

func (l launched) Launch(s device.Stream) float64 {
	if s == device.HostToDev {
		return l.seconds
	}
	return 0
}

// TestLaunch: the launch gap passes before each call of the stream, whatever the call
// waited for, and does not count as work. A step begins with its first call.
func TestLaunch(t *testing.T) {
	const n, between = 9, 0.25
	const work = float64(n * (n + 1) / 2)
	cost := launched{bySize, between}
	serial := mustRun(t, copies(n, func(int) (device.Stream, []int) { return device.HostToDev, nil }), cost)
	if want := work + (n-1)*between; serial.Makespan != want || serial.Busy[device.HostToDev] != work {
		t.Errorf("one stream: makespan %v, busy %v; want %v, %v", serial.Makespan, serial.Busy[device.HostToDev], want, work)
	}
	other := mustRun(t, copies(n, func(int) (device.Stream, []int) { return device.DevToHost, nil }), cost)
	if other.Makespan != work {
		t.Errorf("another stream: makespan %v, want %v", other.Makespan, work)
	}
	chain := mustRun(t, copies(n, func(i int) (device.Stream, []int) {
		if i%2 == 0 {
			return device.HostToDev, nil
		}
		return device.DevToHost, []int{i - 1}
	}), cost)
	// The even calls, of 1, 3, ... n seconds, run in a row; the last odd one, of n-1 seconds, ends before the last even one.
	if want := float64((n+1)/2*(n+1)/2) + (n-1)/2*between; chain.Makespan != want {
		t.Errorf("in turns: makespan %v, want %v", chain.Makespan, want)
	}
}

// TestBounds: for random programs the makespan lies between the busiest
// stream and the sum of all, the critical path is tight, live bytes begin and
// end at zero, and raising any one cost never shortens anything (L9 in small).
func TestBounds(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.IntN(60)
		p := copies(n, func(i int) (device.Stream, []int) {
			var waits []int
			for range r.IntN(min(i, 3) + 1) {
				if i > 0 {
					waits = append(waits, r.IntN(i))
				}
			}
			return device.Stream(r.IntN(int(device.NumStreams))), waits
		})
		seconds := map[int64]float64{}
		for i := range n {
			seconds[4096*int64(i+1)] = float64(r.IntN(8)) // exact sums
		}
		cost := CostFunc(func(c *device.Call) float64 { return seconds[c.Args[0].Bytes()] })
		tl := mustRun(t, p, cost)
		var sum, most, chain float64
		for _, b := range tl.Busy {
			sum, most = sum+b, max(most, b)
		}
		for _, i := range tl.Critical {
			chain += tl.Spans[i].End - tl.Spans[i].Start
		}
		if tl.Makespan < most || tl.Makespan > sum || chain != tl.Makespan {
			t.Fatalf("seed %d: makespan %v, busiest stream %v, all %v, critical path %v", seed, tl.Makespan, most, sum, chain)
		}
		for tier, levels := range tl.Live {
			if k := len(levels); k > 0 && levels[k-1].Bytes != 0 {
				t.Fatalf("seed %d: %v bytes are live on %v at the end", seed, levels[k-1], device.Tier(tier))
			}
		}
		seconds[4096*int64(1+r.IntN(n))] += 3
		slower := mustRun(t, p, cost)
		for i := range tl.Spans {
			if slower.Spans[i].Start < tl.Spans[i].Start {
				t.Fatalf("seed %d: a slower copy makes i%d start at %v instead of %v", seed, i, slower.Spans[i].Start, tl.Spans[i].Start)
			}
		}
	}
}

// slowed is a Coster whose streams slow each other down.
type slowed struct {
	CostFunc
	by [device.NumStreams][device.NumStreams]float64
}

func (s *slowed) Slowdown(of, by device.Stream) float64 { return s.by[of][by] }

// TestSlowdown: copies of 1 and 2 seconds side by side run at rates 1/2 and 1/1.5 until
// the first ends; the rest of the second, and one of 4 seconds behind it, at rate 1.
func TestSlowdown(t *testing.T) {
	cost := &slowed{CostFunc: bySize}
	p := copies(4, func(i int) (device.Stream, []int) { return device.Stream(i % 2), nil })
	p.Instrs = slices.Delete(p.Instrs, 2, 3) // 1 s, 2 s; 4 s behind the 2 s
	cost.by[1][0], cost.by[0][1] = 0.5, 1    // while both run: 1 at 2/3, 0 at 1/2
	tl := mustRun(t, p, cost)                // stream 0 ends at 2: 1 has done 4/3
	for i, want := range []float64{2, 2 + 2.0/3, 6 + 2.0/3} {
		if math.Abs(tl.Spans[i].End-want) > 1e-12 {
			t.Errorf("i%d ends at %v, want %v", i, tl.Spans[i].End, want)
		}
	}
}

// crowded is a Coster of ranks that share a number of cores: each kernel and each
// copy wants one, and all that run have equal shares.
type crowded struct {
	CostFunc
	cores float64
}

func (c crowded) Crowd(active, slower *[device.NumStreams]float64) bool {
	var all float64
	for _, n := range active {
		all += n
	}
	for s := range slower {
		slower[s] = max(all/c.cores, 1)
	}
	return true
}

// TestCrowd: ranks that compute for 3 s and then copy for 2 s, on two cores: with three
// ranks everything takes 1.5 times as long, with four twice. Next to independent copies
// of 2 s, four kernels of 3 s have 2/8 of a core each until the copies are done, after
// 8 s, in which the kernels do 2 of their 3 s; from then on they have 2/4.
func TestCrowd(t *testing.T) {
	for name, c := range map[string]struct {
		waits []int
		want  map[int]float64
	}{
		"after":  {[]int{0}, map[int]float64{1: 5, 2: 5, 3: 7.5, 4: 10}},
		"beside": {nil, map[int]float64{1: 3, 2: 5, 3: 7.5, 4: 10}},
	} {
		p := copies(2, func(i int) (device.Stream, []int) {
			return []device.Stream{device.Compute, device.HostToDev}[i], [][]int{nil, c.waits}[i]
		})
		cost := crowded{CostFunc(func(c *device.Call) float64 { return []float64{3, 2}[c.Args[0].Bytes()/4096-1] }), 2}
		for ranks, want := range c.want {
			spans, err := SpansAlike(p, ranks, cost)
			if err != nil {
				t.Fatal(err)
			}
			if tl, err := New(p, spans); err != nil || math.Abs(tl.Makespan-want) > 1e-12 {
				t.Errorf("%s: %d alike take %v (%v), want %v", name, ranks, tl.Makespan, err, want)
			}
			programs := make([]*program.Program, ranks)
			for r := range programs {
				own := *p
				own.Rank = r
				programs[r] = &own
			}
			list, err := runAll(programs, cost)
			if err != nil {
				t.Fatal(err)
			}
			for r := range list {
				if math.Abs(list[r].Makespan-want) > 1e-12 {
					t.Errorf("%s: rank %d of %d takes %v, want %v", name, r, ranks, list[r].Makespan, want)
				}
			}
		}
	}
}

// apart is crowded, except that ranks are on hosts of so many, each with its cores.
type apart struct {
	crowded
	per int
}

func (a apart) Host(rank int) int { return rank / a.per }

// TestCrowdHosts: of two hosts with a core, the ranks of one compute for 3 s each, those of the other for 1 s, and so for 6 and 2 s. With two
// cores that all share, the former would end after 4 s, since the others' core would be theirs for half the time.
func TestCrowdHosts(t *testing.T) {
	var lists [][]program.Instr
	for _, n := range []int{3, 3, 1, 1} {
		lists = append(lists, []program.Instr{work(device.Compute, n*cols)})
	}
	programs := ranksOf(lists...)
	for _, p := range programs {
		for b := range p.Buffers {
			p.Buffers[b] = program.Buffer{Rows: 1, Cols: 4 * cols, Size: 16 * cols, Addr: int64(b) * 16 * cols}
		}
	}
	tls, err := runAll(programs, apart{crowded{bySize, 1}, 2})
	if err != nil {
		t.Fatal(err)
	}
	for r, want := range []float64{6, 6, 2, 2} {
		if got := tls[r].Makespan; math.Abs(got-want) > 1e-12 {
			t.Errorf("rank %d ends after %v s, want %v", r, got, want)
		}
	}
}

// TestSlowdownWork: however streams slow each other down, each instruction does as
// much work as it costs: the integral of its rate over its span, computed here from
// the spans of the others.
func TestSlowdownWork(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		cost := &slowed{CostFunc: bySize}
		for of := range cost.by {
			for by := range cost.by {
				cost.by[of][by] = max(0, r.Float64()-0.5)
			}
		}
		p := copies(1+r.IntN(40), func(i int) (device.Stream, []int) {
			var waits []int
			if i > 0 && r.IntN(2) == 0 {
				waits = append(waits, r.IntN(i))
			}
			return device.Stream(r.IntN(int(device.NumStreams))), waits
		})
		tl := mustRun(t, p, cost)
		var times []float64
		for _, s := range tl.Spans {
			times = append(times, s.Start, s.End)
		}
		slices.Sort(times)
		for i, s := range tl.Spans {
			of := p.Instrs[i].Stream
			var work float64
			for k := 1; k < len(times); k++ {
				lo, hi := times[k-1], times[k]
				if lo < s.Start || hi > s.End {
					continue
				}
				more := 1.0
				for o, other := range tl.Spans {
					if by := p.Instrs[o].Stream; by != of && other.Start <= lo && other.End >= hi {
						more += cost.by[of][by]
					}
				}
				work += (hi - lo) / more
			}
			c := p.Call(i)
			if want := bySize(&c); math.Abs(work-want) > 1e-9*want {
				t.Fatalf("seed %d: i%d does %v s of work, want %v", seed, i, work, want)
			}
		}
	}
}

func TestHang(t *testing.T) {
	p := copies(3, func(i int) (device.Stream, []int) { return device.Stream(i), [][]int{{1}, {0}, nil}[i] })
	_, err := Run(p, bySize)
	if err == nil || !strings.Contains(err.Error(), "i0 (copy) waits for i1") || strings.Contains(err.Error(), "i2") {
		t.Errorf("error is %v", err)
	}
	p.Instrs[0].Waits[0] = 99
	if _, err := Run(p, bySize); err == nil {
		t.Error("a wait for nothing was accepted")
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), -1} {
		q := copies(1, func(int) (device.Stream, []int) { return 0, nil })
		if _, err := Run(q, CostFunc(func(*device.Call) float64 { return bad })); err == nil {
			t.Errorf("a cost of %v was accepted", bad)
		}
	}
}

// TestText is L5 for timelines.
func TestText(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	p := copies(20, func(i int) (device.Stream, []int) { return device.Stream(i % 3), nil })
	tl := mustRun(t, p, CostFunc(func(*device.Call) float64 { return r.ExpFloat64() }))
	text, err := json.Marshal(tl)
	if err != nil {
		t.Fatal(err)
	}
	back := new(Timeline)
	if err := json.Unmarshal(text, back); err != nil || !reflect.DeepEqual(back, tl) {
		t.Errorf("%v: %s", err, text)
	}
}

func BenchmarkRun(b *testing.B) {
	const n = 10000
	p := copies(n, func(i int) (device.Stream, []int) {
		if i < 2 {
			return device.Stream(i), nil
		}
		return device.Stream(i % 5), []int{i - 1}
	})
	for b.Loop() {
		if _, err := Run(p, bySize); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/instr")
}
