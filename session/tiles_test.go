package session

import (
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// TestTiles: feed-forwards by tiles of rows give the plain run's bits, in a device memory that is smaller by what is then left out of the
// values inside feed-forwards, at least by half of them. A micro-batch whose rows tiles do not divide evenly has a short last tile.
func TestTiles(t *testing.T) {
	for _, tc := range testkit.Sample([]struct {
		name  string
		dtype graph.DType
		inner int // columns of the values inside a feed-forward that exist at the same time, and of their gradients
	}{{"llama-tiny", graph.F32, 4}, {"gpt2-tiny", graph.F32, 1}, {"llama-tiny", graph.BF16, 4}, {"gemma2-tiny", graph.F32, 4}}, 2, 4) {
		f := load(t, filepath.Join("../testdata/torch", tc.name, "config.json"))
		f.store(t, tc.dtype)
		f.lengthen(t, 3, 256)
		pl := plan.Plain(f.graph, 3)
		pl.HeadRows = 32
		for l := range pl.Activations {
			pl.Activations[l] = plan.Recomputed("full")
		}
		_, plain := f.train(t, pl, 2)
		tiled := *pl
		tiled.FeedRows = 512
		_, got := f.train(t, &tiled, 2)
		same(t, got, plain)
		tiled.FeedRows = 64
		_, got = f.train(t, &tiled, 2)
		same(t, got, plain)
		inner := int64(3*256-64) * int64(tc.inner*f.graph.Model.FeedForward) * tc.dtype.Size()
		if won := plain.peak[device.DeviceTier] - got.peak[device.DeviceTier]; won < inner/2 {
			t.Errorf("%s %v: %d bytes less of %d, want at least half of %d", tc.name, tc.dtype, won, plain.peak[device.DeviceTier], inner)
		}
	}
}
