//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
)

// TestAttentionWaits: all threads wait for copies to shared memory before these are read and before
// their buffer is refilled: without any one of the waits and barriers in the loops over tiles,
// attention is wrong or stops, in one of the two orders of threads. This is also a test of the fake,
// which must show it.
func TestAttentionWaits(t *testing.T) {
	testkit.Needs(t, testkit.All)
	if onGPU() {
		t.Skip("of the kernels' text, which the fake runs")
	}
	waitsMatter(t, asText, true, graph.Attention) // of both, code tells more in less time: TestCompiledWaits
}

// editing changes a source before it is compiled.
type editing struct {
	kernels.Compiler
	edit func(source string) string
}

func (e editing) Compile(name, source string, options []string) ([]byte, string, error) {
	return e.Compiler.Compile(name, e.edit(source), options)
}

// waits keep copies, products and whatever uses their operands or results apart.
var waits = regexp.MustCompile(`(landed(<[^>]*>)?|done<\d>|visible|begin|close|__syncthreads)\(\);`)

// waitsMatter removes the waits and barriers of kernels, one at a time, and requires that each removal
// is detected, if need be in only one of the two orders.
func waitsMatter(t *testing.T, w way, orders bool, ops ...graph.Op) {
	t.Helper()
	sizes := map[string][]int{"attention_mma.cu": {32, 144}, "attention_wgmma.cu": {32, 96, 160}, "gradients.cuh": {32, 96}, "attention_bwd_wide.cu": {144}, "attention_bwd_wide_wgmma.cu": {192}} // of heads, else 32: a wait must matter for one of them
	for _, c := range []struct {
		op      graph.Op
		file    string // edited from there on
		variant bool   // also within documents, or with weights in 4 bits
		major   int    // the card's compute capability
	}{{graph.Attention, "attention_mma.cu", false, 8}, {graph.AttentionBwd, "gradients.cuh", false, 8}, {graph.AttentionBwd, "gradients.cuh", true, 8},
		{graph.Attention, "attention_wgmma.cu", false, 9}, {graph.AttentionBwd, "gradients.cuh", true, 9}, {graph.AttentionBwd, "attention_bwd_wide.cu", true, 8},
		{graph.AttentionBwd, "attention_bwd_wide_wgmma.cu", true, 9},
		{graph.LinearDW, "wgrad_mma.cu", false, 8}, {graph.LinearDW, "wgrad_wgmma.cu", false, 9},
		{graph.ExpertLinear, "expert_linear_mma.cu", false, 8}, {graph.ExpertLinear, "expert_linear_mma.cu", true, 8}, {graph.ExpertDW, "expert_dw_mma.cu", false, 8},
		{graph.ExpertLinear, "expert_linear_wgmma.cu", false, 9}, {graph.ExpertLinear, "expert_linear_wgmma.cu", true, 9}, {graph.ExpertDW, "expert_dw_wgmma.cu", false, 9}} {
		if !slices.Contains(ops, c.op) || orders && c.major == 9 { // text does not show what tensor cores see when
			continue
		}
		t.Run(fmt.Sprint(c.op, " ", c.file, " ", c.variant, " ", c.major), func(t *testing.T) {
			heads := sizes[c.file]
			if heads == nil {
				heads = []int{32}
			}
			var list []*sample
			var wants [][]byte
			for _, head := range heads {
				for _, variant := range []bool{false, true} {
					if !variant || c.variant {
						s := longSample(c.op, variant, head)
						list, wants = append(list, s), append(wants, s.reference())
					}
				}
			}
			once := func(i int, edit func(string) string, descending bool) error {
				g := fake.New()
				g.Major = c.major
				return list[i].edited(t, &Libraries{Driver: g.Driver(), Compiler: editing{w(t, g, descending), within(c.file, edit)}}, wants[i])
			}
			run := func(edit func(string) string) (err error) {
				for i := 0; i < len(list) && err == nil; i++ {
					if err = once(i, edit, false); orders {
						err = errors.Join(err, once(i, edit, true))
					}
				}
				return err
			}
			text := ""
			if err := run(func(source string) string { text = source; return source }); err != nil {
				t.Fatal(err)
			}
			found := waits.FindAllStringIndex(text, -1)
			if len(found) < 2 {
				t.Fatal("there are no waits")
			}
			for _, at := range testkit.Sample(found, 1, 2) { // compiling takes seconds
				without := func(text string) string { return text[:at[0]] + text[at[1]:] }
				if run(without) == nil {
					t.Errorf("without %s, byte %d, nothing is wrong", text[at[0]:at[1]], at[0])
				}
			}
		})
	}
}

// within edits a source from the beginning of a file in it.
func within(file string, edit func(string) string) func(string) string {
	return func(source string) string {
		before, after, ok := strings.Cut(source, fmt.Sprintf("#line 1 %q\n", file))
		if !ok {
			return source
		}
		return before + fmt.Sprintf("#line 1 %q\n", file) + edit(after)
	}
}

// longSample covers several tiles, in bf16: attention on a sequence with an odd number of tiles, so
// that the last one is where results pass through, a weight's gradient, or a product of experts. The
// variant of attention is within documents, that of experts has weights in 4 bits.
func longSample(op graph.Op, variant bool, head int) *sample {
	s := &sample{Rand: rand.New(rand.NewPCG(7, uint64(op))), image: make([]byte, imageBytes), wide: true, float: graph.BF16, tol: 8e-3}
	s.call.Op = op
	if op == graph.LinearDW {
		s.f32(72, 136)
		s.mat(700, 72) // more tokens than buffers hold
		s.mat(700, 136)
		return s
	}
	if op == graph.ExpertLinear || op == graph.ExpertDW {
		s.call.Attr = graph.Attr{Experts: 2, Seq: 350, NF4: variant}
		if op == graph.ExpertDW {
			s.experts(700, 1, 72, 136, graph.F32, 72, 136)
			return s
		}
		s.mat(90, 136)
		s.mat(90, 272) // 5 or 9 steps: the last one's inputs are where results pass through
		s.experts(90, 1, 272, 136, graph.BF16)
		return s
	}
	n, heads := 300, 1
	if op == graph.AttentionBwd { // which goes over several heads with the same keys
		heads = 3
	}
	w := heads * head
	s.call.Attr = graph.Attr{Seq: n, KVHeads: 1, Heads: heads, HeadDim: head, Scale: 0.25}
	a := s.call.Attr
	if op == graph.Attention {
		s.mat(n, w)
		s.f32(n, heads)
		s.mat(n, w)
		s.mat(n, 2*head)
		return s
	}
	s.mat(n, w)
	s.mat(n, 2*head)
	s.f32(n, heads)
	s.mat(n, w)
	q, kv := s.mat(n, w), s.mat(n, 2*head)
	o, lse := s.mat(n, w), s.f32(n, heads)
	var starts device.Operand
	if variant {
		starts = s.documents(n, n, 100)
	}
	kernel.Lookup(graph.Attention).Reference(nil, &a, []kernel.Tensor{tensor(s.image, o), tensor(s.image, lse), tensor(s.image, q), tensor(s.image, kv), tensor(s.image, starts)})
	return s
}

// TestAttentionFits: blocks of all head sizes fit the shared memory of every card that their kernels
// are for, which is 99 KiB a block on the smallest.
func TestAttentionFits(t *testing.T) {
	const small, hopper = 99 << 10, 227 << 10
	for head := 16; head <= 256; head += 16 {
		for what, c := range map[string]struct {
			block attentionBlock
			most  int
		}{
			"plain":                {plainForward.block(head), small},
			"plain, dq":            {plainBackward.queries(head), small},
			"plain, dk, dv":        {plainBackward.keys(head), small},
			"tensor cores":         {tensorForward.block(head), small},
			"tensor cores, dq":     {tensorBackward.queries(min(head, 128)), small},
			"tensor cores, dk, dv": {tensorBackward.keys(min(head, 128)), small},
			"wide":                 {wideTiles(head), small},
			"Hopper":               {hopperForward.block(head), hopper},
			"Hopper, dq":           {hopperBackward.queries(min(head, 128)), hopper},
			"Hopper, dk, dv":       {hopperBackward.keys(min(head, 128)), hopper},
			"Hopper, wide":         {wideHopperTiles(head), hopper},
		} {
			if need := c.block.shared + c.block.starts; need > c.most {
				t.Errorf("%s, head %d: a block needs %d bytes of %d", what, head, need, c.most)
			}
		}
	}
}

// TestDocumentsAreSkipped: tiles of other documents are not visited, neither tiles of keys for later
// queries nor tiles of queries for earlier keys.
func TestDocumentsAreSkipped(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	documentsAreSkipped(t, machine, 3)
}

func documentsAreSkipped(t *testing.T, machine maker, usual int) {
	t.Helper()
	const n, cut = 256, 128 // a multiple of all tiles
	for _, c := range casesOf([]struct {
		float       graph.DType
		head, major int
	}{{graph.BF16, 32, 9}, {graph.F32, 32, 9}, {graph.BF16, 32, 8}, {graph.BF16, 160, 8}, {graph.BF16, 192, 9}}, usual) {
		float, head := c.float, c.head
		d, _ := machine(t, Options{}, imageBytes)
		d.chip.major = c.major
		s := &sample{Rand: rand.New(rand.NewPCG(1, 6)), image: make([]byte, imageBytes), wide: true, float: float}
		s.call.Attr = graph.Attr{Seq: n, Heads: 1, KVHeads: 1, HeadDim: head, Scale: 0.25}
		q, kv, do := s.mat(n, head), s.mat(n, 2*head), s.mat(n, head)
		o, lse, delta := s.place(float, n, head), s.place(graph.F32, n, 1), s.place(graph.F32, n, 1)
		dq, dkv := s.place(float, n, head), s.place(float, n, 2*head)
		row := -1
		starts := s.fill(graph.I32, n, 1, func() float64 { row++; return float64(row / cut * cut) })
		calls := []device.Call{
			{Op: graph.Attention, Attr: s.call.Attr, Args: []device.Operand{o, lse, q, kv, starts}},
			{Op: graph.AttentionBwd, Attr: s.call.Attr, Args: []device.Operand{dq, dkv, delta, do, q, kv, o, lse, starts}},
		}
		want := executeAll(t, d, calls, s.image)
		for bad, good := range map[int]int{0: cut, cut: 0} { // first rows of the documents
			image := bytes.Clone(s.image)
			for _, in := range []device.Operand{q, kv, do} {
				x := tensor(image, rowsOf(in, bad, cut))
				for r := range x.Rows {
					for c := range x.Cols {
						x.Set(r, c, math.NaN())
					}
				}
			}
			have := executeAll(t, d, calls, image)
			for i, out := range []device.Operand{o, lse, delta, dq, dkv} {
				x, y := tensor(have, rowsOf(out, good, cut)), tensor(want, rowsOf(out, good, cut))
				for r := range x.Rows {
					for c := range x.Cols {
						if x.At(r, c) != y.At(r, c) {
							t.Fatalf("%v: NaN from row %d on: result %d has %v in row %d, not %v", float, bad, i, x.At(r, c), good+r, y.At(r, c))
						}
					}
				}
			}
		}
	}
}

// TestHugeScores: as long as scores are finite, so are results, and a query's weights add up to 1, as
// values of 1 show. On tensor cores this holds for scores up to 2^28 (kernels/attention_mma.cu). That
// products are not fused with what is subtracted only shows on a card: for the fake, the compiler's
// code leaves that open.
func TestHugeScores(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	hugeScores(t, machine, 4)
}

func hugeScores(t *testing.T, machine maker, usual int) {
	t.Helper()
	const n, heads = 100, 2
	for _, c := range casesOf([]struct {
		float         graph.DType
		head, major   int
		queries, keys float64 // their sizes
	}{{graph.F32, 32, 9, 1e4, 1e4}, {graph.F32, 33, 9, 1e6, 3e6}, {graph.F32, 32, 9, 1e17, 1e17}, {graph.BF16, 33, 9, 1e6, 1e6},
		{graph.BF16, 32, 8, 1e3, 2e3}, {graph.BF16, 32, 8, 4e3, 1e3}, {graph.BF16, 32, 9, 1e3, 2e3}, {graph.BF16, 32, 9, 4e3, 1e3},
		{graph.BF16, 256, 8, 1e3, 1e3}, {graph.BF16, 256, 9, 1e3, 1e3}}, usual) {
		d, _ := machine(t, Options{}, imageBytes)
		d.chip.major = c.major
		s := &sample{Rand: rand.New(rand.NewPCG(uint64(c.queries), uint64(c.head))), image: make([]byte, imageBytes), wide: true, float: c.float}
		w := heads * c.head
		s.call.Attr = graph.Attr{Seq: n, Heads: heads, KVHeads: 1, HeadDim: c.head, Scale: 0.3}
		huge := func(size float64) func() float64 { return func() float64 { return size * s.NormFloat64() } }
		q, do := s.fill(c.float, n, w, huge(c.queries)), s.mat(n, w)
		at := 0
		kv := s.fill(c.float, n, 2*c.head, func() float64 {
			if at++; (at-1)%(2*c.head) >= c.head {
				return 1
			}
			return c.keys * s.NormFloat64()
		})
		o, lse, delta := s.place(c.float, n, w), s.place(graph.F32, n, heads), s.place(graph.F32, n, heads)
		dq, dkv := s.place(c.float, n, w), s.place(c.float, n, 2*c.head)
		have := executeAll(t, d, []device.Call{
			{Op: graph.Attention, Attr: s.call.Attr, Args: []device.Operand{o, lse, q, kv, {}}},
			{Op: graph.AttentionBwd, Attr: s.call.Attr, Args: []device.Operand{dq, dkv, delta, do, q, kv, o, lse, {}}},
		}, s.image)
		for i, out := range []device.Operand{lse, dq, dkv, o} {
			x := tensor(have, out)
			for r := range x.Rows {
				for col := range x.Cols {
					if v := x.At(r, col); math.IsNaN(v) || math.IsInf(v, 0) || i == 3 && math.Abs(v-1) > 1.0/64 {
						t.Fatalf("%+v: result %d has %v in row %d, column %d", c, i, v, r, col)
					}
				}
			}
		}
	}
}

// edited runs the sample's call on a fake whose kernels were changed.
func (s *sample) edited(t *testing.T, lib *Libraries, want []byte) error {
	t.Helper()
	d, err := New(lib, Options{DiskPath: filepath.Join(t.TempDir(), "disk"), Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close() // which says once more that a kernel failed
	if err := d.Reserve(device.DeviceTier, imageBytes); err != nil {
		t.Fatal(err)
	}
	s.poison()
	if err := d.Write(device.DeviceTier, 0, s.image); err != nil {
		t.Fatal(err)
	}
	first, err := d.Prepare([]device.Call{s.call}, nil)
	if err != nil {
		return err
	}
	d.Launch(first)
	if err := d.Sync(); err != nil {
		return err
	}
	out := bytes.Clone(s.image)
	if err := d.Read(device.DeviceTier, 0, out); err != nil {
		return err
	}
	return s.check(out, bytes.Clone(want))
}

// TestEveryHead: attention in bf16 with each head size that has kernels of its own, in sequences of
// several tiles, which TestOperators seldom draws. On the fake, which takes minutes for all, the widest.
func TestEveryHead(t *testing.T) {
	heads, seeds := []int{16, 32, 48, 64, 96, 128, 144, 160, 192, 224, 256, 512}, uint64(6)
	if !onGPU() {
		testkit.Needs(t, testkit.All)
		heads, seeds = heads[len(heads)-1:], 1
	}
	for _, head := range heads {
		t.Run(fmt.Sprint(head), func(t *testing.T) {
			t.Parallel()
			cores := kernel.NewEnv(1)
			defer cores.Close()
			d, _ := machine(t, Options{}, imageBytes)
			first := fresh(t)
			for _, op := range []graph.Op{graph.Attention, graph.AttentionBwd} {
				for seed := first; seed < first+seeds; seed++ {
					s := &sample{Rand: rand.New(rand.NewPCG(seed, uint64(head))), image: make([]byte, imageBytes), wide: true, acc: seed%2 == 0, tol: 2e-5, float: graph.BF16, head: head}
					for i := range s.image {
						s.image[i] = 0xff
					}
					s.call.Op = op
					samples[op](s)
					s.poison()
					got := execute(t, d, s.call, s.image)
					if !bytes.Equal(got, execute(t, d, s.call, s.image)) {
						t.Errorf("seed %d: %v: two runs differ", seed, s)
					}
					if err := errors.Join(s.twice(cores, got), s.check(got, s.reference())); err != nil {
						t.Errorf("seed %d: %v: %v", seed, s, err)
					}
				}
			}
		})
	}
}
