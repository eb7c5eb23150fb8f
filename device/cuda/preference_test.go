//go:build linux

package cuda_test

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// TestPreference: steps on pairs match the CPU's, up to the order of sums, and plans change no bit of them. GPUs
// that share sequences of pairs give the numbers of one.
func TestPreference(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, "llama-tied")
	const end = 7
	f.documents = &graph.Documents{End: end, Length: 8, Preference: 0.3}
	for k := range f.targets { // four documents a sequence, of other lengths in each; the first three tokens of each are given
		cut := k%f.seq + 1
		if n := f.seq/4 + k/f.seq%3 - 1; cut%n == 0 && cut/n < 4 {
			f.tokens[k] = end
		} else if f.tokens[k] == end {
			f.tokens[k]++
		}
		if k%f.seq < 3 || k%f.seq > 28 || slices.Contains(f.tokens[max(k-2, 0):k+1], end) {
			f.targets[k] = -1
		}
	}
	for _, d := range cuda.CasesOf(bothTypes, 1) {
		g, most := f.graph(t, d), map[graph.DType]float64{graph.F32: 1e-5, graph.BF16: 2e-2}[d]
		_, plain := f.train(t, g, gpu(t, f), plan.Plain(g, 4), steps())
		cores := cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk")})
		defer cores.Close()
		_, want := f.train(t, g, cores, plan.Plain(g, 4), steps())
		for n := range want.losses {
			if e := math.Abs(plain.losses[n]/want.losses[n] - 1); !(e < most) {
				t.Errorf("%v, step %d: loss %v, on the CPU %v", d, n+1, plain.losses[n], want.losses[n])
			}
		}
		if e := math.Abs(plain.norms[0]/want.norms[0] - 1); !(e < most) {
			t.Errorf("%v: gradient norm %v, on the CPU %v", d, plain.norms[0], want.norms[0])
		}
		part, err := graph.BuildPart(f.model, f.seq, 2, d, f.documents)
		check(t, err)
		f.sameAsOne(t, part, plan.Plain(part, 4), plain, most)
		if d == graph.F32 {
			continue // plans in bf16 take long enough
		}
		all := plans(g)
		for _, what := range cuda.CasesOf(slices.Sorted(maps.Keys(all)), 1) {
			pl := all[what]
			if _, got := f.train(t, g, gpu(t, f), pl, 2); !slices.Equal(got.losses, plain.losses[:2]) || !slices.Equal(got.norms, plain.norms[:2]) {
				t.Errorf("%v, %s: losses %v norms %v\nplain  %v norms %v", d, what, got.losses, got.norms, plain.losses, plain.norms)
			}
		}
	}
}
