package folder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// small opens a CPU that acts as a device with the given bytes of memory.
func small(bytes int64) *machine.Alone {
	d := unbounded(cpu.New(cpu.Options{}))
	d.Capacity[device.DeviceTier] = bytes
	return d
}

// TestSmallDevice: neither the device's memory nor how the tokens are handed over changes a bit of the logits,
// and what the generator takes is within the memory. The prompt is long enough for all sizes of blocks.
func TestSmallDevice(t *testing.T) {
	ctx := context.Background()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, dir := range testkit.Sample([]string{"llama-tiny", "gemma3-tiny", "gemma2-tiny", "glm4-moe-tiny", "minimax-m2-tiny", "ernie-moe-tiny", "mixtral-tiny", "gpt2-tiny", "qwen3-tiny/lora"}, 1, 2) {
		for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
			t.Run(fmt.Sprint(dir, dtype), func(t *testing.T) {
				f, err := Open("../testdata/torch/" + dir)
				check(t, err)
				defer f.Close()
				m := *f.Model
				if m.Rotary() {
					m.MaxPositions = blockRows[0] + 130
				}
				f.Model = &m
				ids := make([]int32, m.MaxPositions)
				for i := range ids {
					ids[i] = int32(r.IntN(m.Vocab))
				}
				logits := func(d *machine.Alone, pieces int) (last []float64, took Footprint) {
					g, err := f.Generator(ctx, d, len(ids), dtype)
					check(t, err)
					defer func() { check(t, g.Close()) }()
					cuts := []int{0, len(ids)}
					for range pieces {
						cuts = append(cuts, r.IntN(len(ids)))
					}
					slices.Sort(cuts)
					for i := range cuts[1:] {
						if cuts[i] < cuts[i+1] {
							check(t, g.Extend(ctx, ids[cuts[i]:cuts[i+1]]...))
						}
					}
					return slices.Clone(g.Logits()), g.Footprint()
				}
				want, all := logits(unbounded(cpu.New(cpu.Options{})), 0)
				if all.Streamed != 0 {
					t.Errorf("with memory without limit, %d bytes are streamed", all.Streamed)
				}
				least := frugal(t, func(d *machine.Alone) error {
					g, err := f.Generator(ctx, d, len(ids), dtype)
					if err == nil {
						err = g.Close()
					}
					return err
				})
				for _, bytes := range []int64{all.Device, least, least + r.Int64N(all.Device-least)} {
					got, took := logits(small(bytes), r.IntN(5))
					if !slices.Equal(got, want) {
						t.Errorf("with %d bytes: other logits", bytes)
					}
					if took.Device > bytes || bytes == all.Device && took != all {
						t.Errorf("with %d bytes: %+v, without limit %+v", bytes, took, all)
					}
				}
			})
		}
	}
}

// frugal returns the least memory with which open works: what the error names where there is none. With a byte
// less, it fails in the same way.
func frugal(t *testing.T, open func(*machine.Alone) error) int64 {
	t.Helper()
	var misfit *search.Misfit
	if err := open(small(1)); !errors.As(err, &misfit) || misfit.Tier != device.DeviceTier {
		t.Fatalf("with a byte of memory: %v", err)
	}
	least := misfit.Need
	check(t, open(small(least)))
	if err := open(small(least - 1)); !errors.As(err, &misfit) || misfit.Need != least || misfit.Have != least-1 {
		t.Fatalf("with %d bytes, one too few: %v", least-1, err)
	}
	return least
}

// TestSmallEvaluation: losses, logits and gradients are the same, bit for bit, whatever memory the device has.
func TestSmallEvaluation(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	ctx := context.Background()
	for _, dir := range testkit.Sample([]string{"llama-tiny", "mixtral-tiny", "gpt2-tiny", "qwen3-tiny/lora"}, 1, 2) {
		for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
			f, err := Open("../testdata/torch/" + dir)
			check(t, err)
			defer f.Close()
			g, err := graph.Build(f.Model, 16, dtype)
			check(t, err)
			const sequences = 8
			for _, mode := range []lower.Mode{lower.Eval, lower.Logits, lower.Grads} {
				try := func(d *machine.Alone) error {
					defer d.Close()
					s, err := openAlone(ctx, d, g, sequences, mode)
					if err == nil {
						s.Close()
					}
					return err
				}
				run := func(d *machine.Alone) (out []float64, took Footprint) {
					defer d.Close()
					s, err := openAlone(ctx, d, g, sequences, mode)
					check(t, err)
					defer s.Close()
					check(t, f.load(s))
					r := rand.New(rand.NewPCG(3, 4))
					tokens, targets := make([]int32, sequences*g.Seq), make([]int32, sequences*g.Seq)
					for i := range tokens {
						tokens[i], targets[i] = int32(r.IntN(f.Model.Vocab)), int32(r.IntN(f.Model.Vocab))
					}
					o, err := s.Step(ctx, 0, session.Batch{Tokens: tokens, Targets: targets}, session.Scalars{Targets: len(targets)})
					check(t, err)
					out = []float64{o.Loss}
					if mode == lower.Logits {
						out = make([]float64, len(tokens)*f.Model.Vocab)
						check(t, s.Engine(0).ReadBuffer("logits", out))
					}
					for i, p := range g.Params {
						if mode != lower.Grads || p.Frozen {
							continue
						}
						grad := make([]float32, p.Elems())
						check(t, s.Read(i, optimizer.Gradient, grad))
						for _, v := range grad {
							out = append(out, float64(v))
						}
					}
					return out, footprint(s, 1)
				}
				want, all := run(unbounded(cpu.New(cpu.Options{})))
				least := frugal(t, try)
				if least >= all.Device {
					t.Errorf("%s %v, mode %d: %d bytes at least, %d without limit", dir, dtype, mode, least, all.Device)
				}
				for _, bytes := range []int64{all.Device - 1, (least + all.Device) / 2, least} {
					got, took := run(small(bytes))
					if took.Device > bytes {
						t.Errorf("%s %v, mode %d: it takes %d of %d bytes", dir, dtype, mode, took.Device, bytes)
					}
					if !slices.Equal(got, want) {
						t.Errorf("%s %v, mode %d, %d bytes: other results", dir, dtype, mode, bytes)
					}
				}
			}
		}
	}
}

// TestNext: a prompt is read in blocks that cover it, the last of which ends where it does, and no other blocks would take less time. Tokens are read twice by
// the last one alone, and never where states cannot go back.
func TestNext(t *testing.T) {
	for _, once := range []bool{false, true} {
		g := &Generator{blocks: slices.Clone(blockRows[:]), once: once}
		for _, c := range []struct {
			at, end int
			want    [2][]int // tokens of each program: if they may be read twice, and if not
		}{
			{0, 1, [2][]int{{1}, {1}}},
			{0, 2, [2][]int{{2}, {2}}},
			{0, 3, [2][]int{{2, 1}, {2, 1}}},
			{0, 16, [2][]int{{16}, {16}}},
			{0, 58, [2][]int{{32, 32}, {32, 16, 8, 2}}},
			{0, 172, [2][]int{{128, 64}, {128, 32, 8, 4}}},
			{0, 512, [2][]int{{512}, {512}}},
			{0, 3273, [2][]int{{512, 512, 512, 512, 512, 512, 128, 64, 16}, {512, 512, 512, 512, 512, 512, 128, 64, 8, 1}}},
			{300, 301, [2][]int{{1}, {1}}},
			{300, 358, [2][]int{{64}, {32, 16, 8, 2}}},
		} {
			var got []int
			for at := c.at; at < c.end && len(got) < 20; {
				i, first := g.nextBlock(at, c.end)
				n := tokensOf(g.blocks, i)
				if first > at || first < 0 || first < at && (once || first+n != c.end) {
					t.Fatalf("from %d to %d: %d tokens from %d on", c.at, c.end, n, first)
				}
				got, at = append(got, n), first+n
			}
			if want := c.want[map[bool]int{true: 1}[once]]; !slices.Equal(got, want) {
				t.Errorf("from %d to %d, once %v: %v, want %v", c.at, c.end, once, got, want)
			}
		}
	}
}

// TestFootprint: with the least memory all weights but those of which only rows are looked up are streamed, frozen ones and those in 4 bits too, and large blocks are
// left out where the memory that they take is all that is lacking.
func TestFootprint(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	ctx := context.Background()
	for _, dir := range testkit.Sample([]string{"llama-tiny", "llama-tiny/lora", "mixtral-tiny"}, 1, 2) {
		for _, quantize := range []bool{false, true} {
			f, err := Open("../testdata/torch/" + dir)
			check(t, err)
			defer f.Close()
			m := *f.Model
			m.MaxPositions = 600
			if f.Model = &m; quantize {
				check(t, f.Quantize())
			}
			open := func(d *machine.Alone) *Generator {
				g, err := f.Generator(ctx, d, 600, graph.BF16)
				check(t, err)
				return g
			}
			least := frugal(t, func(d *machine.Alone) error {
				g, err := f.Generator(ctx, d, 600, graph.BF16)
				if err == nil {
					err = g.Close()
				}
				return err
			})
			small, large := open(small(least)), open(unbounded(cpu.New(cpu.Options{})))
			var all, tables int64
			for i := range small.session.Graph.Params {
				bytes := small.session.Graph.Stored(i).Bytes()
				if all += bytes; small.session.Graph.Table(i) {
					tables += bytes
				}
			}
			took, p := small.Footprint(), small.session.Program(len(small.blocks))
			if took.Streamed < all-tables || took.Host < all || took.Host < p.Height[device.HostTier] || took.Device > least {
				t.Errorf("%s, quantized %v: %+v, the weights are %d bytes", dir, quantize, took, all)
			}
			if small.blocks[0] != leastRows/8 || large.blocks[0] != blockRows[0] {
				t.Errorf("%s: blocks of %v in the least memory, %v without limit", dir, small.blocks, large.blocks)
			}
			check(t, small.Close())
			check(t, large.Close())
		}
	}
}
