//go:build linux

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/verify"
)

// trainRanks runs a plan for some steps on joined devices, which it closes.
func (f *fixture) trainRanks(t *testing.T, g *graph.Graph, devices []device.Device, pl *plan.Plan, steps int) (tr trace, networks []device.Stats) {
	t.Helper()
	s, ps := f.openRanks(t, g, devices, pl)
	defer s.Close()
	for n := 1; n <= steps; n++ {
		out, err := f.step(s, n)
		check(t, err)
		tr.losses, tr.norms = append(tr.losses, out.Loss), append(tr.norms, out.Norm)
	}
	for i, q := range g.Params {
		for _, kind := range optimizer.AdamW.Rule().State() {
			buf := make([]float32, q.Elems())
			check(t, s.Read(i, kind, buf))
			tr.state = append(tr.state, buf)
		}
	}
	for r, d := range devices {
		st := d.(device.Meter).Stats()
		if st.Peak != ps[r].Height {
			t.Errorf("rank %d touched up to %v, the plan said %v", r, st.Peak, ps[r].Height)
		}
		networks = append(networks, device.Stats{Network: st.Network, Moved: st.Moved})
	}
	return tr, networks
}

func (f *fixture) openRanks(t *testing.T, g *graph.Graph, devices []device.Device, pl *plan.Plan) (*session.Session, []*program.Program) {
	t.Helper()
	var ps []*program.Program
	for r := range devices {
		p, err := lower.Lower(context.Background(), g, pl, lower.Options{Rank: r, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits})
		check(t, err)
		ps = append(ps, p)
	}
	check(t, verify.Verify(ps...))
	s, err := session.Open(g, devices, ps)
	check(t, err)
	check(t, s.Load(f.read))
	return s, ps
}

func (f *fixture) step(s *session.Session, n int) (session.Outcome, error) {
	return s.Step(context.Background(), 0, f.batch(s.Graph), session.Scalars{Rate: 1e-3, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: len(f.targets)})
}

// cpuRanks are the same ranks on the CPU.
func cpuRanks(t *testing.T, n int) (list []device.Device) {
	fabric := cpu.NewFabric(n)
	for r := range n {
		d := cpu.New(cpu.Options{Workers: 1, Fabric: fabric, Rank: r, DiskPath: filepath.Join(t.TempDir(), "disk")})
		t.Cleanup(func() { d.Close() })
		list = append(list, d)
	}
	return list
}

// TestRanksChangeNothing is L1 to L3 over GPUs: pipelines give the bits of one GPU, replicas with
// anything divided give its numbers up to the order of sums, and bytes and peaks are those of the CPU's
// ranks.
func TestRanksChangeNothing(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, "gpt2-untied")
	g := f.graph(t, graph.F32)
	rows := len(f.tokens) / f.seq
	_, plain := f.train(t, g, gpu(t, f), plan.Plain(g, rows), 2)
	plans := map[string]func(pl *plan.Plan){
		"1f1b": func(pl *plan.Plan) {
			pl.Pipeline = &plan.Pipeline{Schedule: "1f1b", Ranks: 2, Slices: 1, Stages: []int{0, len(g.Segments) / 2}}
		},
		"seq1f1b": func(pl *plan.Plan) {
			pl.Pipeline = &plan.Pipeline{Schedule: "seq1f1b", Ranks: 2, Slices: 2, Stages: []int{0, len(g.Segments) / 2}}
		},
	}
	for _, shard := range []string{"", "weights"} {
		plans["replicas, "+shard+" divided"] = func(pl *plan.Plan) {
			pl.MicroBatches = rows / 2
			for i := range pl.Chunks {
				pl.Chunks[i].Shard = shard
			}
		}
	}
	for _, name := range cuda.CasesOf(slices.Sorted(maps.Keys(plans)), 2) {
		edit := plans[name]
		t.Run(name, func(t *testing.T) {
			pl := plan.Plain(g, 1)
			pl.Ranks, pl.MicroBatches = 2, rows
			edit(pl)
			pl.Cache = pl.CacheNeeded(g)
			got, bytes := f.trainRanks(t, g, cuda.Ranks(t, 2, cuda.Options{SumRows: f.seq}), pl, 2)
			_, want := f.trainRanks(t, g, cpuRanks(t, 2), pl, 2)
			if fmt.Sprint(bytes) != fmt.Sprint(want) {
				t.Errorf("moved %v, the CPU's ranks %v", bytes, want)
			}
			if name == "1f1b" {
				if !slices.Equal(got.losses, plain.losses) || !slices.Equal(got.norms, plain.norms) {
					t.Errorf("losses %v norms %v, on one GPU %v %v", got.losses, got.norms, plain.losses, plain.norms)
				}
				for i := range got.state {
					if !slices.Equal(got.state[i], plain.state[i]) {
						t.Errorf("state %d differs", i)
					}
				}
				return
			}
			for i := range plain.losses {
				if math.Abs(got.losses[i]/plain.losses[i]-1) > 1e-5 || math.Abs(got.norms[i]/plain.norms[i]-1) > 1e-5 {
					t.Errorf("step %d: loss %v norm %v, on one GPU %v %v", i, got.losses[i], got.norms[i], plain.losses[i], plain.norms[i])
				}
			}
		})
	}
}

// TestSharedSequences: GPUs that share sequences, also in a pipeline, give the numbers of one GPU, up to the order of sums, and move what the
// CPU's ranks move.
func TestSharedSequences(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, c := range cuda.CasesOf([]struct {
		model string
		float graph.DType
		tol   float64
	}{{"llama3-rope", graph.BF16, 2e-2}, {"llama-tiny", graph.BF16, 2e-2}, {"gpt2-untied", graph.F32, 1e-5}, {"mistral-tiny", graph.F32, 1e-5}, {"gemma2-tiny", graph.F32, 1e-5}}, 2) {
		t.Run(fmt.Sprint(c.model, " ", c.float), func(t *testing.T) {
			f := load(t, c.model)
			rows := len(f.tokens) / f.seq
			g := f.graph(t, c.float)
			_, plain := f.train(t, g, gpu(t, f), plan.Plain(g, rows), 2)
			part, err := graph.BuildPart(f.model, f.seq, 2, c.float, nil)
			check(t, err)
			pl := plan.Plain(part, rows)
			f.sameAsOne(t, part, pl, plain, c.tol)
			pl.KVParts, pl.KVEager, pl.FeedRows = min(2, f.model.KVHeads), true, 2*part.Seq
			f.sameAsOne(t, part, pl, plain, c.tol)
			pl.Exchange, pl.KVParts = plan.ExchangeHeads, max(1, f.model.KVHeads/2) // of a single key head both ranks get a copy
			f.sameAsOne(t, part, pl, plain, c.tol)
			if c.float != graph.F32 { // micro-batches of these few tokens would round sums elsewhere
				return
			}
			pl = plan.Plain(part, 1)
			pl.MicroBatches, pl.Ranks, pl.Exchange = rows, 4, plan.ExchangeHeads
			pl.Pipeline = &plan.Pipeline{Schedule: "1f1b", Ranks: 2, Slices: 1, Stages: []int{0, len(part.Segments) / 2}}
			f.sameAsOne(t, part, pl, plain, c.tol)
		})
	}
}

// TestSharedMatrices: so do GPUs that share matrices, also in a pipeline, with fewer key/value heads than ranks, and with experts.
func TestSharedMatrices(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, c := range cuda.CasesOf([]struct {
		model    string
		float    graph.DType
		tol      float64
		n, depth int
	}{{"gpt2-untied", graph.BF16, 2e-2, 2, 1}, {"gpt2-untied", graph.F32, 1e-5, 2, 2}, {"llama-tiny", graph.F32, 1e-5, 2, 1}, {"neox-tiny", graph.F32, 1e-5, 2, 1}, {"gpt2-untied", graph.F32, 1e-5, 4, 1}, {"qwen3-tiny", graph.BF16, 2e-2, 2, 2},
		{"qwen3-tiny", graph.F32, 1e-5, 4, 1}, {"gpt-oss-tiny", graph.F32, 1e-5, 4, 1}, {"mixtral-tiny", graph.F32, 1e-5, 2, 1}}, 2) {
		t.Run(fmt.Sprint(c.model, " ", c.float, " ", c.n), func(t *testing.T) {
			f := load(t, c.model)
			f.model.Vocab-- // ranks share the head's matrix then: vocabularies are primes
			for i := range f.tokens {
				f.tokens[i], f.targets[i] = f.tokens[i]%int32(f.model.Vocab), f.targets[i]%int32(f.model.Vocab)
			}
			rows := len(f.tokens) / f.seq
			g := f.graph(t, c.float)
			_, plain := f.train(t, g, gpu(t, f), plan.Plain(g, rows), 2)
			parts := 1
			if c.depth == 1 && c.n == 2 && graph.CheckParts(f.model, f.seq, 2, nil) == nil { // which share sequences, too
				parts = 2
			}
			part, err := graph.BuildDivided(f.model, f.seq, parts, c.n, c.float, nil)
			check(t, err)
			pl := plan.Plain(part, rows)
			if c.depth > 1 {
				pl = plan.Plain(part, 1)
				pl.MicroBatches, pl.Ranks = rows, c.n*c.depth
				pl.Pipeline = &plan.Pipeline{Schedule: "1f1b", Ranks: c.depth, Slices: 1, Stages: []int{0, len(part.Segments) / 2}}
			}
			f.sameAsOne(t, part, pl, plain, c.tol)
		})
	}
}

// sameAsOne compares ranks with the graph of each with one GPU, and with the CPU's ranks.
func (f *fixture) sameAsOne(t *testing.T, part *graph.Graph, pl *plan.Plan, plain trace, tol float64) {
	t.Helper()
	got, bytes := f.trainRanks(t, part, cuda.Ranks(t, pl.Ranks, cuda.Options{}), pl, 2)
	_, want := f.trainRanks(t, part, cpuRanks(t, pl.Ranks), pl, 2)
	if fmt.Sprint(bytes) != fmt.Sprint(want) {
		t.Errorf("moved %v, the CPU's ranks %v", bytes, want)
	}
	for i := range got.losses {
		if math.Abs(got.losses[i]/plain.losses[i]-1) > tol || math.Abs(got.norms[i]/plain.norms[i]-1) > tol {
			t.Errorf("step %d: loss %v norm %v, on one GPU %v %v", i, got.losses[i], got.norms[i], plain.losses[i], plain.norms[i])
		}
	}
}

// TestHostsChangeNothing: ranks on two hosts train to the same bits as in one process, and receive as many bytes, whether these
// go through the hosts' memory or over NCCL, which finds no fault.
func TestHostsChangeNothing(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, "gpt2-untied")
	g := f.graph(t, graph.F32)
	rows := len(f.tokens) / f.seq
	pipeline := &plan.Pipeline{Schedule: "1f1b", Ranks: 2, Slices: 1, Stages: []int{0, len(g.Segments) / 2}}
	for _, c := range cuda.CasesOf([]struct {
		name     string
		hosts    []int
		pipeline *plan.Pipeline
		shard    string
	}{
		{"pipeline", []int{0, 1}, pipeline, ""},
		{"replicas", []int{0, 1}, nil, ""},
		{"weights divided", []int{0, 1, 0, 1}, nil, "weights"},
		{"pipelines, grads", []int{0, 1, 0, 1}, pipeline, "grads"},
		{"pipelines apart", []int{0, 0, 1, 1}, pipeline, ""},
	}, 2) {
		t.Run(c.name, func(t *testing.T) {
			pl := plan.Plain(g, 1)
			pl.Ranks, pl.Pipeline, pl.MicroBatches = len(c.hosts), c.pipeline, rows
			if c.pipeline == nil {
				pl.MicroBatches /= pl.Ranks
			} else {
				pl.MicroBatches /= pl.Ranks / 2
			}
			for i := range pl.Chunks {
				pl.Chunks[i].Shard = c.shard
			}
			pl.Cache = pl.CacheNeeded(g)
			want, bytes := f.trainRanks(t, g, cuda.Ranks(t, pl.Ranks, cuda.Options{}), pl, 2)
			same := func(over string, devices []device.Device) {
				got, moved := f.trainRanks(t, g, devices, pl, 2)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("over %s: losses %v norms %v, in one process %v %v, or other parameters", over, got.losses, got.norms, want.losses, want.norms)
				}
				if fmt.Sprint(moved) != fmt.Sprint(bytes) {
					t.Errorf("over %s: moved %v, in one process %v", over, moved, bytes)
				}
			}
			same("connections", cuda.RanksOn(t, c.hosts, cuda.Options{}))
			if cuda.OnGPU() {
				return // which the ranks would share
			}
			wired, moves := cuda.WiredRanks(t, c.hosts)
			if same("NCCL", wired); moves() == 0 {
				t.Error("NCCL has moved nothing")
			}
		})
	}
}

// TestRanksAhead: steps with far more calls than a worker may be ahead finish on every rank, whatever
// divides the state, and in every schedule: no rank waits for a launch by another rank's worker that is
// waiting too.
func TestRanksAhead(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	if cuda.OnGPU() {
		t.Skip("of the order of things: the fake, whose kernels do nothing, tells it in less time")
	}
	m, err := family.Known("gpt2")
	check(t, err)
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = 14, 32, 2, 2, 16, 64, 128, 16
	g, err := graph.Build(m, m.MaxPositions, graph.F32)
	check(t, err)
	const ranks, micros = 4, 48
	plans := map[string]*plan.Plan{}
	for _, shard := range plan.Shardings() {
		pl := plan.Plain(g, 1)
		pl.Ranks, pl.MicroBatches = ranks, micros/ranks
		for i := range pl.Chunks {
			pl.Chunks[i].Shard, pl.Chunks[i].State = shard, device.HostTier
		}
		plans["shard "+shard] = pl
	}
	for _, name := range schedule.Names() {
		s, err := schedule.Generate(name, schedule.Request{Ranks: ranks, Micros: micros, Costs: schedule.DefaultCosts()})
		check(t, err)
		pl := plan.Plain(g, 1)
		pl.MicroBatches, pl.Ranks = micros, ranks
		pl.Pipeline = &plan.Pipeline{Schedule: name, Ranks: ranks, Slices: s.Slices}
		for k := range s.Stages() {
			pl.Pipeline.Stages = append(pl.Pipeline.Stages, k*len(g.Segments)/s.Stages())
		}
		plans[name] = pl
	}
	tokens := make([]int32, micros*m.MaxPositions)
	for _, name := range testkit.Sample(slices.Sorted(maps.Keys(plans)), 1, 3) {
		pl := plans[name]
		t.Run(name, func(t *testing.T) {
			pl.Cache = pl.CacheNeeded(g)
			var list []*program.Program
			most := 0
			for rank := range ranks {
				p, err := lower.Lower(t.Context(), g, pl, lower.Options{Rank: rank, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits})
				check(t, err)
				list = append(list, p)
				most = max(most, len(p.Instrs))
			}
			check(t, verify.Verify(list...))
			for _, hosts := range [][]int{{0, 0, 0, 0}, {0, 1, 0, 1}} {
				s, err := session.Open(g, cuda.HollowRanks(t, hosts, cuda.Options{}), list)
				check(t, err)
				_, err = s.Step(t.Context(), 0, session.Batch{Tokens: tokens, Targets: tokens}, session.Scalars{Rate: 1e-3, Step: 1, Beta1: 0.9, Beta2: 0.95, Targets: len(tokens)})
				s.Close()
				check(t, err)
			}
			if most < 1000 {
				t.Errorf("only %d calls", most)
			}
		})
	}
}

// TestRankLost: a GPU that fails ends the step on all ranks with exit code 4, naming its rank and the
// instruction.
func TestRankLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, "gpt2-tiny")
	g := f.graph(t, graph.F32)
	pl := plan.Plain(g, 1)
	pl.Ranks, pl.MicroBatches = 2, len(f.tokens)/f.seq/2
	devices := cuda.Ranks(t, 2, cuda.Options{})
	s, _ := f.openRanks(t, g, devices, pl)
	defer s.Close()
	_, err := f.step(s, 1)
	check(t, err)
	broken := errors.New("fell off the bus")
	devices[1].(*cuda.Device).Abort(&device.CallError{Call: 3, Op: graph.Embed, Err: broken})
	_, err = f.step(s, 2)
	var lost *exec.PeerLostError
	if !errors.As(err, &lost) || lost.Rank != 1 || lost.Instr != 3 || !errors.Is(err, broken) {
		t.Errorf("rank 1 is lost: %v", err)
	}
}
