package folder

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/search"
)

// alone is a sequence that a Generator has continued greedily by itself.
type alone struct {
	ids    []int32     // prompt and continuation
	prompt int         // tokens of the prompt
	logits [][]float64 // after the prompt, then after each further token
}

// continued continues a random prompt.
func continued(t *testing.T, g *Generator, r *rand.Rand) *alone {
	t.Helper()
	most := g.context
	if r.IntN(2) == 0 {
		most = min(most, 12)
	}
	a := &alone{prompt: 1 + r.IntN(most-1)}
	for range a.prompt {
		a.ids = append(a.ids, int32(r.IntN(g.vocab)))
	}
	g.Reset()
	check(t, g.Extend(t.Context(), a.ids...))
	for range 1 + r.IntN(min(8, g.context-a.prompt)) {
		a.logits = append(a.logits, slices.Clone(g.Logits()))
		next := pick(g.Logits(), 0, nil)
		a.ids = append(a.ids, next)
		check(t, g.Extend(t.Context(), next))
	}
	return a
}

// compressSome holds caches in 8 or 4 bits, or leaves them as they are.
func compressSome(t *testing.T, f *Folder, r *rand.Rand) {
	t.Helper()
	if bits := []int{0, 8, 4}[r.IntN(3)]; bits > 0 {
		check(t, f.CompressCaches(bits))
	}
}

// running is a sequence in a slot.
type running struct {
	*alone
	slot, at int // the next token to read
}

// TestSlots: sequences that join, leave and take steps at random have, bit for bit, the logits, and so the greedy tokens, that each
// has by itself, if the caches of both are in as many bits.
func TestSlots(t *testing.T) {
	seed := testkit.Seed(t)
	folders, err := filepath.Glob("../testdata/torch/*/config.json")
	check(t, err)
	type slotCase struct {
		config string
		dtype  graph.DType
	}
	var cases []slotCase
	for _, config := range folders {
		cases = append(cases, slotCase{config, graph.F32}, slotCase{config, graph.BF16})
	}
	for i, c := range testkit.Sample(cases, 2, 8) {
		dir, dtype := filepath.Dir(c.config), c.dtype
		t.Run(strings.TrimPrefix(dir, "../testdata/torch/")+" "+dtype.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			f, err := Open(dir)
			check(t, err)
			defer f.Close()
			compressSome(t, f, r)
			const sequences = 5
			length := min(150, f.Model.MaxPositions)
			g, err := f.Generator(t.Context(), unbounded(cpu.New(cpu.Options{})), length, dtype)
			check(t, err)
			defer func() { check(t, g.Close()) }()
			s, err := f.OpenSlots(t.Context(), unbounded(cpu.New(cpu.Options{})), length, sequences, dtype)
			check(t, err)
			defer func() { check(t, s.Close()) }()
			var now []*running
			free := []int{3, 1, 4, 0, 2}
			for joined, all := 0, testkit.Count(12, 12, 64); joined < all || len(now) > 0; {
				if len(free) > 0 && joined < all && (len(now) == 0 || r.IntN(3) > 0) {
					now = append(now, &running{alone: continued(t, g, r), slot: free[0]})
					free, joined = free[1:], joined+1
				}
				r.Shuffle(len(now), func(i, k int) { now[i], now[k] = now[k], now[i] })
				var left []*running
				for _, q := range stepSome(t, s, now, r) {
					free = append(free, q.slot)
					left = append(left, q)
				}
				now = slices.DeleteFunc(now, func(q *running) bool { return slices.Contains(left, q) })
			}
		})
	}
}

// stepSome makes a step with some of the sequences, compares what it computes, and returns those that have ended.
func stepSome(t *testing.T, s *Slots, now []*running, r *rand.Rand) (ended []*running) {
	t.Helper()
	var list []Placed
	var of []*running
	for _, q := range now[:1+r.IntN(len(now))] {
		if q.at == 0 && r.IntN(2) == 0 { // else token by token
			for next := -1; q.at != next; {
				var err error
				next = q.at
				q.at, err = s.read(t.Context(), q.slot, q.ids[:q.prompt], q.at)
				check(t, err)
			}
		}
		for n := 0; n == 0 || r.IntN(2) == 0 && q.at < q.prompt; n++ { // perhaps several of a prompt
			if len(list) < s.Sequences {
				list, of = append(list, Placed{q.ids[q.at], q.slot, q.at}), append(of, q)
				q.at++
			}
		}
	}
	check(t, s.Step(t.Context(), list))
	for i, q := range of {
		after := list[i].Position + 1 - q.prompt
		if after < 0 {
			continue
		}
		if !slices.Equal(s.Logits(i), q.logits[after]) {
			t.Fatalf("a prompt of %d tokens, %d more, in slot %d beside %d rows: other logits than alone", q.prompt, after, q.slot, len(list)-1)
		}
		if after == len(q.logits)-1 {
			ended = append(ended, q)
		}
	}
	return ended
}

// TestShortSlots: more sequences than a sequence has tokens.
func TestShortSlots(t *testing.T) {
	f, err := Open("../testdata/torch/llama3-rope")
	check(t, err)
	defer f.Close()
	r := testkit.Rand(t)
	g, err := f.Generator(t.Context(), unbounded(cpu.New(cpu.Options{})), 10, graph.F32)
	check(t, err)
	defer func() { check(t, g.Close()) }()
	s, err := f.OpenSlots(t.Context(), unbounded(cpu.New(cpu.Options{})), 10, 24, graph.F32)
	check(t, err)
	defer func() { check(t, s.Close()) }()
	var now []*running
	for slot := range 24 {
		now = append(now, &running{alone: continued(t, g, r), slot: slot})
	}
	for len(now) > 0 {
		left := stepSome(t, s, now, r)
		now = slices.DeleteFunc(now, func(q *running) bool { return slices.Contains(left, q) })
	}
}

// TestSlotsMemory: caches are as large as there are slots and bits of a number, exactly, and what does not fit is refused before anything runs.
func TestSlotsMemory(t *testing.T) {
	f, err := Open("../testdata/torch/llama3-rope")
	check(t, err)
	defer f.Close()
	slotsMemory(t, f, 4*f.Model.HeadDim)
	check(t, f.CompressCaches(8))
	slotsMemory(t, f, 4+f.Model.HeadDim)
	check(t, f.CompressCaches(4))
	slotsMemory(t, f, 4+f.Model.HeadDim/2)
	if err := f.CompressCaches(5); !errors.Is(err, ErrMisuse) || !strings.Contains(err.Error(), "; hint: use 8 or 4") {
		t.Errorf("caches in 5 bits: %v", err)
	}
}

// slotsMemory checks the memory of caches in which a key or a value takes so many bytes.
func slotsMemory(t *testing.T, f *Folder, row int) {
	t.Helper()
	open := func(sequences int, memory int64) (*Slots, error) {
		d := unbounded(cpu.New(cpu.Options{}))
		if memory > 0 {
			d.Capacity[device.DeviceTier] = memory
		}
		return f.OpenSlots(context.Background(), d, 64, sequences, graph.F32)
	}
	var caches [2]int64
	var most int64
	for i, n := range []int{2, 6} {
		s, err := open(n, 0)
		check(t, err)
		for _, b := range s.session.Program(0).Buffers {
			if strings.HasSuffix(b.Name, ".kv") {
				caches[i] += b.Size
			}
		}
		most = s.Footprint().Device
		check(t, s.Close())
	}
	m := f.Model
	if want := int64(m.Layers * 2 * m.KVHeads * row * 64); caches[0] != 2*want || caches[1] != 6*want {
		t.Errorf("caches of %d bytes, want 2 and 6 times %d", caches, want)
	}
	s, err := open(6, most)
	check(t, err)
	check(t, s.Close())
	var misfit *search.Misfit
	if _, err := open(6, caches[1]); !errors.As(err, &misfit) {
		t.Errorf("in the memory of the caches alone: %v", err)
	}
}

// TestSlotsStates: of layers that hand states from token to token, each slot has the states of all heads in fp32, and the inputs that a convolution
// sees again, whatever the context.
func TestSlotsStates(t *testing.T) {
	for _, name := range []string{"qwen35-tiny", "granite-h-tiny", "lfm2-tiny"} {
		f, err := Open("../testdata/torch/" + name)
		check(t, err)
		m, want := f.Model, 0
		for l := range m.Layers {
			switch {
			case m.Delta.HasLayer(l):
				want += m.Delta.Heads*m.Delta.KeyDim*m.Delta.ValueDim + (m.Delta.Taps-1)*m.Delta.Mixed()
			case m.Mamba.HasLayer(l):
				want += m.Mamba.Heads*m.Mamba.State*m.Mamba.HeadDim + (m.Mamba.Taps-1)*m.Mamba.Mixed()
			case m.Conv.HasLayer(l):
				want += (m.Conv.Taps - 1) * m.Width
			}
		}
		for _, sequences := range []int{2, 6} {
			s, err := f.OpenSlots(t.Context(), unbounded(cpu.New(cpu.Options{})), 16*sequences, sequences, graph.F32)
			check(t, err)
			var got int64
			for _, b := range s.session.Program(0).Buffers {
				if strings.HasSuffix(b.Name, ".state") || strings.HasSuffix(b.Name, ".past") {
					got += b.Size
				}
			}
			if want == 0 || got != int64(4*want*sequences) {
				t.Errorf("%s: states of %d bytes, want %d times %d", name, got, sequences, 4*want)
			}
			check(t, s.Close())
		}
		check(t, f.Close())
	}
}
