package folder

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// again is the oracle of generation: the whole text through the model for
// every token.
func again(t *testing.T, s *session.Session, ids []int32) []float64 {
	t.Helper()
	seq, vocab := s.Graph.Seq, s.Graph.Model.Vocab
	tokens, logits := make([]int32, seq), make([]float64, seq*vocab)
	copy(tokens, ids)
	_, err := s.Step(context.Background(), 0, session.Batch{Tokens: tokens, Targets: make([]int32, seq)}, session.Scalars{Targets: seq})
	check(t, err)
	check(t, s.Engine(0).ReadBuffer("logits", logits))
	return logits[(len(ids)-1)*vocab : len(ids)*vocab]
}

// TestGenerator: with prompts shorter and longer than a piece, greedy tokens and
// logits computed one token at a time are those of the whole text at once, up to the
// end of the context and beyond windows.
func TestGenerator(t *testing.T) {
	ctx := context.Background()
	folders, err := filepath.Glob("../testdata/torch/*/config.json")
	check(t, err)
	adapters, err := filepath.Glob("../testdata/torch/*/lora/adapter_config.json")
	check(t, err)
	for _, config := range testkit.Sample(append(folders, adapters...), 1, 8) {
		dir := filepath.Dir(config)
		t.Run(strings.TrimPrefix(dir, "../testdata/torch/"), func(t *testing.T) {
			f, err := Open(dir)
			check(t, err)
			defer f.Close()
			length := min(2*64+20, f.Model.MaxPositions)
			s, err := f.Session(ctx, length, 1, lower.Logits)
			check(t, err)
			defer s.Devices[0].Close()
			defer s.Close()
			g, err := f.Generator(ctx, unbounded(cpu.New(cpu.Options{})), length, graph.F32)
			check(t, err)
			defer func() { check(t, g.Close()) }()
			for _, prompt := range []int{1, 5, length - 30} {
				r := rand.New(rand.NewPCG(uint64(prompt), 5))
				ids := make([]int32, prompt)
				for i := range ids {
					ids[i] = int32(r.IntN(f.Model.Vocab))
				}
				g.Reset()
				check(t, g.Extend(ctx, ids...))
				for {
					want, got := again(t, s, ids), g.Logits()
					for i := range want {
						if !(math.Abs(got[i]-want[i]) <= 1e-4) {
							t.Fatalf("prompt %d, %d tokens: logit %d is %v, at once %v", prompt, len(ids), i, got[i], want[i])
						}
					}
					next := pick(got, 0, nil)
					if old := pick(want, 0, nil); old != next {
						t.Fatalf("prompt %d, %d tokens: token %d, at once %d", prompt, len(ids), next, old)
					}
					if g.Room() == 0 {
						break
					}
					ids = append(ids, next)
					check(t, g.Extend(ctx, next))
				}
				if len(ids) != length {
					t.Errorf("%d tokens in a context of %d", len(ids), length)
				}
				if err := g.Extend(ctx, 0); err == nil || !strings.Contains(err.Error(), "hint: ") {
					t.Errorf("beyond the context: %v", err)
				}
			}
		})
	}
}

// TestExtend: how tokens are divided over calls does not change a bit of the logits.
func TestExtend(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
		for _, dir := range []string{"llama3-rope", "qwen35-tiny"} {
			t.Run(dir+" "+dtype.String(), func(t *testing.T) { extendAnyhow(t, dir, dtype) })
		}
	}
}

func extendAnyhow(t *testing.T, dir string, dtype graph.DType) {
	t.Helper()
	ctx := context.Background()
	f, err := Open("../testdata/torch/" + dir)
	check(t, err)
	defer f.Close()
	g, err := f.Generator(ctx, unbounded(cpu.New(cpu.Options{})), 200, dtype)
	check(t, err)
	defer g.Close()
	ids := make([]int32, 200)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range ids {
		ids[i] = int32(r.IntN(f.Model.Vocab))
	}
	check(t, g.Extend(ctx, ids...))
	want := slices.Clone(g.Logits())
	for _, most := range []int{1, 3, 150} {
		g.Reset()
		for at := 0; at < len(ids); {
			n := min(1+r.IntN(most), len(ids)-at)
			check(t, g.Extend(ctx, ids[at:at+n]...))
			at += n
		}
		if !slices.Equal(g.Logits(), want) {
			t.Errorf("at most %d at once: other logits", most)
		}
	}
	g.Reset()
	for _, bad := range []int32{-1, int32(f.Model.Vocab)} {
		if err := g.Extend(ctx, bad); err == nil {
			t.Errorf("token %d is accepted", bad)
		}
	}
}

// TestHalved: in bf16 the logits are those of fp32 up to rounding errors, each of at most 2^-9 of what is rounded,
// over a few dozen operators.
func TestHalved(t *testing.T) {
	ctx := context.Background()
	folders, err := filepath.Glob("../testdata/torch/*/config.json")
	check(t, err)
	for _, config := range testkit.Sample(folders, 1, 8) {
		dir := filepath.Dir(config)
		f, err := Open(dir)
		check(t, err)
		defer f.Close()
		length := min(64+20, f.Model.MaxPositions)
		r := rand.New(rand.NewPCG(9, 5))
		ids := make([]int32, length)
		for i := range ids {
			ids[i] = int32(r.IntN(f.Model.Vocab))
		}
		var logits [2][]float64
		for i, dtype := range []graph.DType{graph.F32, graph.BF16} {
			g, err := f.Generator(ctx, unbounded(cpu.New(cpu.Options{})), length, dtype)
			check(t, err)
			check(t, g.Extend(ctx, ids[:length-5]...))
			for _, id := range ids[length-5:] {
				check(t, g.Extend(ctx, id))
				logits[i] = append(logits[i], g.Logits()...)
			}
			check(t, g.Close())
		}
		var wrong, all float64
		for i, want := range logits[0] {
			wrong += (logits[1][i] - want) * (logits[1][i] - want)
			all += want * want
		}
		most := 0.03
		if f.Model.Experts > 0 { // rounding sends a token to other experts
			most = 0.25
		}
		if e := math.Sqrt(wrong / all); !(e <= most) {
			t.Errorf("%s: the error is %.3f of the logits", dir, e)
		}
		if slices.Equal(logits[0], logits[1]) {
			t.Errorf("%s: nothing was rounded", dir)
		}
	}
}

// TestKeep: continuing from what two sequences have in common gives, bit for bit, the logits of a generator
// that has read nothing before.
func TestKeep(t *testing.T) {
	ctx := context.Background()
	for _, dir := range testkit.Sample([]string{"llama-tiny", "mistral-tiny", "gpt2-tiny", "qwen35-tiny", "lfm2-tiny", "granite-h-tiny", "falcon-h1-tiny"}, 1, 4) {
		f, err := Open("../testdata/torch/" + dir)
		check(t, err)
		defer f.Close()
		length := min(64+40, f.Model.MaxPositions)
		var g [2]*Generator
		for i := range g {
			g[i], err = f.Generator(ctx, unbounded(cpu.New(cpu.Options{})), length, graph.F32)
			check(t, err)
			defer func() { check(t, g[i].Close()) }()
		}
		r := rand.New(rand.NewPCG(7, 5))
		var before []int32
		for n := range 12 {
			ids := slices.Clone(before[:min(r.IntN(len(before)+1), length-1)])
			common := len(ids)
			for range 1 + r.IntN(length-len(ids)) {
				ids = append(ids, int32(r.IntN(f.Model.Vocab)))
			}
			if n == 5 { // the same again
				ids, common = before, len(before)-1
			}
			known := g[0].Keep(ids)
			if none := model.Remembers(f.Model) && known == 0; known < min(common, len(ids)-1) && !none || known >= len(ids) {
				t.Fatalf("%s: %d of %d tokens are kept, %d are common", dir, known, len(ids), common)
			}
			check(t, g[0].Extend(ctx, ids[known:]...))
			g[1].Reset()
			check(t, g[1].Extend(ctx, ids...))
			if !slices.Equal(g[0].Logits(), g[1].Logits()) {
				t.Errorf("%s: other logits after %d of %d tokens were kept", dir, known, len(ids))
			}
			before = ids
		}
	}
}

// unbounded is a device whose memory is taken to be without limit.
func unbounded(d device.Device) *machine.Alone {
	return &machine.Alone{Device: d, Capacity: program.NoLimits}
}
