package remote

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/verify"
)

// train runs three steps of a tiny model on joined devices and returns the resulting bits: losses,
// norms, weights and moments.
func train(t *testing.T, g *graph.Graph, devices []device.Device) (bits []float32) {
	t.Helper()
	const rows = 4
	pl := plan.Plain(g, 1)
	pl.Ranks, pl.MicroBatches = len(devices), rows/len(devices) // replicas
	for i := range pl.Chunks {
		pl.Chunks[i].State = device.DiskTier
		if len(devices) > 1 {
			pl.Chunks[i].Shard = "weights"
		}
	}
	pl.Cache = pl.CacheNeeded(g)
	var ps []*program.Program
	for r := range devices {
		p, err := lower.Lower(t.Context(), g, pl, lower.Options{Rank: r, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits})
		check(t, err)
		ps = append(ps, p)
	}
	check(t, verify.Verify(ps...))
	s, err := session.Open(g, devices, ps)
	check(t, err)
	defer s.Close()
	check(t, s.Load(func(p model.Param, first int, dst []float32) error {
		session.Initial(p, 1, first, dst)
		return nil
	}))
	tokens := make([]int32, rows*g.Seq)
	for i := range tokens {
		tokens[i] = int32(i * i % g.Model.Vocab)
	}
	for n := 1; n <= 3; n++ {
		out, err := s.Step(context.Background(), 0, session.Batch{Tokens: tokens, Targets: tokens}, session.Scalars{Rate: 1e-3, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: len(tokens)})
		check(t, err)
		bits = append(bits, float32(out.Loss), float32(out.Norm))
		for _, e := range out.Executed {
			_, err := e.Timeline()
			check(t, err)
		}
	}
	for i, q := range g.Params {
		for _, kind := range optimizer.AdamW.Rule().State() {
			buf := make([]float32, q.Elems())
			check(t, s.Read(i, kind, buf))
			bits = append(bits, buf...)
		}
	}
	return bits
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestTraining: a session trains on remote devices, alone and joined, to the bits that
// it gets on local ones.
func TestTraining(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	text, err := os.ReadFile("../../testdata/torch/gpt2-untied/config.json")
	check(t, err)
	m, _, err := family.Parse(text)
	check(t, err)
	g, err := graph.Build(m, 16, graph.F32)
	check(t, err)
	h := newHost(t, nil)
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			local := cpu.OpenRanks(cpu.Options{Workers: 2, DiskPath: filepath.Join(t.TempDir(), "disk")}, ranks)
			var remote []device.Device
			origin := time.Now()
			for r := range ranks {
				p := Place{Rank: r, Ranks: ranks, Hosts: []string{"", h.addr}, HostOf: slices.Repeat([]int{1}, ranks)}
				if ranks > 1 {
					p.Fabric = t.Name()
				}
				d, err := Open(h.addr, testKey, p, origin)
				check(t, err)
				remote = append(remote, d)
			}
			want, got := train(t, g, local), train(t, g, remote)
			if !slices.Equal(want, got) {
				t.Error("the results differ")
			}
			check(t, session.CloseAll(local))
			check(t, session.CloseAll(remote))
		})
	}
}
