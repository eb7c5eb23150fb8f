package hardware

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
)

// Measurement is the time of one kind of call.
type Measurement struct {
	Call    device.Call // one call of the kind
	Seconds float64     // mean, outliers clipped
	Runs    int
	// Gap is the mean seconds, outliers clipped, since the end of the previous call
	// launched on its stream; 0: it never followed one.
	Gap float64
}

// Limits for a key. A key that has not run at all runs once even if the budget is
// spent, since a guess would cost more than it saves.
const (
	enoughRuns = 3    // a key is done after this many runs
	enoughTime = 0.02 // that took this many seconds,
	mostRuns   = 50   // or after this many
	perPass    = 3    // runs of a key in one pass over the program
	// Passes over the whole program, if it is small.
	wholePasses = 8
	// Calls launched between two synchronisations.
	batchCalls = 64
)

// Profile measures every distinct Key of the calls on a device whose arenas are
// reserved. It skips calls between ranks, which one device cannot run alone (see
// ProbePeers). It overwrites the arenas.
//
// Calls run in program order, each right after the previous one on its stream, so
// that it finds caches and cores as its predecessor leaves them. One call repeated
// would find its operands in the cache, unlike in a step, and cores fall asleep in
// pauses. Passes over the program continue until every key has run often enough or
// the budget is spent.
func Profile(calls []device.Call, d device.Device, budget time.Duration) ([]Measurement, error) {
	calls = slices.DeleteFunc(slices.Clone(calls), func(c device.Call) bool { return c.Op.Info().Between })
	spans := make([]device.Span, len(calls))
	first, err := d.Prepare(updating(calls), spans)
	if err != nil {
		return nil, err
	}
	if err := fill(calls, d); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	p := profile{index: map[string]int{}}
	p.group(calls)
	start := time.Now()
	for {
		err := p.run(calls, d, first, spans, func(k *kind) bool {
			return !k.enough() && k.pass < perPass && (k.runs == 0 || time.Since(start) < budget)
		})
		if err != nil {
			return nil, err
		}
		more := false
		for i := range p.kinds {
			p.kinds[i].pass = 0
			more = more || !p.kinds[i].enough()
		}
		if !more || time.Since(start) > budget {
			break
		}
	}
	if p.pass(calls) < budget.Seconds()/wholePasses {
		if err := p.whole(calls, d, first, spans); err != nil {
			return nil, err
		}
	}
	return p.measurements(calls), nil
}

// updating returns the calls without the norm's say in updates: the norm of arbitrary
// numbers may be none, and an update that it forbids takes no time.
func updating(calls []device.Call) []device.Call {
	const clip = 4
	list := slices.Clone(calls)
	for i := range list {
		if list[i].Op == graph.AdamW {
			list[i].Args = slices.Clone(list[i].Args)
			list[i].Args[clip] = device.Operand{}
		}
	}
	return list
}

// pass returns the seconds of one pass over the program, from the measured times.
func (p *profile) pass(calls []device.Call) (seconds float64) {
	for i := range calls {
		seconds += p.kinds[p.of[i]].seconds()
	}
	return seconds
}

// whole replaces the measurements by those of passes over the whole program. Earlier
// passes skipped calls already measured, so the others found more of their operands
// in the caches than in a step.
func (p *profile) whole(calls []device.Call, d device.Device, first int, spans []device.Span) error {
	for i := range p.kinds {
		p.kinds[i].times, p.kinds[i].gaps = nil, nil
	}
	for range wholePasses {
		if err := p.run(calls, d, first, spans, func(*kind) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// run makes one pass over the program and runs the calls whose kinds are wanted, in
// batches of batchCalls: one stream after another, each without a pause. A call with
// indices begins a batch and the device's operators run first, so that no copy
// overwrites the indices before they are read.
func (p *profile) run(calls []device.Call, d device.Device, first int, spans []device.Span, want func(*kind) bool) error {
	var batch []int
	flush := func() error {
		for s := range device.NumStreams {
			for _, i := range batch {
				if calls[i].Stream == s {
					d.Launch(first + i)
				}
			}
			if err := d.Sync(); err != nil {
				return fmt.Errorf("profile: %w", err)
			}
		}
		var before [device.NumStreams]*device.Span
		for _, i := range batch {
			k, row := &p.kinds[p.of[i]], &before[calls[i].Stream]
			k.add(spans[i].End - spans[i].Start)
			if *row != nil {
				k.gaps = append(k.gaps, spans[i].Start-(*row).End)
			}
			*row = &spans[i]
		}
		batch = batch[:0]
		return nil
	}
	for i := range calls {
		k := &p.kinds[p.of[i]]
		if !want(k) {
			continue
		}
		k.pass++
		k.runs++
		if len(batch) == batchCalls || hasIndices(&calls[i]) {
			if err := flush(); err != nil {
				return err
			}
			// Other calls may have overwritten the indices.
			if err := fillIndices(&calls[i], d); err != nil {
				return fmt.Errorf("profile: %w", err)
			}
		}
		batch = append(batch, i)
	}
	return flush()
}

// profile groups calls by key.
type profile struct {
	index map[string]int // key to kind
	of    []int          // kind of a call
	kinds []kind
}

// kind is the state of one key.
type kind struct {
	call  int // the first call of the kind
	times []float64
	gaps  []float64 // seconds before runs that followed another
	sum   float64
	runs  int
	pass  int // runs in this pass
}

func (p *profile) group(calls []device.Call) {
	for i := range calls {
		key := Key(&calls[i])
		k, ok := p.index[key]
		if !ok {
			k = len(p.kinds)
			p.index[key] = k
			p.kinds = append(p.kinds, kind{call: i})
		}
		p.of = append(p.of, k)
	}
}

func (k *kind) enough() bool {
	return len(k.times) >= enoughRuns && k.sum >= enoughTime || len(k.times) >= mostRuns
}

func (k *kind) add(seconds float64) {
	k.times = append(k.times, seconds)
	k.sum += seconds
}

// outlier is the multiple of the median to which longer times are clipped.
const outlier = 3

// seconds returns the mean time of a run of the kind. A step is a sum of many runs, and
// disturbances only lengthen them, so a sum of medians would be too low.
func (k *kind) seconds() float64 { return stat.Mean(k.times, outlier) }

func (p *profile) measurements(calls []device.Call) []Measurement {
	var list []Measurement
	for i := range p.kinds {
		k := &p.kinds[i]
		// At least a nanosecond, even if the clock did not advance.
		m := Measurement{Call: calls[k.call], Seconds: max(k.seconds(), 1e-9), Runs: len(k.times)}
		if len(k.gaps) > 0 {
			m.Gap = stat.Mean(k.gaps, outlier)
		}
		list = append(list, m)
	}
	return list
}

// fill writes numbers into all operands that kernels process at their usual speed.
// On disk it writes only what is read: unwritten blocks of a sparse file would not be
// read from the disk.
func fill(calls []device.Call, d device.Device) error {
	var end [device.NumTiers]int64
	for i := range calls {
		for k, o := range calls[i].Args {
			if o.Tier != device.DiskTier {
				end[o.Tier] = max(end[o.Tier], o.End())
			} else if k > 0 && !o.Absent() {
				if err := write(d, o.Tier, o.Addr, o.End()); err != nil {
					return err
				}
			}
		}
	}
	for tier, n := range end {
		if err := write(d, device.Tier(tier), 0, n); err != nil {
			return err
		}
	}
	return nil
}

// write fills bytes lo to hi with bf16 numbers of absolute value 0.01 to 0.2. Read as
// f32, pairs of them are such numbers too.
func write(d device.Device, tier device.Tier, lo, hi int64) error {
	const period, largest = 1 << 20, 16 << 20 // large writes to a GPU are much faster than many small ones
	piece := make([]byte, min(hi-lo+1, largest)&^1)
	r := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < min(len(piece), period); i += 2 {
		const least, most = 0x3C24, 0x3E4D
		binary.LittleEndian.PutUint16(piece[i:], uint16(least+r.IntN(most-least))|uint16(r.IntN(2)<<15))
	}
	for n := period; n < len(piece); n *= 2 {
		copy(piece[n:], piece[:n])
	}
	for at := lo; at < hi; at += int64(len(piece)) {
		if err := d.Write(tier, at, piece[:min(hi-at, int64(len(piece)))]); err != nil {
			return err
		}
	}
	return nil
}

// hasIndices reports whether a call has operands that fillIndices fills.
func hasIndices(c *device.Call) bool {
	switch c.Op {
	case graph.Embed, graph.EmbedBwd, graph.CrossEntropy, graph.ExpertLinear, graph.ExpertDW, graph.ExpertDB, graph.RouteBwd:
		return true
	}
	return c.Attr.Document > 0
}

// fillIndices writes values in range into a call's token and target operands, and
// starts of documents of length Attr.Document for attention.
func fillIndices(c *device.Call, d device.Device) error {
	if c.Attr.Document > 0 {
		return fillStarts(c, d)
	}
	var o device.Operand
	var limit int
	switch c.Op {
	case graph.Embed:
		o, limit = c.Args[1], c.Args[2].Rows
	case graph.EmbedBwd:
		o, limit = c.Args[2], c.Args[0].Rows
	case graph.CrossEntropy:
		o, limit = c.Args[2], c.Args[1].Cols
	case graph.ExpertLinear, graph.ExpertDW:
		return fillExperts(c.Args[3], c.Attr.Experts, d)
	case graph.ExpertDB:
		return fillExperts(c.Args[2], c.Attr.Experts, d)
	case graph.RouteBwd:
		return fillExperts(c.Args[3], c.Args[4].Cols, d)
	default:
		return nil
	}
	r := rand.New(rand.NewPCG(2, 2))
	b := make([]byte, o.End()-o.Addr)
	for i := 0; i+4 <= len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], uint32(r.IntN(limit)))
	}
	return d.Write(o.Tier, o.Addr, b)
}

// fillExperts writes experts of tokens, each token's different, all equally often.
func fillExperts(o device.Operand, experts int, d device.Device) error {
	b := make([]byte, 0, o.Bytes())
	for n := range o.Rows * o.Cols {
		b = binary.LittleEndian.AppendUint32(b, uint32(n%experts))
	}
	return d.Write(o.Tier, o.Addr, b)
}

// fillStarts writes the starts of documents that begin at multiples of their length in
// each sequence. The queries are the last rows of those that the keys have.
func fillStarts(c *device.Call, d device.Device) error {
	a, keys := &c.Attr, 0
	var o device.Operand
	for _, other := range c.Args {
		keys = max(keys, other.Rows)
		if other.DType == graph.I32 {
			o = other
		}
	}
	b := make([]byte, 0, o.Bytes())
	for row := keys - o.Rows; row < keys; row++ {
		at := row % a.Seq
		b = binary.LittleEndian.AppendUint32(b, uint32(at-at%a.Document))
	}
	return d.Write(o.Tier, o.Addr, b)
}
