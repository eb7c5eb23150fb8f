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
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
)

// What other tests want of the kernels' text is wanted here of what NVIDIA's
// compiler makes of it.

func TestCompiledOperators(t *testing.T) { operatorsAgree(t, compiled, 24) }

func TestCompiledUpdates(t *testing.T) { updatesAgree(t, compiled) }

func TestCompiledCuts(t *testing.T) { cutsAgree(t, compiled) }

func TestCompiledLossOfOddSequences(t *testing.T) { oddLosses(t, compiled) }

func TestCompiledSlices(t *testing.T) { slicesAgree(t, compiled) }

func TestCompiledDocuments(t *testing.T) { documentsAreSkipped(t, compiled) }

func TestCompiledCollectives(t *testing.T) { collectivesAgree(t, asCode) }

// TestCompiledWaits: without a wait or a barrier the interpreter stops, in whatever
// order threads run, since it knows who used which bytes.
func TestCompiledWaits(t *testing.T) {
	waitsMatter(t, asCode, false, graph.Attention, graph.AttentionBwd, graph.LinearDW)
}

// TestCompiledTraffic: of all kernels that a step of a model starts, none has threads wait
// for each other's bank of shared memory, and none moves a sector of global memory in
// pieces. Attention may a little: tensor cores' threads each have their own rows of o, once
// per block, and without them rows of fp32 lie as fits most accesses, not all.
func TestCompiledTraffic(t *testing.T) {
	attention := map[string]bool{"queries": true, "keys": true, "attention": true}
	for _, name := range []string{"gpt2", "llama-2-7b"} {
		for _, dt := range []graph.DType{graph.BF16, graph.F32} {
			t.Run(fmt.Sprint(name, " ", dt), func(t *testing.T) {
				calls, size := layerOf(t, name, dt)
				r := &fake.Interpreter{GPU: fake.New()}
				d := opened(t, &Libraries{Driver: r.GPU.Driver(), Compiler: counted(t, r)}, Options{}, []int64{size})
				if err := d.Write(device.DeviceTier, 0, make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				seen := map[string]bool{}
				r.Count = func(kernel string, c *ptx.Counts) {
					if !seen[kernel] {
						t.Logf("%-13s %5.0f instructions a warp, %7d cycles of shared memory (least %d), %7d sectors (least %d)", kernel,
							float64(c.Instructions(""))/float64(c.Blocks*int64(c.Threads)/32), c.Shared.Units, c.Shared.Least, c.Global.Units, c.Global.Least)
					}
					seen[kernel] = true
					most := 1.0
					if attention[kernel] && dt == graph.F32 {
						most = 1.1
					}
					if float64(c.Shared.Units) > most*float64(c.Shared.Least) {
						t.Errorf("%s takes %d cycles of shared memory, least %d", kernel, c.Shared.Units, c.Shared.Least)
					}
					if most = 1.02; attention[kernel] {
						most = 1.3
					}
					if float64(c.Global.Units) > most*float64(c.Global.Least)+8 {
						t.Errorf("%s takes %d sectors of global memory, least %d", kernel, c.Global.Units, c.Global.Least)
					}
				}
				for _, c := range calls {
					n, err := d.Prepare([]device.Call{c}, nil)
					if err != nil {
						t.Fatal(err)
					}
					d.Launch(n)
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

// layerOf is what a step of a model of one narrow layer calls besides products that are
// the library's, and the memory that it needs.
func layerOf(t *testing.T, name string, dt graph.DType) (calls []device.Call, size int64) {
	t.Helper()
	m, err := model.Known(name)
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Heads, m.KVHeads, m.Width, m.FeedForward, m.Vocab = 1, 4, 4, 4*m.HeadDim, 1024, 1024
	g, err := graph.Build(m, 192, dt)
	if err != nil {
		t.Fatal(err)
	}
	p, err := program.Lower(context.Background(), g, program.Plain(g, 1), program.Options{Clip: 1})
	if err != nil {
		t.Fatal(err)
	}
	products := map[graph.Op]bool{graph.Linear: true, graph.LinearDX: true, graph.LinearDW: dt == graph.F32}
	for _, c := range p.Calls() {
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
	tilesAgree(t, compiled, 8)
	tilesAgree(t, compiled, 9)
	tilesReach(t, compiled)
}
