package folder

import (
	"cmp"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// t4Balance is the FLOP/s of a T4 over the bytes/s of its link, by FlexGen's constants (2303.06865): 21.24 TFLOP/s and 12.89 GiB/s. A link of
// the cores is throttled to the same ratio.
const t4Balance = 21.24e12 / (12.89 * (1 << 30))

// BenchmarkBlock generates with a Llama with random weights that are four times the device's memory, behind a link as slow for these cores as a
// T4's is for it: one sequence at a time, as generate without --prompts does, and in the block that is predicted to be fastest, in turn. "times" is how many
// times as many tokens per second the block has, and "predicted" its predicted seconds over those measured.
func BenchmarkBlock(b *testing.B) {
	m := benchLlama(b)
	const prompt, tokens, context, most = 64, 16, 96, 128
	g, err := graph.BuildDecode(m, context, 1, graph.F32)
	check(b, err)
	var weights int64
	for i := range g.Params {
		weights += g.Stored(i).Bytes()
	}
	find := func(link config.Rate) *machine.Machine {
		r := &machine.Request{Device: "cpu", Ranks: 1, Hardware: config.Hardware{H2D: link, D2H: link}, Spill: b.TempDir(),
			Limits: config.Limits{Device: config.Bytes(weights / 4), Host: config.Unlimited, Disk: config.Unlimited, DiskEndurance: config.Unlimited}}
		found, err := machine.Find(r, func(string) {})
		check(b, err)
		return found
	}
	link := config.Rate(find(0).Peak(g) / t4Balance)
	throttled := find(link)
	began := time.Now()
	found, err := planner.Block(b.Context(), throttled, &search.BlockRequest{Model: m, DType: graph.F32, Context: context, Sequences: most,
		Reads: UsefulBlocks(context), Prompt: prompt, Tokens: tokens}, false)
	check(b, err)
	b.Logf("link %.0f MB/s, weights %.1f MB, device %.1f MB; %d batches of %d, reads %v, %+v; planned in %v", float64(link)/1e6, float64(weights)/1e6, float64(weights)/4e6, found.Batches, found.Each, found.Reads, found.Plan.Batches, time.Since(began))
	open := func() device.Device {
		list, err := throttled.Open(found.Programs[:1])
		check(b, err)
		return list[0]
	}
	r := rand.New(rand.NewPCG(1, 1))
	load := func(s *session.Session) {
		check(b, s.Load(func(_ model.Param, _ int, dst []float32) error {
			for i := range dst {
				dst[i] = (r.Float32() - 0.5) / 16
			}
			return nil
		}))
	}
	alone, err := newGenerator(b.Context(), m, &machine.Alone{Device: open(), Capacity: throttled.Capacity}, context, graph.F32)
	check(b, err)
	defer alone.Close()
	load(alone.session)
	block := &Block{BlockPlan: found, Vocab: m.Vocab}
	check(b, block.open(open()))
	defer block.Close()
	load(block.session)
	var times, predicted []float64
	for b.Loop() {
		one := timeOne(b, alone, prompt, tokens, r)
		all := timeBlock(b, block, prompt, tokens, r)
		times = append(times, one/(all/float64(block.Sequences())))
		predicted = append(predicted, found.Seconds()/all)
		b.Logf("one %.3f s, %d together %.3f s (%.2f tokens/s), predicted %.3f: steps %+v of %.4f, parts %+v of %.4f", one, block.Sequences(), all, float64(block.Sequences()*tokens)/all, found.Seconds(), block.Stepped, found.StepSeconds, block.Passed, found.PartSeconds)
	}
	b.ReportMetric(median(times), "times")
	b.ReportMetric(median(predicted), "predicted")
}

func median(list []float64) float64 {
	slices.SortFunc(list, cmp.Compare)
	return list[len(list)/2]
}

// benchLlama returns a Llama of 12 layers, or of the folder that BLOCK_MODEL names.
func benchLlama(b *testing.B) *model.Model {
	if name := os.Getenv("BLOCK_MODEL"); name != "" {
		m, err := family.Known(name)
		check(b, err)
		return m
	}
	m, err := family.Known("smollm2-135m")
	check(b, err)
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.Tied = 12, 512, 8, 4, 64, 1536, 2048, false
	return m
}

// timeOne reads a prompt and generates tokens.
func timeOne(b *testing.B, g *Generator, prompt, tokens int, r *rand.Rand) float64 {
	g.Reset()
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32(r.IntN(g.vocab))
	}
	start := time.Now()
	check(b, g.Extend(b.Context(), ids...))
	for range tokens - 1 {
		check(b, g.Extend(b.Context(), pick(g.Logits(), 0, nil)))
	}
	return time.Since(start).Seconds()
}

// timeBlock does the same for all sequences of a block.
func timeBlock(b *testing.B, block *Block, prompt, tokens int, r *rand.Rand) float64 {
	var reads []*Reading
	var list []Placed
	for slot := range block.Sequences() {
		ids := make([]int32, prompt)
		for i := range ids {
			ids[i] = int32(r.IntN(block.Vocab))
		}
		reads = append(reads, &Reading{Slot: slot, Prompt: ids})
		list = append(list, Placed{ids[prompt-1], slot, prompt - 1})
	}
	block.Stepped, block.Passed = Timed{}, Timed{}
	start := time.Now()
	check(b, block.ReadPrompts(b.Context(), reads))
	for range tokens {
		check(b, block.Step(b.Context(), list))
		for i := range list {
			list[i].Token = pick(block.Logits(i), 0, nil)
			list[i].Position++
		}
	}
	return time.Since(start).Seconds()
}
