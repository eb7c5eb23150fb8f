package exec_test

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
)

// TestOrdinaryNumbers: when operators are timed, all numbers stay ordinary, pass after
// pass, even where weights and activations come from the host. On NaN a GPU needs less
// power, so it would be faster than in a step.
func TestOrdinaryNumbers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, c := range testkit.Sample([]struct {
		name      string
		precision graph.DType
		percent   int64 // of the device memory that the plain program takes
	}{{"llama-3.2-1b", graph.BF16, 30}, {"gpt2", graph.F32, 100}}, 1, 1) {
		t.Run(c.name, func(t *testing.T) { ordinary(t, c.name, c.precision, c.percent) })
	}
}

func ordinary(t *testing.T, name string, precision graph.DType, percent int64) {
	const batch = 2
	m, err := family.Known(name)
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = 4, 64, 2, 2, 32, 256, 300, 64
	g, err := graph.Build(m, m.MaxPositions, precision)
	if err != nil {
		t.Fatal(err)
	}
	o := lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits}
	plain, err := lower.Lower(t.Context(), g, plan.Plain(g, batch), o)
	if err != nil {
		t.Fatal(err)
	}
	o.Capacity = [device.NumTiers]int64{plain.Height[device.DeviceTier] * percent / 100, 1 << 30, 1 << 30}
	h, err := hardware.KnownRank("h100", 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := search.Search(t.Context(), &search.Request{Graph: g, GlobalBatch: batch, Options: o}, &search.Machine{Capacity: o.Capacity, Cost: h}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := r.Best.Program
	d := cpu.New(cpu.Options{Workers: 1, DiskPath: filepath.Join(t.TempDir(), "disk")})
	defer d.Close()
	if err := exec.Reserve(d, p); err != nil {
		t.Fatal(err)
	}
	if _, err := hardware.Profile(p.Calls(), d, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Calls() {
		if c.Op != graph.AdamW {
			continue
		}
		for k, a := range c.Args[:3] { // parameters and moments
			b := make([]byte, a.Bytes())
			if err := d.Read(a.Tier, a.Addr, b); err != nil {
				t.Fatal(err)
			}
			size := int(a.DType.Size())
			for i := 0; i < len(b); i += size { // the upper halves of f32 are bf16
				x := math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[i+size-2:])) << 16)
				if !(math.Abs(float64(x)) < 1e3) {
					t.Fatalf("%s: element %d of operand %d of %s is %v", r.Best.Label, i/size, k, hardware.Key(&c), x)
				}
			}
		}
	}
}
