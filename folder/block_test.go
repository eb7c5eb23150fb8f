package folder

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
)

// withDisk opens a CPU without limits that has a disk.
func withDisk(t *testing.T) *machine.Alone {
	return unbounded(cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk")}))
}

// drawBlock draws how many sequences are generated together, and a policy.
func drawBlock(t *testing.T, f *Folder, context int, dtype graph.DType, r *rand.Rand) *search.BlockPlan {
	t.Helper()
	b := search.Block{Context: context, Each: 1 + r.IntN(3), Batches: 1 + r.IntN(3), Reads: UsefulBlocks(context), DType: dtype}
	graphs, err := b.Graphs(f.Model)
	check(t, err)
	g := graphs[len(graphs)-1]
	pl := samples.RandomPlan(g, 1, r)
	pl.FeedRows = 0 // drawn for the rows of one graph, and no block has it
	samples.DrawBatches(pl, g, b.Batches, 1, r)
	pl.Cache = 2 * pl.CacheNeeded(g)
	programs, err := search.LowerBlock(t.Context(), graphs, pl, lower.Options{Capacity: program.NoLimits})
	check(t, err)
	return &search.BlockPlan{Block: b, Graphs: graphs, Plan: pl, Programs: programs}
}

// TestBlockPolicies: whatever the policy, sequences that are generated together, joining and leaving at random, have, bit for bit, the
// logits, and so the greedy tokens, that each has by itself; and the programs touch exactly the memory that they say.
func TestBlockPolicies(t *testing.T) {
	seed := testkit.Seed(t)
	folders, err := filepath.Glob("../testdata/torch/*/config.json")
	check(t, err)
	for i, config := range testkit.Sample(folders, 2, 4) {
		dir := filepath.Dir(config)
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
			t.Run(strings.TrimPrefix(dir, "../testdata/torch/")+" "+dtype.String(), func(t *testing.T) { blockPolicies(t, dir, dtype, r) })
		}
	}
}

// blockPolicies generates by random policies.
func blockPolicies(t *testing.T, dir string, dtype graph.DType, r *rand.Rand) {
	f, err := Open(dir)
	check(t, err)
	defer f.Close()
	if model.Remembers(f.Model) { // not built
		b := search.Block{Context: 8, Each: 2, Batches: 1, DType: dtype}
		if _, err := b.Graphs(f.Model); err == nil || !strings.Contains(err.Error(), "; hint: generate without a block") {
			t.Errorf("a block of a model with states: %v", err)
		}
		return
	}
	compressSome(t, f, r)
	length := min(80, f.Model.MaxPositions)
	g, err := f.Generator(t.Context(), unbounded(cpu.New(cpu.Options{})), length, dtype)
	check(t, err)
	defer func() { check(t, g.Close()) }()
	for range testkit.Count(1, 1, 3) { // of all folders, about 300
		generateBlock(t, f, g, drawBlock(t, f, length, dtype, r), r)
	}
}

// generateBlock generates by a policy what a Generator generates one by one.
func generateBlock(t *testing.T, f *Folder, g *Generator, plan *search.BlockPlan, r *rand.Rand) {
	t.Helper()
	d := withDisk(t)
	b, err := f.OpenBlock(t.Context(), d.Device, plan)
	check(t, err)
	defer func() { check(t, b.Close()) }()
	free := r.Perm(b.Sequences())
	var now []*running
	for joined, all := 0, testkit.Count(b.Sequences()+3, b.Sequences()+3, 64); joined < all || len(now) > 0; {
		var reads []*Reading
		for len(free) > 0 && joined < all && (len(now) == 0 || r.IntN(3) > 0) {
			q := &running{alone: continued(t, g, r), slot: free[0]}
			now, free, joined = append(now, q), free[1:], joined+1
			if r.IntN(4) > 0 { // else token by token
				reads = append(reads, &Reading{Slot: q.slot, Prompt: q.ids[:q.prompt]})
				q.at = q.prompt - 1
			}
		}
		check(t, b.ReadPrompts(t.Context(), reads))
		r.Shuffle(len(now), func(i, k int) { now[i], now[k] = now[k], now[i] })
		var list []Placed
		var of []*running
		for _, q := range now[:1+r.IntN(len(now))] {
			for n := 0; (n == 0 || r.IntN(2) == 0 && q.at < q.prompt) && b.Accepts(list, q.slot); n++ {
				list, of = append(list, Placed{q.ids[q.at], q.slot, q.at}), append(of, q)
				q.at++
			}
		}
		check(t, b.Step(t.Context(), list))
		for i, q := range of {
			after := list[i].Position + 1 - q.prompt
			if after < 0 {
				continue
			}
			if !slices.Equal(b.Logits(i), q.logits[after]) {
				t.Fatalf("%+v, batches %+v: a prompt of %d tokens, %d more, in slot %d: other logits than alone", plan.Block, plan.Plan.Batches, q.prompt, after, q.slot)
			}
			if after == len(q.logits)-1 {
				now, free = slices.DeleteFunc(now, func(o *running) bool { return o == q }), append(free, q.slot)
			}
		}
	}
	var want [device.NumTiers]int64
	for i := range b.Reads {
		check(t, b.read(t.Context(), i, nil)) // each at least once
	}
	for i := range len(b.Reads) + 1 {
		for t, h := range b.session.Program(i).Height {
			want[t] = max(want[t], h)
		}
	}
	if got := d.Device.(device.Meter).Stats().Peak; got != want {
		t.Errorf("%+v, batches %+v: the run touched %v bytes, the programs say %v", plan.Block, plan.Plan.Batches, got, want)
	}
}

// TestBlockBytes is law L3 for generation: a step of a block moves between tiers the bytes of a formula that knows nothing of programs. So
// the weights that are moved for each token are those that are streamed, divided by the sequences of the block.
//
//	host -> device  streamed weights, once, however many sequences there are; rows of the embedding that are looked up on the host; a hidden state per layer, and one for the head,
//	                for sequences whose hidden states are on the host; results of attention on the host; caches on the host or the disk that
//	                the device attends to; tokens and places
//	device -> host  the same hidden states and caches; queries, keys and values for attention on the host; logits
//	disk            caches that are there, both ways; weights that are there, in records of multiples of 1024 elements
func TestBlockBytes(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	f, err := Open("../testdata/torch/llama3-rope")
	check(t, err)
	defer f.Close()
	m := f.Model
	if m.Tied {
		t.Fatal("a tied embedding is read twice")
	}
	for range testkit.Count(2, 4, 30) {
		f.Model = m
		compressSome(t, f, r)
		row := map[int]int64{0: 4 * int64(m.HeadDim), 8: 4 + int64(m.HeadDim), 4: 4 + int64(m.HeadDim/2)}[f.Model.CacheBits]
		plan := drawBlock(t, f, 32, graph.F32, r)
		pl := plan.Plan
		d := withDisk(t)
		b, err := f.OpenBlock(t.Context(), d.Device, plan)
		check(t, err)
		meter := d.Device.(device.Meter)
		before := meter.Stats().Moved
		check(t, b.Step(t.Context(), []Placed{{Token: 1}}))
		moved := meter.Stats().Moved
		var want [device.NumTiers][device.NumTiers]int64
		up, down := &want[device.HostTier][device.DeviceTier], &want[device.DeviceTier][device.HostTier]
		var streamed int64
		tokens, rows := int64(4), int64(0)
		for _, c := range pl.Chunks {
			if c.Lookup != "" { // then only rows cross the link, and tokens do not
				tokens, rows = 0, 4*int64(m.Width)
				continue
			}
			var n int64
			for i := c.First; i < c.Last && c.Weights > device.DeviceTier; i++ {
				n += b.session.Graph.Params[i].Elems()
			}
			streamed += 4 * n
			if c.Weights == device.DiskTier { // records are padded
				want[device.DiskTier][device.HostTier] += 4 * ((n + 1023) / 1024 * 1024)
			}
		}
		all, each := int64(b.Sequences()), int64(b.Each)
		*up += streamed + all*(tokens+rows+8)
		*down += 4 * all * int64(m.Vocab)
		layers, heads, kv := int64(m.Layers), int64(m.Heads*m.HeadDim), int64(m.KVHeads*m.HeadDim)
		for _, q := range pl.Batches {
			if q.Hidden == device.HostTier {
				*up += (layers + 1) * 4 * each * int64(m.Width)
				*down += (layers + 1) * 4 * each * int64(m.Width)
			}
			caches := layers * 2 * int64(m.KVHeads) * row * each * int64(b.Context)
			switch {
			case q.Cache > device.DeviceTier && q.Attend == "":
				*up, *down = *up+caches, *down+caches
			case q.Attend != "":
				*up, *down = *up+layers*4*each*heads, *down+layers*4*each*(heads+2*kv)
			}
			if q.Cache == device.DiskTier {
				want[device.DiskTier][device.HostTier] += caches
				want[device.HostTier][device.DiskTier] += caches
			}
		}
		for from := range moved {
			for to := range moved[from] {
				if got := moved[from][to] - before[from][to]; got != want[from][to] {
					t.Errorf("%+v, batches %+v: %v to %v %d bytes, want %d", plan.Block, pl.Batches, device.Tier(from), device.Tier(to), got, want[from][to])
				}
			}
		}
		if got := b.Footprint().Streamed; got != streamed {
			t.Errorf("%+v: %d bytes of weights are streamed in a step, want %d", plan.Block, got, streamed)
		}
		check(t, b.Close())
	}
}

// TestLentBytes: caches that are read by several layers come to the device for each, and go back from the layer that adds to them alone.
func TestLentBytes(t *testing.T) {
	f, err := Open("../testdata/torch/gemma4-small-tiny")
	check(t, err)
	defer f.Close()
	if f.Model.Lent.Keys == 0 {
		t.Fatal("no layer borrows keys and values")
	}
	block := search.Block{Context: 32, Each: 2, Batches: 2, Reads: []int{16}, DType: graph.F32}
	graphs, err := block.Graphs(f.Model)
	check(t, err)
	pl := plan.InBatches(graphs[1], block.Batches, 1)
	pl.Group = block.Batches
	for i := range pl.Batches {
		pl.Batches[i].Cache = device.HostTier
	}
	programs, err := search.LowerBlock(t.Context(), graphs, pl, lower.Options{Capacity: program.NoLimits})
	check(t, err)
	d := withDisk(t)
	b, err := f.OpenBlock(t.Context(), d.Device, &search.BlockPlan{Block: block, Graphs: graphs, Plan: pl, Programs: programs})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	var caches int64
	for _, buf := range programs[1].Buffers {
		if buf.Persistent && buf.Tier == device.HostTier && strings.Contains(buf.Name, ".kv") {
			caches += buf.Size
		}
	}
	before := d.Device.(device.Meter).Stats().Moved
	check(t, b.Step(t.Context(), []Placed{{Token: 1}}))
	moved := d.Device.(device.Meter).Stats().Moved
	down := moved[device.DeviceTier][device.HostTier] - before[device.DeviceTier][device.HostTier]
	up := moved[device.HostTier][device.DeviceTier] - before[device.HostTier][device.DeviceTier]
	if want := caches + int64(4*b.Sequences()*f.Model.Vocab); caches == 0 || down != want || up <= caches {
		t.Errorf("%d bytes left the device, %d came, want %d and more than %d", down, up, want, caches)
	}
}
