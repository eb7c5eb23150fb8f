package hardware

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// ProbeBytes is the size of each arena that Probe reserves.
const ProbeBytes = 64 << 20

// dutyLeast is the duty below which a stream is taken to need no core.
const dutyLeast = 1e-3

// beside is the most memory that is left for the rest of a process whose needs are not known.
const beside = 8 << 30

// LocalMemory returns the memory that this process may use with the CPU backend. The device and host tiers share the
// available memory, less what the process takes besides its arenas: process, or a tenth up to beside where that is 0;
// and less a 64th for what the system keeps for it, such as page tables. The disk tier is the free space at diskPath
// ("": none), less a tenth. Where files are kept in memory there is no disk tier: it would offer the same memory twice.
func LocalMemory(diskPath string, process int64) (Memory, error) {
	m, err := sysmem.Read()
	if err != nil {
		return Memory{}, err
	}
	if process == 0 {
		process = min(m.Available/10, beside)
	}
	arenas := max(0, m.Available-m.Available/64-process)
	mem := Memory{Device: arenas, Host: arenas, Shared: true, Process: process}
	if diskPath != "" && InMemory(diskPath) == "" {
		if mem.Disk, mem.WholeDisk, err = DiskSpace(diskPath); err != nil {
			return Memory{}, fmt.Errorf("free space at %s: %w", diskPath, err)
		}
		mem.Disk = mem.Disk / 10 * 9
	}
	return mem, nil
}

// Probe measures a newly opened device: it reserves ProbeBytes per tier and runs
// copies and operators for about a second. The device cannot be reused afterwards.
// The description contains memory unchanged; a tier of 0 bytes is not measured.
// ProbeContention measures how streams slow each other down.
func Probe(d device.Device, memory Memory) (*Hardware, error) {
	b := newBench(d, memory)
	h := &Hardware{Name: localName(d), Cores: d.Info().Cores, Memory: memory}
	var peak float64
	if i := d.Info(); i.Name == "cpu" && i.Host == "" { // for another host's cores, the rate of products is all that is known
		peak = best(gemm.Peak, h.Cores)
	}
	h.Engines = append(h.Engines, b.engine(device.Compute, device.DeviceTier, peak))
	if memory.Host > 0 {
		h.Engines = append(h.Engines, b.engine(device.HostCompute, device.HostTier, peak))
		h.Links = b.links(h.Links, device.HostTier, device.HostToDev, device.DeviceTier, device.DevToHost)
	}
	if memory.Disk > 0 && memory.Host > 0 {
		h.Links = b.links(h.Links, device.DiskTier, device.DiskRead, device.HostTier, device.DiskWrite)
	}
	worked := secondsWorked(d)
	h.Duties = duties(&b.spent, &worked)
	if b.err == nil {
		b.err = h.Validate()
	}
	if b.err != nil {
		return nil, fmt.Errorf("probe: %w", b.err)
	}
	return h, nil
}

// best returns the highest of several short measurements of a rate: other load on
// the machine can only lower it.
func best(rate func(cores int, total time.Duration) float64, cores int) (most float64) {
	for range 6 {
		most = max(most, rate(cores, 40*time.Millisecond))
	}
	return most
}

// bench runs calls and keeps the first error.
type bench struct {
	device device.Device
	spent  [device.NumStreams]float64 // seconds of calls
	err    error
}

// newBench reserves the arenas and fills those of the disk and the device. Unwritten
// blocks of a sparse file would not be read from the disk, and a GPU is faster on
// zeros, which draw less power.
func newBench(d device.Device, memory Memory) *bench {
	b := &bench{device: d}
	for tier, n := range memory.Tiers() {
		if n > 0 {
			b.keep(d.Reserve(device.Tier(tier), ProbeBytes))
		}
	}
	if memory.Device > 0 && b.err == nil {
		b.keep(write(d, device.DeviceTier, 0, ProbeBytes))
	}
	if memory.Disk > 0 && memory.Host > 0 && b.err == nil {
		b.keep(write(d, device.DiskTier, 0, ProbeBytes))
	}
	return b
}

func (b *bench) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

// seconds runs the calls together, several times, and returns the least time of
// each.
func (b *bench) seconds(calls ...device.Call) []float64 {
	const least, most, total = 5, 200, 40 * time.Millisecond
	best := make([]float64, len(calls))
	for i := range best {
		best[i] = math.Inf(1)
	}
	spans := make([]device.Span, len(calls))
	if b.err != nil {
		return best
	}
	first, err := b.device.Prepare(calls, spans)
	b.keep(err)
	start := time.Now()
	for n := 0; b.err == nil && (n < least || n < most && time.Since(start) < total); n++ {
		for i := range calls {
			b.device.Launch(first + i)
		}
		b.keep(b.device.Sync())
		for i, s := range spans {
			best[i] = min(best[i], max(s.End-s.Start, 1e-9))
			b.spent[calls[i].Stream] += s.End - s.Start
		}
	}
	return best
}

// secondsWorked returns for how long cores have worked for each stream of some devices, of those that report it.
func secondsWorked(devices ...device.Device) (sum [device.NumStreams]float64) {
	for _, d := range devices {
		if d, ok := d.(device.Meter); ok {
			stats := d.Stats()
			for s, seconds := range stats.Worked {
				sum[s] += seconds
			}
		}
	}
	return sum
}

// duties returns, per stream, the fraction of the seconds spent in calls in which cores worked.
func duties(spent, worked *[device.NumStreams]float64) (list []Duty) {
	for s := range device.NumStreams {
		if part := worked[s] / max(spent[s], 1e-9); part > dutyLeast {
			list = append(list, Duty{s, min(part, 1)})
		}
	}
	return list
}

// engine measures the operators of a stream on operands in a tier. Where matrix products exceed peak (f32; 0 if
// unknown), their rate is the peak. The bf16 peak is set so that bf16 products reach the same fraction of it:
// fast bf16 instructions may serve only some of the products, so their own peak would mislead. For a known GPU,
// the bf16 peak is its maker's, and the fp32 peak follows from it.
func (b *bench) engine(s device.Stream, tier device.Tier, peak float64) Engine {
	call := func(op graph.Op, t graph.DType, extents ...[2]int) device.Call {
		return device.Call{Op: op, Stream: s, Args: operands(tier, t, extents...)}
	}
	tiny := call(graph.Add, graph.F32, [2]int{1, 16}, [2]int{1, 16})
	e := Engine{Stream: s, Overhead: b.seconds(tiny)[0]}
	// rate is work per second beyond the overhead.
	rate := func(c device.Call, work func(graph.Op, *graph.Attr, []graph.Dim) int64) float64 {
		var dims []graph.Dim
		for _, o := range c.Args {
			dims = append(dims, o.Dim())
		}
		t := b.seconds(c)[0]
		return float64(work(c.Op, &c.Attr, dims)) / max(t-e.Overhead, t/10)
	}
	// Together the operands are larger than most caches.
	e.Bandwidth = rate(call(graph.Add, graph.F32, [2]int{1, 7 << 20}, [2]int{1, 7 << 20}), graph.Op.Bytes)
	// A GPU needs more work per call than cores do, and has a separate kernel for bf16
	// attention.
	tokens, weight := [2]int{512, 1024}, [2]int{1024, 1024}
	seq, heads, rows, kind := 256, 8, 512, graph.F32
	if s == device.Compute && b.device.Info().Name != "cpu" {
		tokens, weight = [2]int{2048, 2048}, [2]int{2048, 2048}
		seq, heads, rows, kind = 2048, 16, 4096, graph.BF16
	}
	product := func(t graph.DType) float64 { // mean rate over the three products of a step
		y := rate(call(graph.Linear, t, tokens, tokens, weight), graph.Op.FLOPs)
		dx := rate(call(graph.LinearDX, t, tokens, tokens, weight), graph.Op.FLOPs)
		sums := call(graph.LinearDW, t, [2]int{weight[0], 2 * weight[1]}, tokens, tokens)
		grad := &sums.Args[graph.LinearDWDW] // always fp32
		grad.DType, grad.Cols, grad.Stride = graph.F32, weight[1], weight[1]
		sums.Attr.Cut = graph.Cut(tokens[0], t)
		dw := rate(sums, graph.Op.FLOPs)
		return 3 / (1/y + 1/dx + 1/dw)
	}
	f32, bf16 := product(graph.F32), product(graph.BF16)
	width := 64 * heads
	attend := call(graph.Attention, kind, [2]int{rows, width}, [2]int{rows, 2 * heads}, [2]int{rows, width}, [2]int{rows, 2 * width})
	lse := &attend.Args[graph.AttentionLSE] // always fp32
	lse.DType, lse.Cols, lse.Stride = graph.F32, heads, heads
	attend.Attr = graph.Attr{Seq: seq, Heads: heads, KVHeads: heads, HeadDim: 64, Scale: 0.125}
	attention := rate(attend, graph.Op.FLOPs)
	e.Peak.F32 = max(peak, f32)
	e.Matmul = f32 / e.Peak.F32
	e.Peak.BF16 = bf16 / e.Matmul
	if n := nominal(b.device.Info().Name); s == device.Compute && n.BF16 > bf16 {
		e.Matmul = bf16 / n.BF16
		e.Peak = Rate{F32: f32 / e.Matmul, BF16: n.BF16, FP8: n.FP8}
	}
	if e.Attention = attention / e.Peak.F32; kind == graph.BF16 {
		e.Attention = attention / e.Peak.BF16
	}
	e.Attention = min(e.Attention, 1)
	return e
}

// operands lays out matrices one after the other.
func operands(t device.Tier, d graph.DType, extents ...[2]int) []device.Operand {
	var list []device.Operand
	var next int64
	for _, x := range extents {
		o := device.Operand{Tier: t, DType: d, Addr: next, Rows: x[0], Cols: x[1], Stride: x[1]}
		next = (o.End() + 4095) &^ 4095
		list = append(list, o)
	}
	return list
}

// links measures both directions between two tiers.
func (b *bench) links(list []Link, a device.Tier, there device.Stream, z device.Tier, back device.Stream) []Link {
	to := func(n int64) device.Call { return copied(there, a, z, 0, n) }
	from := func(n int64) device.Call { return copied(back, z, a, ProbeBytes/2, n) }
	const large = ProbeBytes / 2
	for i, call := range []func(int64) device.Call{to, from} {
		l := Link{From: a, To: z}
		if i == 1 {
			l.From, l.To = z, a
		}
		var last float64
		for n := int64(4096); n <= large; n *= 8 {
			last = max(last, b.seconds(call(n))[0]) // times never fall with size
			l.Curve = append(l.Curve, Point{n, last})
		}
		p, q := l.Curve[0], l.Curve[len(l.Curve)-1]
		l.Bandwidth = float64(q.Bytes) / q.Seconds
		l.Latency = max(p.Seconds-float64(p.Bytes)/l.Bandwidth, 0)
		list = append(list, l)
	}
	return list
}

// copied returns a copy of n bytes from one tier to the same address of another.
func copied(s device.Stream, from, to device.Tier, at, n int64) device.Call {
	on := func(t device.Tier) device.Operand {
		return device.Operand{Tier: t, DType: graph.F32, Addr: at, Rows: 1, Cols: int(n / 4), Stride: int(n / 4)}
	}
	return device.Call{Op: graph.Copy, Stream: s, Args: []device.Operand{on(to), on(from)}}
}

// localName returns a device's name; for the CPU backend it describes the processor.
func localName(d device.Device) string {
	name := d.Info().Name
	if at := d.Info().Host; at != "" {
		return name + " of " + at
	}
	if name != "cpu" {
		return name
	}
	return fmt.Sprintf("%s, %d cores, %s", Processor(), d.Info().Cores, runtime.GOARCH)
}
