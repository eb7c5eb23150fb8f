//go:build linux

package cuda

import (
	"context"
	"fmt"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/internal/ptx"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// What other tests require of the kernels' text is required here of the code that NVIDIA's compiler
// makes of it.

func TestCompiledOperators(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	operatorsAgree(t, compiled, 9, 20, 1)
}

func TestCompiledUpdates(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	updatesAgree(t, compiled, 1, 6)
}

func TestCompiledCuts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	cutsAgree(t, compiled, 8)
}

func TestCompiledLossOfOddSequences(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	oddLosses(t, compiled)
}

func TestCompiledSlices(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	slicesAgree(t, compiled, 2)
}

func TestCompiledDocuments(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	documentsAreSkipped(t, compiled, 1)
}

func TestCompiledHugeScores(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	hugeScores(t, compiled, 2)
}

func TestCompiledCollectives(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	collectivesAgree(t, asCode, 1)
}

// TestCompiledWaits: without a wait or a barrier the interpreter stops, whatever the order of threads,
// since it knows who used which bytes.
func TestCompiledWaits(t *testing.T) {
	testkit.Needs(t, testkit.All)
	waitsMatter(t, asCode, false, graph.Attention, graph.AttentionBwd, graph.LinearDW, graph.ExpertLinear, graph.ExpertDW)
}

// TestCompiledTraffic: in none of the kernels that a model's step starts do threads wait for each
// other's bank of shared memory or move a sector of global memory in pieces. Attention may, a little:
// tensor cores' threads each have their own rows of o, once per block, and without tensor cores the
// layout of fp32 rows suits most accesses, not all.
func TestCompiledTraffic(t *testing.T) {
	testkit.Needs(t, testkit.All)
	attention := map[string]bool{"queries": true, "keys": true, "attention": true}
	models := []string{"gpt2", "llama-2-7b", "qwen3-30b-a3b", "gemma-3-270m"}
	type card struct {
		dt    graph.DType
		major int // the card's compute capability
	}
	for i, name := range models {
		cards := testkit.Sample([]card{{graph.BF16, 8 + i%2}, {graph.BF16, 9 - i%2}}, 1, 1)
		if name == "gpt2" { // the others are here for what they have in bf16
			cards = append(cards, card{graph.F32, 9})
		}
		for _, c := range cards {
			t.Run(fmt.Sprint(name, " ", c.dt, " ", c.major), func(t *testing.T) {
				calls, size := layerOf(t, name, c.dt)
				r := &fake.Interpreter{GPU: fake.New()}
				r.GPU.Major = c.major
				d := opened(t, &Libraries{Driver: r.GPU.Driver(), Compiler: counted(t, r)}, Options{}, []int64{size})
				if err := d.Write(device.DeviceTier, 0, make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				seen := map[string]bool{}
				r.Count = func(kernel string, n *ptx.Counts) {
					if !seen[kernel] {
						t.Logf("%-13s %5.0f instructions a warp, %7d cycles of shared memory (least %d), %7d sectors (least %d)", kernel,
							float64(n.Instructions(""))/float64(n.Blocks*int64(n.Threads)/32), n.Shared.Units, n.Shared.Least, n.Global.Units, n.Global.Least)
					}
					seen[kernel] = true
					most := 1.0
					if attention[kernel] && c.dt == graph.F32 {
						most = 1.1
					}
					if float64(n.Shared.Units) > most*float64(n.Shared.Least) {
						t.Errorf("%s takes %d cycles of shared memory, least %d", kernel, n.Shared.Units, n.Shared.Least)
					}
					if most = 1.02; attention[kernel] {
						most = 1.3
					}
					if float64(n.Global.Units) > most*float64(n.Global.Least)+8 {
						t.Errorf("%s takes %d sectors of global memory, least %d", kernel, n.Global.Units, n.Global.Least)
					}
				}
				for _, call := range calls {
					first, err := d.Prepare([]device.Call{call}, nil)
					if err != nil {
						t.Fatal(err)
					}
					d.Launch(first)
					if err := d.Sync(); err != nil {
						t.Fatal(err)
					}
				}
				if len(seen) < 15 {
					t.Errorf("only %v ran", seen)
				}
			})
		}
	}
}

// layerOf returns the calls of a step of a model with one narrow layer, except the products that are
// the library's, and the memory that they need.
func layerOf(t *testing.T, name string, dt graph.DType) (calls []device.Call, size int64) {
	t.Helper()
	m, err := family.Known(name)
	if err != nil {
		t.Fatal(err)
	}
	if m.Layers, m.Heads, m.KVHeads, m.FeedForward, m.Vocab = 1, 4, 4, 1024, 1024; m.Experts > 0 {
		m.Experts, m.FeedForward, m.HeadDim = 16, 128, 64
	}
	m.Width = 4 * m.HeadDim
	g, err := graph.Build(m, 192, dt)
	if err != nil {
		t.Fatal(err)
	}
	p, err := lower.Lower(context.Background(), g, plan.Plain(g, 1), lower.Options{Clip: 1, Capacity: program.NoLimits})
	if err != nil {
		t.Fatal(err)
	}
	products := map[graph.Op]bool{graph.Linear: true, graph.LinearDX: true, graph.LinearDW: dt == graph.F32}
	for _, c := range p.Calls() {
		if c.Op == graph.LinearDX && len(c.Args) > 3 && !c.Args[3].Absent() { // without the product
			c.Op, c.Args = graph.ActBwd, []device.Operand{c.Args[0], c.Args[0], c.Args[3]}
		}
		if c.Op == graph.Copy || isHost(c.Stream) || products[c.Op] {
			continue
		}
		calls = append(calls, c)
		for _, a := range c.Args {
			if !a.Absent() && a.Tier == device.DeviceTier {
				size = max(size, a.End())
			}
		}
	}
	return calls, size
}

func TestCompiledTiles(t *testing.T) {
	testkit.Needs(t, testkit.All)
	tilesAgree(t, compiled, 8)
	tilesAgree(t, compiled, 9)
	tilesReach(t, compiled)
}
