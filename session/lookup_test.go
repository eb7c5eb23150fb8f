package session

import (
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
)

// TestLookup: where the host's cores look up the rows of tables, losses, norms and weights are the plain run's, tables are not on the
// device, and of a table only the rows of the step's tokens cross the link, and the tokens for it do not.
func TestLookup(t *testing.T) {
	for _, tc := range testkit.Sample([]struct {
		name   string
		dtype  graph.DType
		tables int // their columns in all
		others bool
	}{{"gemma4-small-tiny", graph.F32, 48, true}, {"llama-tiny", graph.F32, 48, false}, {"gemma4-small-tiny", graph.BF16, 48, true}}, 2, 3) {
		f := load(t, filepath.Join("../testdata/torch", tc.name, "config.json"))
		f.store(t, tc.dtype)
		m := *f.graph.Model
		check(t, m.Adapt(model.LoRA{Rank: 2, Alpha: 3}, "*.q_proj.weight"))
		f.rebuild(t, &m)
		pl := plan.Plain(f.graph, 2)
		pl.MicroBatches, pl.Defer = 2, false
		_, plain := f.train(t, pl, 2)
		there := *pl
		there.Chunks = append([]plan.Chunk(nil), pl.Chunks...)
		var bytes int64
		for i := range there.Chunks {
			if c := &there.Chunks[i]; c.Tables(f.graph) {
				c.Weights, c.Lookup = device.HostTier, plan.LookupOnHost
				for p := c.First; p < c.Last; p++ {
					bytes += f.graph.Stored(p).Bytes()
				}
			}
		}
		_, got := f.train(t, &there, 2)
		same(t, got, plain)
		up, before := got.moved[device.HostTier][device.DeviceTier], plain.moved[device.HostTier][device.DeviceTier]
		tokens := int64(len(f.tokens))
		want := 2 * tokens * int64(tc.tables) * tc.dtype.Size() // in two steps
		if !tc.others {                                         // no operator of the device reads tokens
			want -= 2 * tokens * graph.I32.Size()
		}
		if bytes == 0 || up-before != want {
			t.Errorf("%s: %d bytes of tables; %d bytes more cross the link, want %d", tc.name, bytes, up-before, want)
		}
		if won := plain.peak[device.DeviceTier] - got.peak[device.DeviceTier]; won < bytes/2 {
			t.Errorf("%s: the device has %d bytes less, of tables of %d", tc.name, won, bytes)
		}
	}
}
