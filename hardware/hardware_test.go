package hardware_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/null"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
)

func known(t testing.TB, name string) *hardware.Hardware {
	t.Helper()
	h, err := hardware.KnownRank(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func text(t testing.TB, h *hardware.Hardware) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := h.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func operand(t device.Tier, d graph.DType, rows, cols int) device.Operand {
	return device.Operand{Tier: t, DType: d, Rows: rows, Cols: cols, Stride: cols}
}

func linear(d graph.DType, n, in, out int) device.Call {
	return device.Call{Op: graph.Linear, Args: []device.Operand{operand(0, d, n, out), operand(0, d, n, in), operand(0, d, in, out)}}
}

func copyUp(bytes int) device.Call {
	return device.Call{Op: graph.Copy, Stream: device.HostToDev, Args: []device.Operand{
		operand(device.DeviceTier, graph.BF16, 1, bytes/2), operand(device.HostTier, graph.BF16, 1, bytes/2)}}
}

// TestKnown: each built-in machine is valid, prints and parses back (L5), and
// slower buses make copies slower.
func TestKnown(t *testing.T) {
	for _, name := range hardware.Names() {
		c := copyUp(1 << 30)
		last := math.Inf(1)
		for _, bus := range []string{"/pcie3", "/pcie4", "/pcie5", "/c2c", ""} {
			h := known(t, name+bus)
			if err := h.Validate(); err != nil {
				t.Errorf("%s: %v", h.Name, err)
			}
			back, err := hardware.Parse(text(t, h))
			if err != nil || !reflect.DeepEqual(back, h) {
				t.Errorf("%s does not parse back: %v", h.Name, err)
			}
			s := h.Cost(&c)
			if bus != "" && s >= last {
				t.Errorf("%s: 1 GiB takes %v s, no less than on the bus before", h.Name, s)
			}
			last = s
		}
	}
	for written, name := range map[string]string{"RTX 4090": "rtx4090", "4090": "rtx4090", "GeForce-RTX-4060-Ti": "rtx4060ti", "rtx a6000": "a6000",
		"A100 80GB": "a100-80", "NVIDIA GeForce RTX 4090 Laptop GPU": "rtx4090-laptop", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtxpro6000", "RTX PRO 6000": "rtxpro6000",
		"NVIDIA GeForce RTX 4070 Ti SUPER": "rtx4070tisuper", "NVIDIA A100 80GB PCIe": "a100-80-pcie", "NVIDIA RTX A5000": "a5000", "NVIDIA GeForce RTX 3090 Ti": "rtx3090ti", "NVIDIA L40S": "l40s", "a100_40gb/pcie3": "a100-40/pcie3", "NVIDIA H100": "h100", "RTX 6000 Ada Generation": "rtx6000ada"} {
		h, want := known(t, written), known(t, name)
		if h.Name = want.Name; !reflect.DeepEqual(h, want) {
			t.Errorf("%s is not %s", written, name)
		}
	}
	for name, hint := range map[string]string{
		"2x8 a100": "hardware.name=a100-40 ranks=16 hardware.hosts=2", "8 x RTX 4090": "hardware.name=rtx4090 ranks=8,", "a100": "did you mean a100-40 or a100-80",
		"toaster": "such as rtx4090",
	} {
		if _, err := hardware.KnownRank(name, 1); err == nil || !strings.Contains(err.Error(), hint) || len(err.Error()) > 300 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := hardware.KnownRank("rtx409", 1); err == nil || !strings.Contains(err.Error(), "did you mean rtx4090 ") {
		t.Errorf("rtx409: %v", err)
	}
	for _, name := range []string{"mi300x", "Radeon RX 7900", "M4 Max", "MacBook Pro"} {
		if _, err := hardware.KnownRank(name, 1); err == nil || !strings.Contains(err.Error(), "on any machine's cores") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "h1000", "h100/isa", "/pcie4", "a100", "rtx"} {
		if _, err := hardware.KnownRank(name, 1); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("KnownRank(%q): %v", name, err)
		}
	}
}

// TestRoofline against numbers worked out by hand for an RTX 4090 (165.2
// TFLOP/s bf16, 85 % of it and of 1008 GB/s reached, 3 us per call).
func TestRoofline(t *testing.T) {
	h := known(t, "rtx4090")
	near := func(what string, c device.Call, want float64) {
		t.Helper()
		if got := h.Cost(&c); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s: %v s, want %v", what, got, want)
		}
	}
	near("bf16 product", linear(graph.BF16, 4096, 4096, 4096), 3e-6+2*math.Pow(4096, 3)/(0.85*165.2e12))
	near("fp32 product", linear(graph.F32, 4096, 4096, 4096), 3e-6+2*math.Pow(4096, 3)/(0.85*82.6e12))
	near("product with few rows: bound by reading the weight", linear(graph.BF16, 1, 4096, 4096), 3e-6+2*(4096*4096+2*4096)/(0.85*1008e9))
	near("add: y is read and written", device.Call{Op: graph.Add, Args: []device.Operand{operand(0, graph.F32, 1, 1<<20), operand(0, graph.F32, 1, 1<<20)}},
		3e-6+12*(1<<20)/(0.85*1008e9))
	dx := linear(graph.BF16, 4096, 4096, 4096)
	dx.Op, dx.Args = graph.LinearDX, append(dx.Args, dx.Args[0])
	near("gradient, then an activation's: reads two matrices and writes one", dx, 3e-6+2*math.Pow(4096, 3)/(0.85*165.2e12)+3*2*4096*4096/(0.85*1008e9))
	near("copy up", copyUp(1<<20), 6e-6+(1<<20)/25e9)

	send := device.Call{Op: graph.Copy, Stream: device.HostToDev, Args: []device.Operand{operand(device.DeviceTier, graph.F32, 1, 1), operand(device.DiskTier, graph.F32, 1, 1)}}
	if got := h.Cost(&send); !math.IsInf(got, 1) {
		t.Errorf("a copy without a link costs %v", got)
	}
}

// TestElixirPaper: the rates of the paper's host, all ranks together, as in its authors' table: GB/s up and
// down, 1e9 elements per second of Adam on the GPUs and on the host.
func TestElixirPaper(t *testing.T) {
	const n30 = 1 << 30
	for ranks, want := range map[int][4]float64{1: {25, 18.1, 50, 5.15}, 2: {41.3, 33.9, 100, 6.30}, 4: {73.9, 65.5, 200, 7.45}, 8: {139.1, 128.7, 400, 8.60}} {
		for name, memory := range map[string]int64{"elixir-paper-40": 39 << 30, "elixir-paper-80": 79 << 30} {
			h, err := hardware.KnownRank(name, ranks)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Validate(); err != nil || h.Memory.Device != memory || h.Memory.Host != int64(896<<30)/int64(ranks) {
				t.Errorf("%s for %d: %v, %+v", name, ranks, err, h.Memory)
			}
			adam := func(s device.Stream, tier device.Tier) device.Call {
				p := operand(tier, graph.F32, 1, n30)
				return device.Call{Op: graph.AdamW, Stream: s, Args: []device.Operand{p, p, p, p, {}, {}, {}}}
			}
			up := copyUp(n30)
			down := up
			down.Args = []device.Operand{up.Args[1], up.Args[0]}
			gpu, host := adam(device.Compute, device.DeviceTier), adam(device.HostCompute, device.HostTier)
			for i, c := range []device.Call{up, down, gpu, host} {
				if got := float64(ranks) * n30 / 1e9 / h.Cost(&c); math.Abs(got-want[i]) > 2e-3*want[i] {
					t.Errorf("%s for %d: rate %d is %.3f, want %v", name, ranks, i, got, want[i])
				}
			}
		}
	}
}

// TestShare: ranks share the host, not the device; the shares add up to the machine.
func TestShare(t *testing.T) {
	whole, err := hardware.KnownRank("a100-80", 1)
	if err != nil || !reflect.DeepEqual(whole, known(t, "a100-80")) {
		t.Errorf("one rank of one: %v", err)
	}
	part, err := hardware.KnownRank("a100-80", 4)
	if err != nil {
		t.Fatal(err)
	}
	if part.Memory.Device != whole.Memory.Device || 4*part.Memory.Host != whole.Memory.Host || 4*part.Cores != whole.Cores {
		t.Errorf("%+v, %d cores", part.Memory, part.Cores)
	}
	for i, l := range part.Links {
		f := 1.0
		if l.From == device.DiskTier || l.To == device.DiskTier {
			f = 4
		}
		if w := whole.Links[i]; f*l.Bandwidth != w.Bandwidth {
			t.Errorf("link %v to %v: %v, %v of the machine", l.From, l.To, l.Bandwidth, w.Bandwidth)
		}
	}
	if host, all := part.Engine(device.HostCompute), whole.Engine(device.HostCompute); 4*host.Bandwidth != all.Bandwidth || 4*host.Peak.F32 != all.Peak.F32 {
		t.Errorf("host %+v of %+v", host, all)
	}
	if *part.Engine(device.Compute) != *whole.Engine(device.Compute) {
		t.Error("ranks share a device")
	}
	for _, n := range []int{0, -1} {
		if _, err := hardware.KnownRank("a100-80", n); err == nil {
			t.Errorf("%d ranks", n)
		}
	}
}

// TestBetween: rings of four A100s, by hand: 10 us and 235 GB/s.
func TestBetween(t *testing.T) {
	h := known(t, "a100-80")
	peers := []int{0, 1, 2, 3}
	all, part := operand(0, graph.BF16, 1, 4<<20), operand(0, graph.BF16, 1, 1<<20)
	step := 1e-5 + 2*(1<<20)/235e9 // one part to the next rank
	for _, c := range []struct {
		call device.Call
		want float64
	}{
		{device.Call{Op: graph.AllGather, Args: []device.Operand{all, part}, Peers: peers}, 3 * step},
		{device.Call{Op: graph.ReduceScatter, Args: []device.Operand{part, all}, Peers: peers}, 3 * step},
		{device.Call{Op: graph.AllReduce, Args: []device.Operand{all}, Peers: peers}, 6 * step},
		{device.Call{Op: graph.Send, Args: []device.Operand{part}, Peers: []int{3}}, step},
		{device.Call{Op: graph.AllGather, Args: []device.Operand{all, {}}, Peers: peers}, 3 * step},
	} {
		if got := h.Cost(&c.call); math.Abs(got-c.want) > 1e-9*c.want {
			t.Errorf("%v: %v s, want %v", c.call.Op, got, c.want)
		}
	}
	h.Links = h.Links[:2]
	alone := device.Call{Op: graph.AllReduce, Args: []device.Operand{all}, Peers: peers}
	if got := h.Cost(&alone); !math.IsInf(got, 1) {
		t.Errorf("without a link between ranks: %v", got)
	}
	two := alone
	two.Peers = peers[:2]
	if hardware.Key(&two) == hardware.Key(&alone) {
		t.Error("two ranks and four share a key")
	}
}

// TestMonotone: more work or a slower machine never costs less.
func TestMonotone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		fast := known(t, hardware.Names()[r.IntN(len(hardware.Names()))])
		slow := known(t, fast.Name)
		for i := range slow.Engines {
			slow.Engines[i].Peak.F32 *= r.Float64()
			slow.Engines[i].Bandwidth *= r.Float64()
		}
		for i := range slow.Links {
			slow.Links[i].Bandwidth *= r.Float64()
		}
		n, in, out := 1+r.IntN(2000), 1+r.IntN(2000), 1+r.IntN(2000)
		small, large := linear(graph.F32, n, in, out), linear(graph.F32, n+r.IntN(100), in, out+r.IntN(100))
		up, more := copyUp(2*n), copyUp(2*n+2*r.IntN(1<<20))
		if fast.Cost(&small) > fast.Cost(&large) || fast.Cost(&small) > slow.Cost(&small) ||
			fast.Cost(&up) > fast.Cost(&more) || fast.Cost(&up) > slow.Cost(&up) {
			t.Fatalf("%s: not monotone for %d x %d x %d", fast.Name, n, in, out)
		}
	}
}

// TestDeltaRate: the gated delta rule has its arithmetic in fp32 whatever the tokens are, so tensor cores make it no faster.
func TestDeltaRate(t *testing.T) {
	h := known(t, "h100")
	rule := func(d graph.DType) float64 {
		op := func(d graph.DType, cols int) device.Operand {
			return device.Operand{DType: d, Rows: 4096, Cols: cols, Stride: cols}
		}
		c := device.Call{Op: graph.DeltaRule, Attr: graph.Attr{Seq: 4096, Heads: 32, KVHeads: 16, HeadDim: 128},
			Args: []device.Operand{op(d, 4096), op(graph.F32, 32*64), op(d, 8192), op(graph.F32, 64), {}}}
		return h.Parts(&c).Arithmetic
	}
	if half, whole := rule(graph.BF16), rule(graph.F32); half != whole || half < 1e-4 {
		t.Errorf("%v s in bf16, %v s in fp32", half, whole)
	}
}

// TestMeasured: measured times win, and unmeasured calls of the same operator
// are off the roofline by the same factor.
func TestMeasured(t *testing.T) {
	h := known(t, "rtx4090")
	a, b, other := linear(graph.BF16, 512, 512, 512), linear(graph.BF16, 1024, 512, 512), linear(graph.F32, 512, 512, 512)
	before, fp32 := h.Cost(&b), h.Cost(&other)
	h.Add([]hardware.Measurement{{Call: a, Seconds: 3 * h.Cost(&a)}})
	if got := h.Cost(&b); math.Abs(got/before-3) > 1e-9 {
		t.Errorf("calibrated cost is %v of the roofline, want 3", got/before)
	}
	if h.Cost(&other) != fp32 {
		t.Error("another element type was calibrated too")
	}
	h.Add([]hardware.Measurement{{Call: a, Seconds: 42e-6}})
	if got := h.Cost(&a); got != 42e-6 {
		t.Errorf("measured cost is %v, want 42e-6", got)
	}
	if h.Launch(device.Compute) != 0 {
		t.Errorf("calls that followed none have %v s between them", h.Launch(device.Compute))
	}
	h.Add([]hardware.Measurement{{Call: a, Seconds: 42e-6, Runs: 3, Gap: 1e-6}, {Call: b, Seconds: 42e-6, Runs: 1, Gap: 5e-6}, {Call: other, Seconds: 1, Runs: 9}})
	if got := h.Launch(device.Compute); math.Abs(got-2e-6) > 1e-15 || h.Launch(device.HostCompute) != 0 || h.Launch(device.HostToDev) != 0 {
		t.Errorf("between calls are %v s, want 2e-6 on the stream that has them", got)
	}
	back, err := hardware.Parse(text(t, h))
	if err != nil || !reflect.DeepEqual(back, h) {
		t.Errorf("a calibrated machine does not parse back: %v", err)
	}
	if n := testing.AllocsPerRun(100, func() { h.Cost(&a) }); n != 0 {
		t.Errorf("%v allocations per look-up of a measured cost", n)
	}
}

// TestShortCopies: the time of a short copy calibrates only short ones, and that of a
// long copy long ones.
func TestShortCopies(t *testing.T) {
	h := known(t, "rtx4090")
	short, medium, long := copyUp(256), copyUp(16<<20), copyUp(256<<20)
	other := copyUp(512)
	before, tiny := h.Cost(&long), h.Cost(&other)
	h.Add([]hardware.Measurement{{Call: short, Seconds: h.Cost(&short) / 10}})
	if got := h.Cost(&other); math.Abs(got/tiny-0.1) > 1e-9 {
		t.Errorf("after a short copy in a tenth of the time another one takes %v of what it took", got/tiny)
	}
	if got := h.Cost(&long); got != before {
		t.Errorf("after a short copy in a tenth of the time a long one takes %v of what it took", got/before)
	}
	h.Add([]hardware.Measurement{{Call: short, Seconds: 1e-9}, {Call: medium, Seconds: 2 * h.Cost(&medium)}})
	if got := h.Cost(&long); math.Abs(got/before-2) > 1e-9 {
		t.Errorf("after one of 16 MiB in twice the time one of 256 MiB takes %v of what it took", got/before)
	}
}

// TestKey: the key changes with exactly the properties that change the time.
func TestKey(t *testing.T) {
	base := linear(graph.F32, 8, 16, 32)
	same := linear(graph.F32, 8, 16, 32)
	same.Args[0].Addr, same.Attr.Eps, same.Attr.Row0 = 4096, 1, 7
	if hardware.Key(&base) != hardware.Key(&same) {
		t.Errorf("%s and %s", hardware.Key(&base), hardware.Key(&same))
	}
	seen := map[string]string{}
	for name, change := range map[string]func(c *device.Call){
		"nothing": func(*device.Call) {}, "stream": func(c *device.Call) { c.Stream = device.HostCompute },
		"op": func(c *device.Call) { c.Op = graph.LinearDX }, "type": func(c *device.Call) { c.Args[1].DType = graph.BF16 },
		"rows": func(c *device.Call) { c.Args[0].Rows = 9 }, "cols": func(c *device.Call) { c.Args[0].Cols = 9 },
		"acc": func(c *device.Call) { c.Attr.Acc = true }, "wt": func(c *device.Call) { c.Attr.WT = true },
		"cut":    func(c *device.Call) { c.Attr.Cut = 32 },
		"absent": func(c *device.Call) { c.Args = append(c.Args, device.Operand{}) },
		"act":    func(c *device.Call) { c.Attr.Act = model.ReLU },
		"window": func(c *device.Call) { c.Attr.Heads, c.Attr.Window = 1, 9 },
		"among":  func(c *device.Call) { c.Attr.Heads, c.Attr.Among = 1, 9 },
		"copy":   func(c *device.Call) { *c = copyUp(64) },
		"down": func(c *device.Call) {
			*c = copyUp(64)
			c.Args[0], c.Args[1] = c.Args[1], c.Args[0]
		},
		"gaps": func(c *device.Call) {
			*c = copyUp(64)
			c.Args[0].Rows, c.Args[0].Cols = 2, 16
			c.Args[1].Rows, c.Args[1].Cols = 2, 16
		},
	} {
		c := linear(graph.F32, 8, 16, 32)
		change(&c)
		key := hardware.Key(&c)
		if twin, ok := seen[key]; ok {
			t.Errorf("%s and %s have the key %q", name, twin, key)
		}
		seen[key] = name
	}
}

// TestValidate: each impossible number is an error that names its field.
func TestValidate(t *testing.T) {
	for field, change := range map[string]func(h *hardware.Hardware){
		"cores":                 func(h *hardware.Hardware) { h.Cores = 0 },
		"memory.host":           func(h *hardware.Hardware) { h.Memory.Host = -1 },
		"memory.device":         func(h *hardware.Hardware) { h.Memory.Device = math.MaxInt64 },
		"engines":               func(h *hardware.Hardware) { h.Engines = nil },
		"engines[0].peak.f32":   func(h *hardware.Hardware) { h.Engines[0].Peak.F32 = 0 },
		"engines[0].peak.bf16":  func(h *hardware.Hardware) { h.Engines[0].Peak.BF16 = math.Inf(1) },
		"engines[0].matmul":     func(h *hardware.Hardware) { h.Engines[0].Matmul = 1.5 },
		"engines[1].attention":  func(h *hardware.Hardware) { h.Engines[1].Attention = math.NaN() },
		"engines[1].bandwidth":  func(h *hardware.Hardware) { h.Engines[1].Bandwidth = -3 },
		"engines[1].overhead":   func(h *hardware.Hardware) { h.Engines[1].Overhead = 60 },
		"engines[1].launch":     func(h *hardware.Hardware) { h.Engines[1].Launch = math.NaN() },
		"engines[1].stream":     func(h *hardware.Hardware) { h.Engines[1].Stream = device.Compute },
		"links[0].latency":      func(h *hardware.Hardware) { h.Links[0].Latency = -1 },
		"links[0].bandwidth":    func(h *hardware.Hardware) { h.Links[0].Bandwidth = 0 },
		"contention[0].factor":  func(h *hardware.Hardware) { h.Contention[0].Factor = -1 },
		"contention[1].by":      func(h *hardware.Hardware) { h.Contention[1] = h.Contention[0] },
		"links[1].to":           func(h *hardware.Hardware) { h.Links[1] = h.Links[0] },
		"links[0].curve[1]":     func(h *hardware.Hardware) { h.Links[0].Curve = []hardware.Point{{8, 1}, {8, 2}} },
		"links[0].curve[0].sec": func(h *hardware.Hardware) { h.Links[0].Curve = []hardware.Point{{8, 0}} },
		`times["x"]`:            func(h *hardware.Hardware) { h.Times = map[string]float64{"x": 0} },
		`factors["x"]`:          func(h *hardware.Hardware) { h.Factors = map[string]float64{"x": math.NaN()} },
	} {
		h := known(t, "a100-80")
		change(h)
		if err := h.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestCurve: interpolation passes through the points, rises, and continues with the bandwidth.
func TestCurve(t *testing.T) {
	l := hardware.Link{Bandwidth: 100, Latency: 1, Curve: []hardware.Point{{100, 2}, {200, 4}, {400, 5}}}
	for n, want := range map[int64]float64{0: 2, 100: 2, 150: 3, 200: 4, 300: 4.5, 400: 5, 600: 7} {
		if got := l.Seconds(n); got != want {
			t.Errorf("%d bytes: %v s, want %v", n, got, want)
		}
	}
}

// FuzzParse: what parses is valid and prints back to the same value.
func FuzzParse(f *testing.F) {
	h := known(f, "gh200")
	h.Links[0].Curve = []hardware.Point{{1, 1e-6}, {1 << 20, 1e-3}}
	f.Add(text(f, h))
	f.Add([]byte(`{"name":"x","cores":1e99}`))
	f.Add([]byte(`{}{}`))
	f.Add([]byte(`{"nmae":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := hardware.Parse(b)
		if err != nil {
			return
		}
		back, err := hardware.Parse(text(t, h))
		if err != nil || string(text(t, back)) != string(text(t, h)) {
			t.Fatalf("does not parse back: %v", err)
		}
	})
}

// TestProfile measures a small program on a virtual clock, where the times
// are known, and on the CPU.
func TestProfile(t *testing.T) {
	scalars := operand(device.DeviceTier, graph.F32, 1, graph.NumScalars)
	tokens, targets := operand(0, graph.I32, 64, 1), operand(0, graph.I32, 64, 1)
	x, wte, logits := operand(0, graph.F32, 64, 32), operand(0, graph.F32, 50, 32), operand(0, graph.F32, 64, 50)
	loss := operand(0, graph.F32, 64, 1)
	var at int64
	for _, o := range []*device.Operand{&scalars, &tokens, &targets, &x, &wte, &logits, &loss} {
		o.Addr = at
		at += 16384
	}
	disk, host := operand(device.DiskTier, graph.F32, 1, 2048), operand(device.HostTier, graph.F32, 1, 2048)
	calls := []device.Call{
		{Op: graph.Copy, Stream: device.DiskRead, Args: []device.Operand{host, disk}},
		{Op: graph.Embed, Attr: graph.Attr{Seq: 64}, Args: []device.Operand{x, tokens, wte}},
		{Op: graph.Linear, Attr: graph.Attr{WT: true}, Args: []device.Operand{logits, x, wte}},
		{Op: graph.CrossEntropy, Attr: graph.Attr{Grad: true}, Args: []device.Operand{loss, logits, targets, scalars}},
		{Op: graph.EmbedBwd, Attr: graph.Attr{Acc: true}, Args: []device.Operand{wte, x, tokens}},
		{Op: graph.Linear, Attr: graph.Attr{WT: true}, Args: []device.Operand{logits, x, wte}}, // a key seen before
	}
	seconds := func(c *device.Call) float64 { return float64(len(hardware.Key(c))) / 1000 }
	onCPU := cpu.New(cpu.Options{Workers: 2, DiskPath: filepath.Join(t.TempDir(), "disk")})
	defer onCPU.Close()
	for name, d := range map[string]device.Device{"null": null.New(seconds), "cpu": onCPU} {
		for tier := range device.NumTiers {
			if err := d.Reserve(tier, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		list, err := hardware.Profile(calls, d, 50*time.Millisecond)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(list) != len(calls)-1 {
			t.Errorf("%s: %d keys, want %d", name, len(list), len(calls)-1)
		}
		for i, m := range list {
			if m.Runs < 1 || hardware.Key(&m.Call) != hardware.Key(&calls[i]) {
				t.Errorf("%s: %d runs of %s", name, m.Runs, hardware.Key(&m.Call))
			}
			if m.Gap < 0 || m.Gap > 0 && (name == "null" || i == 0) {
				t.Errorf("%s: %v s before %s", name, m.Gap, hardware.Key(&m.Call))
			}
			if want := seconds(&m.Call); name == "null" && math.Abs(m.Seconds-want) > 1e-12 {
				t.Errorf("%s: %v s for %s, want %v", name, m.Seconds, hardware.Key(&m.Call), want)
			}
		}
	}
}

// TestProfileDocuments: attention is measured with documents of the length in its key,
// also for a slice that begins inside a document.
func TestProfileDocuments(t *testing.T) {
	attr := graph.Attr{Seq: 20, Document: 6, Heads: 1, KVHeads: 1, HeadDim: 4, Scale: 1}
	o, lse, q, kv, starts := operand(0, graph.F32, 5, 4), operand(0, graph.F32, 5, 1), operand(0, graph.F32, 5, 4), operand(0, graph.F32, 15, 8), operand(0, graph.I32, 5, 1)
	sinks := operand(0, graph.F32, 1, 1)
	for i, x := range []*device.Operand{&o, &lse, &q, &kv, &starts, &sinks} {
		x.Addr = int64(i) * 4096
	}
	d := cpu.New(cpu.Options{Workers: 1})
	defer d.Close()
	if err := d.Reserve(device.DeviceTier, 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := hardware.Profile([]device.Call{{Op: graph.Attention, Attr: attr, Args: []device.Operand{o, lse, q, kv, starts, sinks}}}, d, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	have := make([]byte, starts.Bytes())
	if err := d.Read(device.DeviceTier, starts.Addr, have); err != nil {
		t.Fatal(err)
	}
	for i, want := range []byte{6, 6, 12, 12, 12} { // of rows 10 to 14
		if have[4*i] != want {
			t.Errorf("starts are %v, that of row %d should be %d", have, i, want)
			break
		}
	}
}

// TestProbe probes machines whose numbers are known, since they are virtual:
// the measured description prices calls as the original does.
func TestProbe(t *testing.T) {
	for _, name := range []string{"rtx4090/pcie3", "h100"} {
		want := known(t, name)
		got, err := hardware.Probe(null.New(want.Cost), want.Memory)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []device.Call{copyUp(4096), copyUp(1 << 20), copyUp(1 << 28), linear(graph.F32, 2048, 2048, 2048)} {
			if r := got.Cost(&c) / want.Cost(&c); math.Abs(r-1) > 0.05 {
				t.Errorf("%s: %s costs %v of what it should", name, hardware.Key(&c), r)
			}
		}
	}
}

// card is a device that claims to be another.
type card struct {
	device.Device
	name string
}

func (c card) Info() device.Info { return device.Info{Name: c.name, Cores: 8} }

// TestProbeKnown: a known card's peak in bf16 is its maker's; predicted costs of calls do not change.
func TestProbeKnown(t *testing.T) {
	want := known(t, "h200")
	for name, peak := range map[string]float64{"NVIDIA H200": 989.4e12, "NVIDIA H2000": 0.78 * 989.4e12} {
		got, err := hardware.Probe(card{null.New(want.Cost), name}, want.Memory)
		if err != nil {
			t.Fatal(err)
		}
		if e := got.Engine(device.Compute); math.Abs(e.Peak.BF16/peak-1) > 0.05 {
			t.Errorf("%s: a peak of %v, want %v", name, e.Peak.BF16, peak)
		}
		for _, c := range []device.Call{linear(graph.BF16, 2048, 2048, 2048), linear(graph.F32, 2048, 2048, 2048)} {
			if r := got.Cost(&c) / want.Cost(&c); math.Abs(r-1) > 0.05 {
				t.Errorf("%s: %s costs %v of what it should", name, hardware.Key(&c), r)
			}
		}
	}
}

// TestProbeWide: a GPU is probed with calls large enough to keep all its processors busy, and with bf16
// attention as in training, which has its own kernels.
func TestProbeWide(t *testing.T) {
	const processors = 132
	want := known(t, "h200")
	cost := func(c *device.Call) float64 {
		overhead, blocks := want.Engine(device.Compute).Overhead, 0
		if c.Stream != device.Compute {
			return want.Cost(c)
		}
		switch y := c.Args[0]; c.Op {
		case graph.Linear, graph.LinearDX, graph.LinearDW:
			blocks = ((y.Rows + 127) / 128) * ((y.Cols + 255) / 256)
		case graph.Attention:
			blocks = (y.Rows + 127) / 128 * c.Attr.Heads
		default:
			return want.Cost(c)
		}
		seconds := want.Cost(c) - overhead
		if c.Op == graph.Attention && c.Args[0].DType == graph.F32 {
			seconds *= 10
		}
		return overhead + seconds/min(1, float64(blocks)/processors)
	}
	got, err := hardware.Probe(null.New(cost), want.Memory)
	if err != nil {
		t.Fatal(err)
	}
	heads := device.Call{Op: graph.Attention, Attr: graph.Attr{Seq: 4096, Heads: 32, KVHeads: 32, HeadDim: 128, Scale: 0.1}, Args: []device.Operand{
		operand(device.DeviceTier, graph.BF16, 8192, 4096), operand(device.DeviceTier, graph.F32, 8192, 32),
		operand(device.DeviceTier, graph.BF16, 8192, 4096), operand(device.DeviceTier, graph.BF16, 8192, 8192)}}
	for _, c := range []device.Call{linear(graph.BF16, 8192, 4096, 4096), linear(graph.F32, 8192, 4096, 4096), heads} {
		if r := got.Cost(&c) / cost(&c); math.Abs(r-1) > 0.1 {
			t.Errorf("%s costs %v of what it does", hardware.Key(&c), r)
		}
	}
}

// TestProbeCPU: probing this machine gives a valid description of all tiers.
func TestProbeCPU(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	memory, err := hardware.LocalMemory(filepath.Join(dir, "not", "yet", "there"), 0)
	if err != nil {
		t.Skip(err) // no /proc/meminfo here
	}
	memory.Disk = max(memory.Disk, hardware.ProbeBytes) // also where temporary files are kept in memory
	d := cpu.New(cpu.Options{DiskPath: filepath.Join(dir, "disk")})
	defer d.Close()
	h, err := hardware.Probe(d, memory)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Engines) != 2 || len(h.Links) != 4 || !memory.Shared {
		t.Errorf("%s", text(t, h))
	}
	t.Logf("%s", text(t, h))
}

// TestContention: the directions of a described bus slow each other down as its rates say, a throttle reduces
// this down to nothing, and none is measured on a device whose streams are independent.
func TestContention(t *testing.T) {
	h := known(t, "a100-80") // 25 GB/s up, 13 while it also goes down
	up, down := device.HostToDev, device.DevToHost
	if got, want := h.Slowdown(up, down), 25.0/13-1; math.Abs(got-want) > 1e-12 {
		t.Errorf("up while down: %v longer, want %v", got, want)
	}
	if h.Slowdown(device.Compute, up) != 0 || h.Slowdown(up, up) != 0 {
		t.Error("streams that share nothing feel each other")
	}
	for _, c := range []struct{ rate, want float64 }{{30e9, 25.0/13 - 1}, {20e9, 20.0/13 - 1}, {5e9, 0}} {
		slow := h.Share(1)
		slow.Throttle(device.HostTier, device.DeviceTier, c.rate)
		if got := slow.Slowdown(up, down); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("at %g bytes/s: %v longer, want %v", c.rate, got, c.want)
		}
		if got := slow.Link(device.HostTier, device.DeviceTier).Bandwidth; got != min(c.rate, 25e9) {
			t.Errorf("at %g bytes/s: the link passes %g", c.rate, got)
		}
		if slow.Slowdown(down, up) != h.Slowdown(down, up) {
			t.Error("the other way was throttled")
		}
	}
	probed, err := hardware.Probe(null.New(h.Cost), h.Memory)
	if err == nil {
		err = hardware.ProbeContention(null.New(h.Cost), probed)
	}
	if err != nil || len(probed.Contention) != 0 {
		t.Errorf("measured on virtual streams: %v (%v)", probed.Contention, err)
	}
}

// TestQuicker: calls on the quicker streams take less time by the factor, all others
// the same, and the original is unchanged.
func TestQuicker(t *testing.T) {
	h := known(t, "l4")
	h.Link(device.HostTier, device.DeviceTier).Curve = []hardware.Point{{1 << 10, 1e-5}, {1 << 20, 1e-4}}
	moved := func(s device.Stream, from, to device.Tier, n int) device.Call {
		return device.Call{Op: graph.Copy, Stream: s, Args: []device.Operand{operand(to, graph.F32, 1, n), operand(from, graph.F32, 1, n)}}
	}
	up := moved(device.HostToDev, device.HostTier, device.DeviceTier, 1<<20)
	down := moved(device.DevToHost, device.DeviceTier, device.HostTier, 1<<20)
	measured := moved(device.HostToDev, device.HostTier, device.DeviceTier, 1<<10)
	h.Times = map[string]float64{hardware.Key(&measured): 3e-5, hardware.Key(&down): 7e-5}
	q := h.Quicker(2, device.HostToDev)
	for _, c := range []device.Call{up, measured} {
		if was, is := h.Cost(&c), q.Cost(&c); math.Abs(is-was/2) > 1e-12 {
			t.Errorf("%s takes %g s, twice as quick %g", hardware.Key(&c), was, is)
		}
	}
	if h.Cost(&down) != q.Cost(&down) || h.Cost(&measured) != 3e-5 {
		t.Error("something else has changed")
	}
	if err := q.Validate(); err != nil {
		t.Error(err)
	}
}

// TestDriversNames: a card may be given by the driver's name for it.
func TestDriversNames(t *testing.T) {
	for driver, name := range map[string]string{"NVIDIA GeForce RTX 4060 Ti": "rtx4060ti", "NVIDIA L40S": "l40s", "NVIDIA L4": "l4", "nvidia rtx a6000": "a6000"} {
		if one, other := known(t, driver), known(t, name); one.Memory != other.Memory || one.Engines[0].Peak != other.Engines[0].Peak {
			t.Errorf("%s is not %s", driver, name)
		}
	}
}
