package alloc_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
)

var background = context.Background()

// pack fails the test unless the solution is valid and its claims are sound.
func pack(t *testing.T, p alloc.Problem, opt alloc.Options) alloc.Solution {
	t.Helper()
	s, err := alloc.Pack(background, p, opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := generate.Validate(p, s); err != nil {
		t.Fatal(err)
	}
	if s.LowerBound < alloc.LowerBound(p) || s.Optimal != (s.Height == s.LowerBound) || s.Height < s.LowerBound {
		t.Fatalf("height %d, bound %d (simple %d), optimal %v", s.Height, s.LowerBound, alloc.LowerBound(p), s.Optimal)
	}
	return s
}

// bruteForce returns the least height: every packing in which nothing can fall
// results from dropping the buffers in some order, each onto what it meets.
func bruteForce(p alloc.Problem) int64 {
	n := len(p.Buffers)
	offsets, placed := make([]int64, n), make([]bool, n)
	best := int64(math.MaxInt64)
	var drop func(k int, height int64)
	drop = func(k int, height int64) {
		if height >= best {
			return
		}
		if k == n {
			best = height
			return
		}
		for i, b := range p.Buffers {
			if placed[i] {
				continue
			}
			var off int64
			for j, o := range p.Buffers {
				if placed[j] && b.Lower < o.Upper && o.Lower < b.Upper {
					off = max(off, offsets[j]+o.Size)
				}
			}
			if a := max(b.Align, 1); off%a != 0 {
				off += a - off%a
			}
			offsets[i], placed[i] = off, true
			drop(k+1, max(height, off+b.Size))
			placed[i] = false
		}
	}
	drop(0, 0)
	return best
}

// tiny is a problem that brute force can solve.
func tiny(rng *rand.Rand) alloc.Problem {
	p := generate.Random(rng, 2+rng.IntN(6), 8, 6, 12)
	if rng.IntN(2) == 0 {
		for i := range p.Buffers {
			p.Buffers[i].Align = 1 << rng.IntN(3)
		}
	}
	return p
}

func TestSearchMatchesBruteForce(t *testing.T) {
	for seed := range uint64(1500) {
		p := tiny(rand.New(rand.NewPCG(seed, 3)))
		want := bruteForce(p)
		s := pack(t, p, alloc.Options{Nodes: -1})
		if s.Height != want || !s.Optimal {
			t.Fatalf("seed %d: height %d (optimal %v), brute force %d: %v", seed, s.Height, s.Optimal, want, p)
		}
		if want == alloc.LowerBound(p) {
			continue
		}
		p.Capacity = want - 1
		var e *alloc.InfeasibleError
		if _, err := alloc.Pack(background, p, alloc.Options{Nodes: -1}); !errors.As(err, &e) || !errors.Is(err, alloc.ErrInfeasible) {
			t.Fatalf("seed %d: capacity %d: %v", seed, p.Capacity, err)
		}
		checkConflict(t, p, e)
	}
}

// checkConflict proves by brute force that the conflict does not fit, and
// that it does without any one of its buffers.
func checkConflict(t *testing.T, p alloc.Problem, e *alloc.InfeasibleError) {
	t.Helper()
	if !e.Minimal {
		t.Fatalf("conflict %v is not minimal", e.Conflict)
	}
	for leave := -1; leave < len(e.Conflict); leave++ {
		var sub alloc.Problem
		for k, i := range e.Conflict {
			if k != leave {
				sub.Buffers = append(sub.Buffers, p.Buffers[i])
			}
		}
		if h := bruteForce(sub); (h > p.Capacity) != (leave < 0) {
			t.Fatalf("conflict %v without %d: height %d, capacity %d: %v", e.Conflict, leave, h, p.Capacity, p)
		}
	}
}

// Every combination of the search's switches must give the same least height.
func TestTechniquesAgree(t *testing.T) {
	const all = 1 << 8
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := tiny(rng)
		if seed%2 == 0 {
			p = generate.Guillotine(rng, 9, 12, 20)
			p.Capacity = 0
		}
		want := bruteForce(p)
		for without := range alloc.Technique(all) {
			if s := pack(t, p, alloc.Options{Nodes: -1, Without: without}); s.Height != want || !s.Optimal {
				t.Fatalf("seed %d without %08b: height %d, want %d: %v", seed, without, s.Height, want, p)
			}
			p.Capacity = want - 1
			if _, err := alloc.Pack(background, p, alloc.Options{Nodes: -1, Without: without}); !errors.Is(err, alloc.ErrInfeasible) {
				t.Fatalf("seed %d without %08b: %d is said to be possible", seed, without, want-1)
			}
			p.Capacity = 0
		}
	}
}

// Twins and fixed buffers, against a search over all multiples of one byte.
func TestFixedOffsets(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 5))
		p := generate.Random(rng, 2+rng.IntN(4), 5, 4, 4)
		p.Buffers[0].Fixed = rng.Int64N(5)
		p.Capacity = 5 + rng.Int64N(6)
		want := exhaustive(p, make([]int64, 0, len(p.Buffers)))
		s, err := alloc.Pack(background, p, alloc.Options{Nodes: -1})
		if (err == nil) != want || err != nil && !errors.Is(err, alloc.ErrInfeasible) {
			t.Fatalf("seed %d: feasible %v, got %v: %v", seed, want, err, p)
		}
		if err == nil {
			if err := generate.Validate(p, s); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// Fixed buffers that share a byte are refused, whatever the capacity, and no others.
func TestFixedOverlaps(t *testing.T) {
	refused := 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 6))
		p := generate.Random(rng, 2+rng.IntN(6), 8, 4, 1)
		overlap := false
		for i := range p.Buffers {
			b := &p.Buffers[i]
			b.Fixed = rng.Int64N(12)
			for _, o := range p.Buffers[:i] {
				overlap = overlap || b.Lower < o.Upper && o.Lower < b.Upper && b.Fixed < o.Fixed+o.Size && o.Fixed < b.Fixed+b.Size
			}
		}
		s, err := alloc.Pack(background, p, alloc.Options{})
		if (err != nil) != overlap || overlap && !strings.Contains(err.Error(), "shares bytes with") {
			t.Fatalf("seed %d: overlap %v, got height %d: %v: %v", seed, overlap, s.Height, err, p)
		}
		if overlap {
			refused++
		}
	}
	if refused < 50 || refused > 350 {
		t.Errorf("%d of 400 overlap", refused)
	}
}

// exhaustive tries every offset below the capacity.
func exhaustive(p alloc.Problem, offsets []int64) bool {
	k := len(offsets)
	if k == len(p.Buffers) {
		return true
	}
	b := p.Buffers[k]
next:
	for off := int64(0); off+b.Size <= p.Capacity; off++ {
		if b.Fixed >= 0 && off != b.Fixed {
			continue
		}
		for j, o := range p.Buffers[:k] {
			if b.Lower < o.Upper && o.Lower < b.Upper && off < offsets[j]+o.Size && offsets[j] < off+b.Size {
				continue next
			}
		}
		if exhaustive(p, append(offsets, off)) {
			return true
		}
	}
	return false
}

// A guillotine cut leaves no slack, and its optimum is known.
func TestGuillotineIsSolved(t *testing.T) {
	for seed := range uint64(6) {
		for _, n := range []int{50, 100, 300} {
			p := generate.Guillotine(rand.New(rand.NewPCG(seed, 6)), n, 1<<20, 1<<20)
			p.Capacity = 0
			s := pack(t, p, alloc.Options{Nodes: 2_000_000, Workers: 2})
			if s.Height != 1<<20 || !s.Optimal {
				t.Errorf("seed %d, %d buffers: height %d", seed, n, s.Height)
			}
		}
	}
}

func TestNestsAreOptimal(t *testing.T) {
	for seed := range uint64(20) {
		p := generate.Nest(rand.New(rand.NewPCG(seed, 2)), 2000)
		if s := pack(t, p, alloc.Options{}); !s.Optimal || s.Nodes != 0 {
			t.Errorf("seed %d: height %d, bound %d", seed, s.Height, s.LowerBound)
		}
	}
}

// Training steps, proven optimal by the heuristics alone.
func TestTrainingIsOptimal(t *testing.T) {
	for _, align := range []int64{1, 64, 4096} {
		for _, recompute := range []bool{false, true} {
			for _, layers := range []int{1, 2, 12, 32} {
				rng := rand.New(rand.NewPCG(uint64(layers), 7))
				p := generate.Training{Layers: layers, Hidden: 100_000, Weights: 300_001, Transient: 12, Recompute: recompute, Align: align}.Problem(rng)
				if s := pack(t, p, alloc.Options{}); !s.Optimal {
					t.Errorf("%d layers, recompute %v, align %d: gap %.3f %%", layers, recompute, align, 100*s.Gap())
				}
			}
		}
	}
}

// The toy list of MEMO (section 3 of the paper), sizes in MB. 13, 14, 17-19
// and 20-24 are transient: a forward and a backward pass.
var memo = []alloc.Buffer{
	{ID: "13", Lower: 0, Upper: 4, Size: 128, Fixed: alloc.Free},
	{ID: "14", Lower: 1, Upper: 2, Size: 128, Fixed: alloc.Free},
	{ID: "15", Lower: 3, Upper: 15, Size: 256, Fixed: alloc.Free},
	{ID: "16", Lower: 5, Upper: 20, Size: 512, Fixed: alloc.Free},
	{ID: "17", Lower: 6, Upper: 9, Size: 128, Fixed: alloc.Free},
	{ID: "18", Lower: 7, Upper: 11, Size: 128, Fixed: alloc.Free},
	{ID: "19", Lower: 8, Upper: 10, Size: 256, Fixed: alloc.Free},
	{ID: "20", Lower: 11, Upper: 12, Size: 512, Fixed: alloc.Free},
	{ID: "21", Lower: 13, Upper: 17, Size: 1024, Fixed: alloc.Free},
	{ID: "22", Lower: 14, Upper: 18, Size: 256, Fixed: alloc.Free},
	{ID: "23", Lower: 15, Upper: 18, Size: 128, Fixed: alloc.Free},
	{ID: "24", Lower: 16, Upper: 19, Size: 512, Fixed: alloc.Free},
}

func TestMEMO(t *testing.T) {
	p := alloc.Problem{Buffers: memo}
	transient := func(ids string) (q alloc.Problem) {
		for _, b := range p.Buffers {
			if strings.Contains(ids, b.ID) {
				q.Buffers = append(q.Buffers, b)
			}
		}
		return q
	}
	for _, c := range []struct {
		p    alloc.Problem
		want int64
	}{{transient("13 14 17 18 19"), 512}, {transient("20 21 22 23 24"), 1920}, {p, alloc.LowerBound(p)}} {
		if s := pack(t, c.p, alloc.Options{Nodes: -1}); s.Height != c.want || !s.Optimal {
			t.Errorf("height %d, want %d", s.Height, c.want)
		}
	}
}

// The answer depends on neither the number of workers nor the run.
func TestDeterminism(t *testing.T) {
	p := generate.Pinwheel(rand.New(rand.NewPCG(2, 6)), 150, 60, 200)
	p.Capacity = 0
	first := pack(t, p, alloc.Options{Nodes: 20_000, Without: alloc.Glue})
	if first.Nodes < 20_000 {
		t.Fatalf("only %d nodes: this shows little", first.Nodes)
	}
	for workers := range 4 {
		if s := pack(t, p, alloc.Options{Nodes: 20_000, Workers: workers, Without: alloc.Glue}); !reflect.DeepEqual(s, first) {
			t.Fatalf("%d workers: another solution (nodes %d and %d)", workers, s.Nodes, first.Nodes)
		}
	}
}

func TestCache(t *testing.T) {
	var c alloc.Cache
	rng := rand.New(rand.NewPCG(1, 8))
	p := generate.Random(rng, 30, 40, 20, 100)
	a := pack(t, p, alloc.Options{Cache: &c})
	p.Buffers[3].ID = "renamed"
	a.Offsets[0]++ // the cache must own its copy
	b := pack(t, p, alloc.Options{Cache: &c})
	a.Offsets[0]--
	if c.Len() != 1 || !reflect.DeepEqual(a, b) {
		t.Errorf("%d entries", c.Len())
	}
	p.Buffers[3].Size++
	pack(t, p, alloc.Options{Cache: &c})
	if c.Len() != 2 {
		t.Errorf("%d entries, want 2", c.Len())
	}
}

// Repeated passes whose scratch is awkward to pack: in two levels it is solved
// once, and the result is no worse than the flat one.
func TestTwoLevels(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 9))
		pass := generate.Guillotine(rng, 25, 16, 64)
		var p alloc.Problem
		const layers = 12
		for l := range int64(layers) {
			for _, b := range pass.Buffers {
				b.ID = fmt.Sprint(l, "/", b.ID)
				b.Lower += 20 * l
				b.Upper += 20 * l
				p.Buffers = append(p.Buffers, b)
			}
			p.Buffers = append(p.Buffers, alloc.Buffer{ID: fmt.Sprint("keep", l), Lower: 20*l + 15, Upper: 20*layers*2 - 20*l, Size: 7, Fixed: alloc.Free})
		}
		flat := pack(t, p, alloc.Options{Flat: true})
		both := pack(t, p, alloc.Options{})
		if both.Height > flat.Height {
			t.Errorf("seed %d: %d with two levels, %d without", seed, both.Height, flat.Height)
		}
		if !both.Optimal {
			t.Errorf("seed %d: height %d, bound %d", seed, both.Height, both.LowerBound)
		}
	}
}

// An ended context still yields a packing.
func TestAnytime(t *testing.T) {
	ctx, cancel := context.WithCancel(background)
	cancel()
	p := generate.Guillotine(rand.New(rand.NewPCG(1, 10)), 200, 1<<20, 1<<20)
	p.Capacity = 0
	s, err := alloc.Pack(ctx, p, alloc.Options{Nodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := generate.Validate(p, s); err != nil {
		t.Fatal(err)
	}
	p.Capacity = 1 << 20
	if _, err := alloc.Pack(ctx, p, alloc.Options{Nodes: -1}); !errors.Is(err, alloc.ErrUndecided) {
		t.Errorf("got %v", err)
	}
}

func TestBadProblems(t *testing.T) {
	ok := alloc.Buffer{ID: "b", Lower: 0, Upper: 1, Size: 1, Fixed: alloc.Free}
	for name, change := range map[string]func(p *alloc.Problem, b *alloc.Buffer){
		"empty lifetime":     func(_ *alloc.Problem, b *alloc.Buffer) { b.Upper = 0 },
		"backward lifetime":  func(_ *alloc.Problem, b *alloc.Buffer) { b.Lower = 9 },
		"endless lifetime":   func(_ *alloc.Problem, b *alloc.Buffer) { b.Lower, b.Upper = math.MinInt64, math.MaxInt64 },
		"no bytes":           func(_ *alloc.Problem, b *alloc.Buffer) { b.Size = 0 },
		"negative bytes":     func(_ *alloc.Problem, b *alloc.Buffer) { b.Size = -5 },
		"overflow":           func(_ *alloc.Problem, b *alloc.Buffer) { b.Size = math.MaxInt64 },
		"overflowing sum":    func(p *alloc.Problem, b *alloc.Buffer) { b.Size = 1 << 60; p.Buffers = append(p.Buffers, *b, *b, *b) },
		"negative alignment": func(_ *alloc.Problem, b *alloc.Buffer) { b.Align = -8 },
		"huge alignment":     func(_ *alloc.Problem, b *alloc.Buffer) { b.Align = math.MaxInt64 },
		"unaligned offset":   func(_ *alloc.Problem, b *alloc.Buffer) { b.Align, b.Fixed = 8, 4 },
		"negative offset":    func(_ *alloc.Problem, b *alloc.Buffer) { b.Fixed = -2 },
		"negative capacity":  func(p *alloc.Problem, _ *alloc.Buffer) { p.Capacity = -1 },
	} {
		p := alloc.Problem{Buffers: []alloc.Buffer{ok}}
		change(&p, &p.Buffers[0])
		if _, err := alloc.Pack(background, p, alloc.Options{Nodes: -1}); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: %v", name, err)
		}
	}
	large := alloc.Problem{Buffers: []alloc.Buffer{ok, ok}}
	large.Buffers[0].Align, large.Buffers[1].Align = 1_000_000_000, 1_000_000_000
	if s := pack(t, large, alloc.Options{Nodes: -1}); s.Height != 1_000_000_001 {
		t.Errorf("billion-byte alignment: height %d", s.Height)
	}
	pack(t, alloc.Problem{}, alloc.Options{Nodes: -1})
}

// The validator is trusted by everything else: it must reject each defect.
func TestValidateRejects(t *testing.T) {
	p := alloc.Problem{Capacity: 12, Buffers: []alloc.Buffer{
		{ID: "a", Lower: 0, Upper: 2, Size: 4, Fixed: alloc.Free},
		{ID: "b", Lower: 1, Upper: 3, Size: 4, Align: 4, Fixed: alloc.Free},
		{ID: "c", Lower: 2, Upper: 3, Size: 4, Fixed: 0},
	}}
	good := alloc.Solution{Offsets: []int64{0, 4, 0}, Height: 8}
	if err := generate.Validate(p, good); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]alloc.Solution{
		"overlap":    {Offsets: []int64{1, 4, 0}, Height: 8},
		"unaligned":  {Offsets: []int64{0, 5, 0}, Height: 9},
		"fixed":      {Offsets: []int64{0, 4, 8}, Height: 12},
		"capacity":   {Offsets: []int64{0, 12, 0}, Height: 16},
		"height":     {Offsets: []int64{0, 4, 0}, Height: 9},
		"negative":   {Offsets: []int64{-4, 4, 0}, Height: 8},
		"wraps":      {Offsets: []int64{math.MaxInt64 - 1, 4, 0}, Height: 8},
		"incomplete": {Offsets: []int64{0, 4}, Height: 8},
	} {
		if generate.Validate(p, bad) == nil {
			t.Errorf("%s passes", name)
		}
	}
}
