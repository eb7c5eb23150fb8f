package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/model"
)

// Operators are benchmarked as a run executes them: as calls on a CPU device whose
// arena has huge pages. The best possible time follows from what the machine
// achieves at the same moment, since cores are shared and clocks vary:
//
//	bound = max(FLOPs / multiply-adds in registers, bytes / memory bandwidth)
//
// The reported fraction is bound / seconds. Example: a product of 1024 x 768 x 768
// is 1.2 GFLOP; at 234 GFLOP/s its bound is 5.2 ms, so 5.7 ms are 91 %.
// Memory-bound operators cycle through copies of their operands that together
// exceed the caches. Known weakness: the bound counts the bytes of a perfect cache,
// which no large product reaches (but those are bound by arithmetic).

// Peaks is the best throughput of a number of cores.
type Peaks struct {
	Cores int     `json:"cores"`
	F32   float64 `json:"f32_flops"`  // fused multiply-adds, FLOP/s
	BF16  float64 `json:"bf16_flops"` // products of bf16 with fp32 sums, FLOP/s
	Read  float64 `json:"read_bytes"` // bytes/s, when only reading, or read by adding in place
	// Moved is the better of copying and of adding to memory in place, bytes/s read
	// and written. Copies may be slower: plain stores first read what they
	// overwrite.
	Moved float64 `json:"moved_bytes"`
	Copy  float64 `json:"copy_bytes"`
}

// Rate is the measured speed of one operator.
type Rate struct {
	Op       string  `json:"op"`
	Shape    string  `json:"shape"`
	Type     string  `json:"type"` // of activations and weights
	Cores    int     `json:"cores"`
	Seconds  float64 `json:"seconds"` // the best of the calls
	GFLOPS   float64 `json:"gflops"`
	GBS      float64 `json:"gbytes"`
	Fraction float64 `json:"fraction"` // of the bound, which follows from the peaks at the same moments
	Memory   bool    `json:"memory"`   // the bound is memory bandwidth
}

// Operators measures operators on a number of cores.
type Operators struct {
	Peaks  Peaks // the best so far
	device *cpu.Device
	arena  int64  // bytes for operands; the indices follow them
	copy   calls  // y = max(0, x), larger than the caches
	add    calls  // y += x
	read   calls  // sum of squares of x
	piece  []byte // content of operands
}

const (
	arenaBytes = 640 << 20
	indexBytes = 8192      // of tokens or targets, and as many of experts, after the operands
	coldBytes  = 256 << 20 // of operands, so that they are not in the cache
	cacheBytes = 128 << 20 // per operand of the bandwidth's measurement
)

// MeasurePeaks measures the peaks of a number of cores. Meanwhile it takes a few
// hundred MiB of memory.
func MeasurePeaks(cores int) (Peaks, error) {
	b, err := newOperators(cores, 2*cacheBytes+cacheBytes/64)
	if err != nil {
		return Peaks{}, err
	}
	return b.Peaks, b.Close()
}

// NewOperators opens a device with the given number of cores and measures the peaks.
// Close it after use.
func NewOperators(cores int) (*Operators, error) { return newOperators(cores, arenaBytes) }

func newOperators(cores int, arena int64) (b *Operators, err error) {
	b = &Operators{arena: arena, Peaks: Peaks{Cores: cores}, device: cpu.New(cpu.Options{Workers: cores}), piece: content()}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if err := b.device.Reserve(device.DeviceTier, arena+2*indexBytes); err != nil {
		return nil, err
	}
	if err := b.device.Write(device.DeviceTier, arena, indices()); err != nil {
		return nil, err
	}
	const n = cacheBytes / 4
	x := graph.Dim{Rows: 1, Cols: n}
	for to, c := range map[*calls]*Case{
		&b.read: {op: graph.NormPart, dims: []graph.Dim{{DType: graph.F64, Rows: 1, Cols: graph.NormPieces(n)}, x}},
		&b.copy: {op: graph.Act, attr: graph.Attr{Act: model.ReLU}, dims: []graph.Dim{x, x}},
		&b.add:  {op: graph.Add, dims: []graph.Dim{x, x}},
	} {
		if *to, err = b.prepare(c, 1); err != nil {
			return nil, err
		}
	}
	for range 8 {
		b.Peaks.Arithmetic(10 * time.Millisecond)
		if err := b.Bandwidth(); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Close closes the device.
func (b *Operators) Close() error { return b.device.Close() }

// fill writes small positive numbers to the first bytes of the arena: a bf16
// pattern that also gives such numbers when read as f32.
func (b *Operators) fill(bytes int64) error {
	for at := int64(0); at < bytes; at += int64(len(b.piece)) {
		if err := b.device.Write(device.DeviceTier, at, b.piece[:min(int64(len(b.piece)), bytes-at)]); err != nil {
			return err
		}
	}
	return nil
}

// content returns the pattern that fill writes.
func content() []byte {
	piece := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < len(piece); i += 2 {
		const least, most = 0x3C24, 0x3E4D // 0.01 and 0.2
		binary.LittleEndian.PutUint16(piece[i:], uint16(least+r.IntN(most-least)))
	}
	return piece
}

// indices returns tokens or targets, numbers below every vocabulary used here, followed by
// experts, all equally often.
func indices() []byte {
	r := rand.New(rand.NewPCG(2, 2))
	var text []byte
	for range indexBytes / 4 {
		text = binary.LittleEndian.AppendUint32(text, uint32(r.IntN(gpt2Vocab)))
	}
	for n := range indexBytes / 4 {
		text = binary.LittleEndian.AppendUint32(text, uint32(n%benchExperts))
	}
	return text
}

// Arithmetic measures multiply-adds in registers again, for about the given time
// per type, and keeps the best result.
func (p *Peaks) Arithmetic(total time.Duration) {
	p.F32 = max(p.F32, gemm.Peak(p.Cores, total))
	p.BF16 = max(p.BF16, gemm.PeakBF16(p.Cores, total))
}

// Bandwidth measures again how fast memory is read, copied and added to, and keeps
// the best result in Peaks.
func (b *Operators) Bandwidth() error {
	read, err1 := b.read.run(b.device)
	copied, err2 := b.copy.run(b.device)
	added, err3 := b.add.run(b.device)
	b.Peaks.Read = max(b.Peaks.Read, cacheBytes/read, 2*cacheBytes/added)
	b.Peaks.Copy = max(b.Peaks.Copy, 2*cacheBytes/copied)
	b.Peaks.Moved = max(b.Peaks.Moved, b.Peaks.Copy, 3*cacheBytes/added)
	return errors.Join(err1, err2, err3)
}

// calls are copies of one call, each with its own operands, run in turn.
type calls struct {
	first int
	spans []device.Span
	next  int
}

// run executes the next of the calls and returns its seconds.
func (c *calls) run(d device.Device) (float64, error) {
	d.Launch(c.first + c.next)
	err := d.Sync()
	s := c.spans[c.next]
	c.next = (c.next + 1) % len(c.spans)
	return max(s.End-s.Start, 1e-9), err
}

// prepare lays out n copies of a call's operands. Index operands (tokens, targets,
// experts) are shared.
func (b *Operators) prepare(c *Case, n int) (calls, error) {
	list := make([]device.Call, n)
	var next int64
	for i := range list {
		list[i] = device.Call{Op: c.op, Attr: c.attr, Stream: device.Compute}
		for _, d := range c.dims {
			o := device.Operand{Tier: device.DeviceTier, DType: d.DType, Addr: next, Rows: d.Rows, Cols: d.Cols, Stride: d.Cols}
			switch {
			case d.DType == graph.I32 && d.Cols == benchSlots:
				o.Addr = b.arena + indexBytes
			case d.DType == graph.I32:
				o.Addr = b.arena
			default:
				next = (next + d.Bytes() + 4095) &^ 4095
			}
			list[i].Args = append(list[i].Args, o)
		}
	}
	// Overwrite what earlier calls left there.
	if err := b.fill(min(next, b.arena)); err != nil {
		return calls{}, err
	}
	spans := make([]device.Span, n)
	first, err := b.device.Prepare(list, spans)
	return calls{first: first, spans: spans}, err
}

// Run measures an operator for about the given time, alternating with the peak that
// bounds it.
func (b *Operators) Run(c *Case, budget time.Duration) (Rate, error) {
	r := Rate{Op: c.op.String(), Shape: c.shape(), Type: c.storage().String(), Cores: b.Peaks.Cores}
	flops, bytes := c.op.FLOPs(&c.attr, c.dims), c.op.Bytes(&c.attr, c.dims)
	_, r.Memory = b.Peaks.bound(c.op, &c.attr, c.dims)
	copies := 1
	if r.Memory {
		copies = int(max(1, min(coldBytes/max(bytes, 1), b.arena/c.bytes(), 64)))
	}
	run, err := b.prepare(c, copies)
	if err != nil {
		return r, fmt.Errorf("%s %s: %w", r.Op, r.Shape, err)
	}
	const least = 3
	own := b.Peaks // at these moments
	if !r.Memory {
		own.F32, own.BF16 = 0, 0
	}
	r.Seconds = math.Inf(1)
	for n, start := 0, time.Now(); n < least || time.Since(start) < budget; n++ {
		for turn := time.Now(); ; {
			seconds, err := run.run(b.device)
			if err != nil {
				return r, fmt.Errorf("%s %s: %w", r.Op, r.Shape, err)
			}
			r.Seconds = min(r.Seconds, seconds)
			if time.Since(turn) > budget/20 {
				break
			}
		}
		if !r.Memory {
			own.Arithmetic(budget / 50)
		} else if err := b.Bandwidth(); err != nil {
			return r, err
		}
	}
	if r.Memory {
		own = b.Peaks
	} else {
		b.Peaks.F32, b.Peaks.BF16 = max(b.Peaks.F32, own.F32), max(b.Peaks.BF16, own.BF16)
	}
	bound, _ := own.bound(c.op, &c.attr, c.dims)
	r.GFLOPS, r.GBS, r.Fraction = float64(flops)/r.Seconds/1e9, float64(bytes)/r.Seconds/1e9, bound/r.Seconds
	return r, nil
}

// bound returns the least seconds that a call can take, and whether memory is what
// bounds it.
func (p *Peaks) bound(op graph.Op, a *graph.Attr, d []graph.Dim) (seconds float64, memory bool) {
	peak := p.F32
	var written, all int64
	for i, arg := range op.Info().Args {
		if i >= len(d) || d[i].Absent() {
			continue
		}
		if d[i].DType == graph.BF16 {
			peak = p.BF16
		}
		all += d[i].Bytes()
		if arg.Access != graph.Read {
			written += d[i].Bytes()
		}
	}
	bandwidth := p.Moved
	if written < all/8 {
		bandwidth = p.Read
	}
	arithmetic, traffic := float64(op.FLOPs(a, d))/peak, float64(op.Bytes(a, d))/bandwidth
	return max(arithmetic, traffic), traffic > arithmetic
}
