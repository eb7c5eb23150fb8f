//go:build linux

package cuda_test

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// TestPreference: steps on pairs are the CPU's, up to the order of sums, and plans change no bit of them.
func TestPreference(t *testing.T) {
	f := load(t, "llama-tied")
	f.documents = &graph.Documents{End: f.tokens[9], Length: 8, Preference: 0.3}
	for k := range f.targets {
		if k%f.seq < 4 || k%3 == 0 {
			f.targets[k] = -1
		}
	}
	for d, most := range map[graph.DType]float64{graph.F32: 1e-5, graph.BF16: 2e-2} {
		g := f.graph(t, d)
		_, plain := f.train(t, g, gpu(t, f), program.Plain(g, 4), 3)
		cores := cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk")})
		defer cores.Close()
		_, want := f.train(t, g, cores, program.Plain(g, 4), 3)
		for n := range want.losses {
			if e := math.Abs(plain.losses[n]/want.losses[n] - 1); !(e < most) {
				t.Errorf("%v, step %d: loss %v, on the CPU %v", d, n+1, plain.losses[n], want.losses[n])
			}
		}
		if e := math.Abs(plain.norms[0]/want.norms[0] - 1); !(e < most) {
			t.Errorf("%v: gradient norm %v, on the CPU %v", d, plain.norms[0], want.norms[0])
		}
		if d == graph.F32 {
			continue // plans in bf16 take long enough
		}
		for what, pl := range plans(g) {
			if _, got := f.train(t, g, gpu(t, f), pl, 2); !slices.Equal(got.losses, plain.losses[:2]) || !slices.Equal(got.norms, plain.norms[:2]) {
				t.Errorf("%v, %s: losses %v norms %v\nplain  %v norms %v", d, what, got.losses, got.norms, plain.losses, plain.norms)
			}
		}
	}
}
