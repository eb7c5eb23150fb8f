//go:build linux

package cuda

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// tuneCalls are products of all kinds that the library computes, on tokens rows: with a bias, added to a
// residual and in place, with an activation's derivative, and sums over tokens, in fp32 and added to y.
func tuneCalls(tokens, in, out int) (calls []device.Call, size int64) {
	place := func(dt graph.DType, rows, cols int) device.Operand {
		o := device.Operand{DType: dt, Addr: size, Rows: rows, Cols: cols, Stride: cols}
		size = (o.End() + 63) &^ 63
		return o
	}
	w, bias := place(graph.BF16, in, out), place(graph.BF16, 1, out)
	x, dx, y, dy := place(graph.BF16, tokens, in), place(graph.BF16, tokens, in), place(graph.BF16, tokens, out), place(graph.BF16, tokens, out)
	dw := place(graph.F32, in, out)
	gelu := graph.Attr{Act: model.GELUTanh}
	return []device.Call{
		{Op: graph.Linear, Args: []device.Operand{y, x, w}},
		{Op: graph.Linear, Args: []device.Operand{y, x, w, bias}},
		{Op: graph.Linear, Args: []device.Operand{y, x, w, bias, dy}},
		{Op: graph.Linear, Attr: graph.Attr{Acc: true}, Args: []device.Operand{y, x, w}},
		{Op: graph.LinearDX, Args: []device.Operand{dx, dy, w}},
		{Op: graph.LinearDX, Attr: gelu, Args: []device.Operand{dx, dy, w, x}},
		{Op: graph.LinearDW, Args: []device.Operand{dw, x, dy}},
		{Op: graph.LinearDW, Attr: graph.Attr{Acc: true}, Args: []device.Operand{dw, x, dy}},
	}, size
}

// tunable returns a device on a machine whose library has these algorithms, before anything is reserved.
func tunable(t *testing.T, folder string, list ...fake.Algorithm) (*Device, *fake.GPU) {
	t.Helper()
	g := fake.New()
	g.Algorithms = list
	d := opened(t, &Libraries{g.Driver(), asText(t, g, false), g.Lt()}, Options{CacheDir: folder}, nil)
	d.library.least, d.chip.sms = 1, 0
	return d, g
}

// results are the bits of each call's result, one call after another, on numbers that are the same each time.
func results(t *testing.T, d *Device, calls []device.Call, size int64) (all [][]byte) {
	t.Helper()
	some := randomBF16(rand.New(rand.NewPCG(5, 5)), 1<<20-32)
	for at := int64(0); at < size; at += int64(len(some)) {
		if err := d.Write(device.DeviceTier, at, some[:min(int64(len(some)), size-at)]); err != nil {
			t.Fatal(err)
		}
	}
	first, err := d.Prepare(calls, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		d.Launch(first + i)
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		y := calls[i].Args[0]
		out := make([]byte, y.Bytes())
		if err := d.Read(device.DeviceTier, y.Addr, out); err != nil {
			t.Fatal(err)
		}
		all = append(all, out)
	}
	return all
}

// TestTune: of the algorithms with the first one's bits, the fastest is used, for products of all kinds; on
// later devices too, without another trial; and not if the choice is spoilt, the product is small or nothing
// was tuned. The bits stay.
func TestTune(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	calls, size := tuneCalls(24, 40, 48)
	slow := fake.Algorithm{Turns: 60}
	list := []fake.Algorithm{slow, {Rough: true}, {Fails: true}, {}, slow}
	const best = 3
	folder := t.TempDir()
	d, g := tunable(t, "", list...)
	if err := d.Reserve(device.DeviceTier, size); err != nil {
		t.Fatal(err)
	}
	plain := results(t, d, calls, size)
	if used := g.Used(); slices.Max(used) != 0 || len(used) != len(calls) {
		t.Fatalf("untuned: %v", used)
	}
	check := func(what string, want int, g *fake.GPU, d *Device) {
		t.Helper()
		g.Used()
		if err := d.Reserve(device.DeviceTier, size); err != nil {
			t.Fatal(err)
		}
		for i, have := range results(t, d, calls, size) {
			if !bytes.Equal(have, plain[i]) {
				t.Errorf("%s: %v: other bits", what, calls[i].Op)
			}
		}
		if used := g.Used(); slices.Min(used) != want || slices.Max(used) != want || len(used) != len(calls) {
			t.Errorf("%s: %v instead of %d", what, used, want)
		}
	}
	tune := func(d *Device) {
		t.Helper()
		if err := d.Tune(calls, 1<<30); err != nil {
			t.Fatal(err)
		}
	}

	d, g = tunable(t, folder, list...)
	if err := d.Tune(slices.Concat(calls, calls), 1<<30); err != nil {
		t.Fatal(err)
	}
	tries := map[int]int{}
	for _, n := range g.Used() {
		tries[n]++
	}
	if len(tries) != len(list) || tries[1] != len(calls) || tries[2] != len(calls) {
		t.Errorf("tried: %v times by number, though %d products differ", tries, len(calls))
	}
	tune(d)
	if used := g.Used(); len(used) > 0 {
		t.Errorf("tried once more: %v", used)
	}
	check("tuned", best, g, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Leaks(); err != nil {
		t.Error(err)
	}

	d, g = tunable(t, folder, list...)
	check("later, without a call of Tune", best, g, d)
	d, g = tunable(t, folder, list...)
	tune(d)
	if used := g.Used(); len(used) > 0 {
		t.Errorf("tried later: %v", used)
	}
	d.library.least = 24*40*48 + 1
	check("small", 0, g, d)
	d, g = tunable(t, "", list...)
	d.library.least = 24*40*48 + 1
	tune(d)
	if used := g.Used(); len(used) > 0 {
		t.Errorf("small, but tried: %v", used)
	}
	d, g = tunable(t, folder, append(list[:best:best], fake.Algorithm{Turns: 200})...)
	check("chosen once", best, g, d)

	files, err := filepath.Glob(filepath.Join(folder, "*.algorithm"))
	if err != nil || len(files) != len(calls) {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Truncate(f, 60); err != nil {
			t.Fatal(err)
		}
	}
	d, g = tunable(t, folder, list...)
	check("spoilt", 0, g, d)
	for _, f := range files {
		d.cache.Put(filepath.Base(f), make([]byte, nv.AlgoBytes-1))
	}
	d, g = tunable(t, folder, list...)
	check("of other algorithms", 0, g, d)
	d, _ = tunable(t, folder, list[0], list[1], list[2])
	tune(d)
	d, g = tunable(t, folder, list...)
	check("none as good", 0, g, d)
}

// TestTuneWithout: where there is no memory to try, or the library takes none or has one only, the first choice
// stays, and that is no error; neither is a folder that cannot be written.
func TestTuneWithout(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	calls, size := tuneCalls(24, 40, 48)
	for what, spoil := range map[string]func(*Device, *fake.GPU){
		"no memory":     func(_ *Device, g *fake.GPU) { g.Fail["MemAlloc"] = 2 },
		"no algorithms": func(_ *Device, g *fake.GPU) { g.Fail["LtAlgoGetHeuristic"] = 15 },
		"no room":       func(_ *Device, g *fake.GPU) { g.Workspace = workspaceBytes + 1 },
		"none runs":     func(_ *Device, g *fake.GPU) { g.Fail["LtMatmul"] = 13 },
		"no products":   func(_ *Device, g *fake.GPU) { g.Fail["LtLayoutCreate"] = 15 },
		"no folder":     func(d *Device, _ *fake.GPU) { d.cache.Dir = filepath.Join("/dev/null", "folder") },
	} {
		d, g := tunable(t, "", fake.Algorithm{Turns: 60}, fake.Algorithm{})
		spoil(d, g)
		if err := d.Tune(calls, 1<<30); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		clear(g.Fail)
		g.Used()
		if err := d.Reserve(device.DeviceTier, size); err != nil {
			t.Fatal(err)
		}
		results(t, d, calls, size)
		want := 0
		if what == "no folder" {
			want = 1
		}
		if used := g.Used(); len(used) > 0 && (slices.Min(used) != want || slices.Max(used) != want) {
			t.Errorf("%s: %v", what, used)
		}
	}
	d, _ := tunable(t, "", fake.Algorithm{}, fake.Algorithm{})
	if err := d.Tune(calls, 0); err != nil || len(d.library.choices) == 0 {
		t.Errorf("small products take more than Overhead: %v", err)
	}
	clear(d.library.choices)
	if err := d.Tune(calls, -workspaceBytes); err != nil || len(d.library.choices) > 0 {
		t.Errorf("tuning takes more memory than it may: %v", err)
	}
	if d, _ := hollow(t, Options{}); d.Tune(calls, 1<<30) != nil {
		t.Error("it fails without the library")
	}
	for _, op := range []graph.Op{graph.Linear, graph.NumOps} {
		if err := d.Tune([]device.Call{calls[0], {Op: op}}, 1<<30); err == nil {
			t.Errorf("%v without operands is tuned", op)
		}
	}
}

// TestTuneFails: whichever call of the driver fails, Tune returns its error and leaves nothing behind. The same
// holds for an algorithm that runs once and not again.
func TestTuneFails(t *testing.T) {
	calls, _ := tuneCalls(24, 40, 48)
	for _, proc := range []string{"", "Matmul", "CtxSynchronize", "EventCreate", "EventElapsedTime", "EventRecord", "EventSynchronize",
		"LaunchKernel", "MemFree", "Memcpy", "MemsetD8Async", "ModuleLoadData", "StreamSynchronize"} {
		d, g := tunable(t, "", fake.Algorithm{}, fake.Algorithm{})
		g.Fail[proc] = 700
		if proc == "Matmul" {
			runs, matmul := 0, d.library.lt.Matmul
			d.library.lt.Matmul = func(a ...uintptr) int32 {
				if runs++; runs > 4 {
					return 13
				}
				return matmul(a...)
			}
		}
		if err := d.Tune(calls, 1<<30); (err == nil) != (proc == "") {
			t.Errorf("%s fails: %v", proc, err)
		}
		clear(g.Fail)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := g.Leaks(); err != nil && proc != "MemFree" {
			t.Errorf("%s fails: %v", proc, err)
		}
		all := map[string]int{}
		for _, name := range g.Calls() {
			all[name]++
		}
		for _, what := range []string{"LtDesc", "LtLayout", "LtPreference"} {
			if all[what+"Create"] != all[what+"Destroy"] {
				t.Errorf("%s fails: %d of %d are destroyed: %s", proc, all[what+"Destroy"], all[what+"Create"], what)
			}
		}
	}
}

// TestTuneApart: a product and the same one added to something, or aligned otherwise, are chosen apart, and so
// is what takes a product's place. A choice that the library rejects gives way to the first algorithm. Calls of
// host streams and between ranks are not tuned.
func TestTuneApart(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	calls, size := tuneCalls(24, 40, 48)
	for _, c := range [][2]int{{0, 3}, {3, 0}} {
		d, g := tunable(t, "", fake.Algorithm{Turns: 60}, fake.Algorithm{})
		if err := d.Tune(calls[c[0]:c[0]+1], 1<<30); err != nil {
			t.Fatal(err)
		}
		g.Used()
		if err := d.Reserve(device.DeviceTier, size); err != nil {
			t.Fatal(err)
		}
		results(t, d, []device.Call{calls[c[0]], calls[c[1]]}, size)
		if used := g.Used(); !slices.Equal(used, []int{1, 0}) {
			t.Errorf("call %d is tuned: algorithms %v", c[0], used)
		}
	}
	d, g := tunable(t, "", fake.Algorithm{Turns: 60}, fake.Algorithm{})
	moved := device.Call{Op: graph.Linear, Args: slices.Clone(calls[0].Args)}
	for i := range moved.Args {
		moved.Args[i].Addr += 16
	}
	if err := d.Tune([]device.Call{moved, calls[0]}, 1<<30); err != nil || len(d.library.choices) != 2 {
		t.Errorf("%d choices for two alignments, %v", len(d.library.choices), err)
	}
	if err := d.Reserve(device.DeviceTier, size+16); err != nil {
		t.Fatal(err)
	}
	g.Used()
	results(t, d, []device.Call{moved}, size)
	check := d.library.lt.AlgoCheck
	d.library.lt.AlgoCheck = func(a ...uintptr) int32 {
		if **(**byte)(unsafe.Pointer(&a[6])) == 1 {
			return 15
		}
		return check(a...)
	}
	results(t, d, []device.Call{moved}, size)
	if used := g.Used(); !slices.Equal(used, []int{1, 0}) {
		t.Errorf("where it is, and where the library rejects it: algorithms %v", used)
	}
	d, g = tunable(t, "", fake.Algorithm{}, fake.Algorithm{})
	g.Plain = true
	if err := d.Tune(calls[5:6], 1<<30); err != nil || len(d.library.choices) != 1 {
		t.Errorf("without a derivative, %d choices, %v", len(d.library.choices), err)
	}
	clear(d.library.choices)
	y := calls[0].Args[0]
	far := y
	far.Tier = device.HostTier
	host := device.Call{Op: graph.Linear, Stream: device.HostCompute, Args: slices.Clone(calls[0].Args)}
	for i := range host.Args {
		host.Args[i].Tier = device.HostTier
	}
	others := []device.Call{host, {Op: graph.Copy, Stream: device.DevToHost, Args: []device.Operand{far, y}}, {Op: graph.Send, Stream: device.Send, Peers: []int{1}, Args: []device.Operand{y}}}
	if err := d.Tune(others, 1<<30); err != nil || len(d.library.choices) > 0 {
		t.Errorf("%d choices, %v", len(d.library.choices), err)
	}
}

// TestChoiceName: a choice is found only by the same version of the library with the same settings, for the same
// card and product.
func TestChoiceName(t *testing.T) {
	d, _ := tunable(t, "")
	base := choiceKey{product: nv.Product{A: nv.LtMatrix{Rows: 64}}}
	seen := map[string]string{d.library.choiceName(base): "the same"}
	for what, change := range map[string]func(d *Device, k *choiceKey){
		"version": func(d *Device, _ *choiceKey) {
			d.library.lt = &nv.Lt{GetVersion: func(...uintptr) int32 { return 1 }}
		},
		"name":      func(d *Device, _ *choiceKey) { d.chip.name += " 2" },
		"arch":      func(d *Device, _ *choiceKey) { d.chip.arch += "a" },
		"part":      func(d *Device, _ *choiceKey) { d.chip.sms = 7 },
		"added":     func(_ *Device, k *choiceKey) { k.added = true },
		"extents":   func(_ *Device, k *choiceKey) { k.product.A.Rows = 65 },
		"alignment": func(_ *Device, k *choiceKey) { k.product.Align = 16 },
		"epilogue":  func(_ *Device, k *choiceKey) { k.product.Epilogue = nv.LtBias },
	} {
		other, k := &Device{chip: d.chip, library: library{lt: d.library.lt}}, base
		other.library.chip = &other.chip
		change(other, &k)
		name := other.library.choiceName(k)
		if twin, ok := seen[name]; ok {
			t.Errorf("%s: as for %s", what, twin)
		}
		seen[name] = what
	}
	for _, name := range []string{"CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"} {
		t.Setenv(name, "0")
		if twin, ok := seen[d.library.choiceName(base)]; ok {
			t.Errorf("%s: as for %s", name, twin)
		}
		seen[d.library.choiceName(base)] = name
	}
}

// TestTuneSteps: whatever a step of the known models does, it can be tuned before arenas are reserved.
func TestTuneSteps(t *testing.T) {
	for _, name := range testkit.Sample(family.Published(), 5, 100) {
		m, err := family.Known(name)
		if err != nil {
			t.Fatal(err)
		}
		shorten(m)
		g, err := graph.Build(m, 1024, graph.BF16)
		if err != nil {
			t.Fatal(err)
		}
		p, err := lower.Lower(context.Background(), g, plan.Plain(g, 8), lower.Options{Clip: 1, Capacity: program.NoLimits})
		if err != nil {
			t.Fatal(err)
		}
		d, gpu := tunable(t, "")
		gpu.Fail["MemAlloc"] = 2 // nothing is tried: it would take the fake days
		d.library.least, d.chip.sms = tuneTerms, 132
		if err := d.Tune(p.Calls(), 1<<40); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Contains(gpu.Calls(), "MemAlloc") {
			t.Errorf("%s: nothing was to be tried", name)
		}
	}
}

// TestFastest: what is usually fastest wins, also if its rounds are slow once and another's fast; the first if
// there is no other. All have the same number of turns and of places in a round, fewer if they take long.
func TestFastest(t *testing.T) {
	for want := range 5 {
		count, turn := map[int]int{}, 0
		var order []int
		best, err := fastest(5, func(i, turns int) (float64, error) {
			turn++
			count[i] += turns
			order = append(order, i)
			s := 3e-4 * float64(turns)
			switch slow := turn == 11 || turn == 24; {
			case i == want && !slow:
				s *= 0.98
			case i != want && turn%11 == 0:
				s *= 0.5
			}
			return s, nil
		})
		if best != want || err != nil {
			t.Errorf("%d instead of %d, %v", best, want, err)
		}
		for round := range tuneRounds {
			if first := order[1+5*round]; first != round%5 {
				t.Errorf("%d comes first in round %d", first, round)
			}
		}
		if count[0]--; count[0] != count[1] || count[1] != count[4] || count[4] != tuneRounds*4 {
			t.Errorf("turns: %v", count)
		}
	}
	times := 0
	best, err := fastest(2, func(i, turns int) (float64, error) {
		times += turns
		return 2*tuneLong - 1e-3*float64(i), nil
	})
	if best != 1 || err != nil || times != 1+2*tuneFew {
		t.Errorf("of two that take long, %d is faster after %d turns, %v", best, times, err)
	}
	times = 0
	if best, err := fastest(1, func(int, int) (float64, error) { times++; return 1, nil }); best != 0 || err != nil || times > 1 {
		t.Error(best, err, times)
	}
}

// TestTunedBits: tuned products of large models have the bits of untuned ones, for any number of rows.
func TestTunedBits(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	shapes := [][3]int{{24, 40, 48}}
	if onGPU() {
		shapes = [][3]int{{4096, 768, 3072}, {4096, 6400, 1600}, {2048, 4096, 6144}}
	}
	for _, shape := range shapes {
		all, size := tuneCalls(shape[0], shape[1], shape[2])
		lib := withLibrary(t)
		plain := openedWith(t, lib, Options{SumRows: shape[0]}, size)
		tuned := openedWith(t, lib, Options{SumRows: shape[0], CacheDir: t.TempDir()})
		if !onGPU() {
			tuned.library.least = 1
		}
		for _, rows := range []int{shape[0], shape[0]/2 + 8} {
			calls := slices.Clone(all)
			for i := range calls {
				calls[i].Args = slices.Clone(calls[i].Args)
				for j := range calls[i].Args {
					if a := &calls[i].Args[j]; a.Rows == shape[0] {
						a.Rows = rows
					}
				}
			}
			if err := tuned.Tune(calls, 1<<40); err != nil {
				t.Fatal(err)
			}
			if tuned.arenas.sizes[device.DeviceTier] == 0 {
				if err := tuned.Reserve(device.DeviceTier, size); err != nil {
					t.Fatal(err)
				}
			}
			want := results(t, plain, calls, size)
			for i, have := range results(t, tuned, calls, size) {
				if !bytes.Equal(have, want[i]) {
					t.Errorf("%d rows of %v: %v %+v: other bits", rows, shape, calls[i].Op, calls[i].Attr)
				}
			}
		}
		t.Logf("%v: %d choices", shape, len(tuned.library.choices))
	}
}
