package schedule

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestAlwaysRuns: for any numbers, Generate either returns a usage error, or a schedule
// that can run, keeps its cap, is parsed from its text, and takes at least its ideal time.
func TestAlwaysRuns(t *testing.T) {
	rng := testkit.Rand(t)
	made := map[string]int{}
	mostly := func(n int) int { // zero, the schedule's own number, three times out of four
		if rng.IntN(4) > 0 {
			return 0
		}
		return rng.IntN(n)
	}
	for range testkit.Count(300, 1500, 3000) {
		names := Names()
		name := names[rng.IntN(len(names))]
		q := Request{Ranks: rng.IntN(9), Micros: rng.IntN(25), Chunks: mostly(4), Slices: mostly(4), DepthFirst: mostly(3),
			Costs: Costs{Times: Times{rng.Float64(), rng.Float64(), rng.Float64()}, Comm: rng.Float64() / 4, WeightMemory: rng.Float64()}}
		if rng.IntN(2) == 0 {
			q.Cap = rng.Float64() * 20
		}
		s, err := Generate(name, q)
		if err != nil {
			var usage *UsageError
			if !errors.As(err, &usage) || usage.Hint == "" || usage.Why == "" {
				t.Fatalf("%s %+v: %v", name, q, err)
			}
			if q.Ranks > 0 && q.Micros > 0 && q.Cap == 0 && q.Chunks+q.Slices+q.DepthFirst == 0 && strings.HasPrefix(name, "zb-") {
				t.Fatalf("%s %+v: %v", name, q, err)
			}
			continue
		}
		made[name]++
		if err := s.Check(); err != nil {
			t.Fatalf("%s %+v: %v", name, q, err)
		}
		tl, err := s.Simulate(q.Costs)
		if err != nil || tl.Makespan < tl.Ideal*(1-1e-9) {
			t.Fatalf("%s %+v: %v, %+v", name, q, err, tl)
		}
		if q.Cap > 0 && strings.HasPrefix(name, "zb-") && name != "zb-h1" && name != "zb-h2" && s.CheckCap(q.Costs, q.Cap) != nil {
			t.Fatalf("%s %+v: breaks its cap", name, q)
		}
		back, err := s.Parse(s.Text())
		if err != nil || !reflect.DeepEqual(back, s) {
			t.Fatalf("%s %+v: text does not read back: %v", name, q, err)
		}
	}
	for _, name := range Names() {
		if made[name] < testkit.Count(0, 3, 5) {
			t.Errorf("%s was made %d times only", name, made[name])
		}
	}
}

// TestMutants: orders broken by hand are refused with the rank and the unit.
func TestMutants(t *testing.T) {
	order := func(lines ...string) *Schedule {
		s, err := Generate("zb-h1", Request{Ranks: len(lines), Micros: 3})
		if err != nil {
			t.Fatal(err)
		}
		broken, err := s.Parse(lines)
		if err != nil {
			t.Fatal(err)
		}
		return broken
	}
	good0, good1 := "F0 F1 B0 W0 F2 B1 W1 B2 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2"
	if err := order(good0, good1).Check(); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		r0, r1     string
		rank       int
		unit, says string
	}{
		{"F0 F1 B0 W0 B1 W1 B2 W2", good1, 0, "F2", "missing"},
		{"F0 F1 B0 W0 F2 B1 W1 B2", good1, 0, "W2", "missing"},
		{"F0 F1 B0 W0 F2 B1 W1 W2", good1, 0, "B2", "missing"},
		{"F0 F1 F1 B0 W0 F2 B1 W1 B2 W2", good1, 0, "F1", "duplicated"},
		{good0, "F0 B0 B0 F1 B1 W0 F2 B2 W1 W2", 1, "B0", "duplicated"},
		{"F0 B1 F1 B0 W0 F2 W1 B2 W2", good1, 0, "B1", "deadlock"},
		{good0, "B0 F0 F1 B1 W0 F2 B2 W1 W2", 1, "B0", "deadlock"},
		{good0, "F0 W0 B0 F1 B1 F2 B2 W1 W2", 1, "W0", "deadlock"},
		{"F0 F1 B0 W0 B2 W2 B1 W1 F2", good1, 0, "B2", "deadlock"},
		{"F1 B0 F0 W0 F2 B1 W1 B2 W2", good1, 0, "B0", "deadlock"},
	} {
		err := order(x.r0, x.r1).Check()
		var wrong *OrderError
		if !errors.As(err, &wrong) {
			t.Errorf("%s | %s was accepted", x.r0, x.r1)
			continue
		}
		if wrong.Rank != x.rank || wrong.Unit != x.unit || !strings.Contains(wrong.Reason, x.says) || wrong.Hint == "" {
			t.Errorf("%s | %s: %v", x.r0, x.r1, err)
		}
	}
	s, _ := Generate("1f1b", Request{Ranks: 2, Micros: 2})
	s.Orders[0][0].Stage = 1
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "stage 1 is on rank 1") {
		t.Errorf("a unit on the wrong rank: %v", err)
	}
	s.Orders[0][0].Stage = 7
	if err := s.Check(); err == nil {
		t.Error("a stage that does not exist was accepted")
	}
	s.Orders[0][0] = Unit{Joined: true}
	if err := s.Check(); err == nil {
		t.Error("an overlapped unit without a partner was accepted")
	}
}

// TestSwaps: Check refuses an order in which a swap of two units has put a unit before
// its input.
func TestSwaps(t *testing.T) {
	rng := testkit.Rand(t)
	refused := 0
	for range 400 {
		s, err := Generate("zb-v", Request{Ranks: 3, Micros: 5, Costs: DefaultCosts()})
		if err != nil {
			t.Fatal(err)
		}
		order := s.Orders[rng.IntN(3)]
		i, j := rng.IntN(len(order)), rng.IntN(len(order))
		order[i], order[j] = order[j], order[i]
		before := false // does any unit precede another that it needs, on this rank?
		for a := range order {
			for b := a + 1; b < len(order); b++ {
				x, y := order[a], order[b]
				if x.Stage == y.Stage && x.Micro == y.Micro && x.Pass > y.Pass {
					before = true
				}
			}
		}
		err = s.Check()
		if before && err == nil {
			t.Fatalf("swap %d %d runs backwards", i, j)
		}
		if err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no swap was refused")
	}
}

func TestImpossible(t *testing.T) {
	good := Request{Ranks: 4, Micros: 8, Costs: DefaultCosts()}
	for _, x := range []struct {
		name string
		edit func(q *Request)
		hint string
	}{
		{"1f1d", func(q *Request) {}, `"1f1b"`},
		{"interleave", func(q *Request) {}, `"interleaved"`},
		{"DualPip", func(q *Request) {}, `"dualpipe"`},
		{"xyzzyquux", func(q *Request) {}, "take one of"},
		{"1f1b", func(q *Request) { q.Ranks = 0 }, ">= 1"},
		{"1f1b", func(q *Request) { q.Ranks = -3 }, ">= 1"},
		{"gpipe", func(q *Request) { q.Micros = 0 }, ">= 1"},
		{"gpipe", func(q *Request) { q.Micros = math.MaxInt }, "smaller"},
		{"breadth-first", func(q *Request) { q.Ranks, q.Micros = 1<<20, 1<<20 }, "fewer"},
		{"1f1b", func(q *Request) { q.Chunks = 2 }, "interleaved"},
		{"1f1b", func(q *Request) { q.Slices = 2 }, "seq1f1b"},
		{"interleaved", func(q *Request) { q.Micros = 6 }, "8 micro-batches"},
		{"bitpipe", func(q *Request) { q.Micros = 6 }, "8 micro-batches"},
		{"bitpipe", func(q *Request) { q.Ranks = 3 }, "4 ranks"},
		{"chimera", func(q *Request) { q.Micros = 7 }, "8 micro-batches"},
		{"dualpipe", func(q *Request) { q.Micros = 6 }, "8 micro-batches"},
		{"dualpipev", func(q *Request) { q.Micros = 6 }, "8 micro-batches"},
		{"zb-auto", func(q *Request) { q.Cap = .5 }, "cap"},
		{"zb-auto", func(q *Request) { q.Cap = math.NaN() }, "> 0"},
		{"zb-auto", func(q *Request) { q.Costs.F = math.NaN() }, ">= 0"},
		{"zb-v", func(q *Request) { q.Costs.B = -1 }, ">= 0"},
		{"zb-v", func(q *Request) { q.Cap = 1 }, "cap"},
		{"breadth-first", func(q *Request) { q.DepthFirst = 3 }, "divisor"},
	} {
		q := good
		x.edit(&q)
		_, err := Generate(x.name, q)
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.Contains(usage.Hint, x.hint) {
			t.Errorf("%s %+v: %v", x.name, q, err)
		}
	}
}

// TestLarge: schedules of p=64, m=1024 are generated and simulated in seconds.
func TestLarge(t *testing.T) {
	for _, name := range testkit.Sample(Names(), 1, 3) {
		simulate(t, name, Request{Ranks: 64, Micros: 1024, Costs: DefaultCosts()})
	}
}

// FuzzParse: Parse panics on no text, and schedules that can run are parsed from their text.
func FuzzParse(f *testing.F) {
	f.Add(uint8(3), "F0 F1 F2 F3 B0 F4\nF0 B0")
	f.Add(uint8(2), "F0.0 F1.1 B0.1 W0.1\nF0")
	f.Add(uint8(4), "F0a F0b B0b B0a")
	f.Add(uint8(6), "Fd0 FU0+BD1\nBu0")
	f.Add(uint8(10), "F0 f0 B0 w0\nb0")
	f.Add(uint8(11), "F'0 F3+B'1 b0 W0")
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		name := Names()[int(which)%len(Names())]
		s, err := Generate(name, Request{Ranks: 2, Micros: 4, Costs: DefaultCosts()})
		if err != nil {
			t.Skip()
		}
		parsed, err := s.Parse(strings.Split(text, "\n"))
		if err != nil {
			return
		}
		if _, err := parsed.Simulate(DefaultCosts()); err != nil {
			return
		}
		again, err := parsed.Parse(parsed.Text())
		if err != nil || !reflect.DeepEqual(again.Orders, parsed.Orders) {
			t.Errorf("%q does not read back: %v", text, err)
		}
	})
}
