package hardware

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/optimizer"
)

// Measurement is the time of one kind of call.
type Measurement struct {
	Call    device.Call // one call of the kind
	Seconds float64     // mean, outliers clipped
	Whole   float64     // mean of all, as they were
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
	perPass    = 3    // runs of a key in one pass over parts of the program
	// Passes over the whole program, if it is small, preceded by at most as many that do not count, until the
	// machine has been busy for the settling time.
	wholePasses = 8
	settling    = 500 * time.Millisecond
	// Calls launched between two synchronisations, in general and in the first pass, which must be able to end
	// early.
	batchCalls = 64
	firstCalls = 8
)

// Profile measures every distinct Key of the calls on a device whose arenas are
// reserved. It skips calls between ranks, which one device cannot run alone (see
// ProbePeers). It overwrites the arenas.
//
// It measures the machine in the state in which a step runs. That differs in three ways from repeating one
// call. Caches and cores are as the previous call leaves them; a repeated call would find its operands in the
// cache, and cores fall asleep in pauses. A GPU that reaches its power limit lowers its clock within a fraction
// of a second. And power depends on the numbers: those whose bits rarely differ, like zeros or NaN, need so
// much less that an H200 multiplies matrices of them 14 to 22 % faster than a step's. So calls run in program
// order, each right after the previous one on its stream, for seconds, and on numbers that the preceding calls
// have computed from ordinary ones.
//
//	pass 1                               runs every call, which shows how long a pass takes
//	if all pass in 1.5 times the budget  passes until settled, then 2 to 8 that count
//	else                                 passes over the keys that did not run often enough
//
// Known weakness: in the last case, and where another rank would send the operands, calls find in their
// operands' memory what other calls left there, in which halves of f32 numbers, read as bf16, are occasionally
// NaN. As a result, 20 layers of Llama-3-8B, a step of 2.8 s within 24 GB of an H200, were predicted 10 % too
// fast; 8 layers, timed in whole passes, 2 %.
func Profile(calls []device.Call, d device.Device, budget time.Duration) ([]Measurement, error) {
	calls = slices.DeleteFunc(slices.Clone(calls), func(c device.Call) bool { return c.Op.Info().Between })
	p := profile{calls: calls, device: d, spans: make([]device.Span, len(calls)), index: map[string]int{}}
	var err error
	if p.first, err = d.Prepare(updating(calls), p.spans); err != nil {
		return nil, err
	}
	if err := fill(calls, d); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	p.group()
	start := time.Now()
	complete := true
	err = p.run(firstCalls, func(*kind) bool {
		complete = complete && time.Since(start) < budget+budget/2
		return complete
	})
	if err != nil {
		return nil, err
	}
	if complete {
		err = p.measurePasses(start, budget)
	} else {
		err = p.parts(budget)
	}
	return p.measurements(), err
}

// measurePasses measures in passes over the whole program. The times of earlier ones, until the machine has settled,
// are dropped.
func (p *profile) measurePasses(start time.Time, budget time.Duration) error {
	every := func(*kind) bool { return true }
	for n := 0; n < wholePasses && time.Since(start) < settling; n++ {
		if err := p.run(batchCalls, every); err != nil {
			return err
		}
	}
	passes := min(max(int(budget.Seconds()/max(p.pass(), 1e-9)), 2), wholePasses)
	for i := range p.kinds {
		p.kinds[i].times, p.kinds[i].gaps = nil, nil
	}
	for range passes {
		if err := p.run(batchCalls, every); err != nil {
			return err
		}
	}
	return nil
}

// parts runs keys that have not run often enough, until all have or the budget is
// spent.
func (p *profile) parts(budget time.Duration) error {
	start := time.Now()
	for {
		err := p.run(batchCalls, func(k *kind) bool {
			return !k.enough() && k.pass < perPass && (k.runs == 0 || time.Since(start) < budget)
		})
		if err != nil || time.Since(start) > budget || !slices.ContainsFunc(p.kinds, func(k kind) bool { return !k.enough() }) {
			return err
		}
	}
}

// updating returns the calls with updates changed so that they take place and keep numbers ordinary. The norm
// of arbitrary numbers may not be a number, and an update that it forbids takes no time. Nor are arbitrary
// numbers variances: the root of a negative one is NaN, and a pass later all numbers are.
func updating(calls []device.Call) []device.Call {
	list := slices.Clone(calls)
	for i := range list {
		c := &list[i]
		if rule := optimizer.Updating(c.Op); rule != nil {
			c.Args = slices.Clone(c.Args)
			c.Args[rule.ClipAt()] = device.Operand{}
			c.Attr.Beta1, c.Attr.Beta2, c.Attr.Eps = 0, 0, 1e-8 // the moments become those of the gradient
		}
	}
	return list
}

// pass returns the seconds of one pass over the program, from the measured times.
func (p *profile) pass() (seconds float64) {
	for _, k := range p.of {
		seconds += p.kinds[k].seconds()
	}
	return seconds
}

// run makes one pass over the program and runs the calls whose kinds are wanted, in batches of at most the
// given size: one stream after another, each without a pause. A batch also ends before a call that depends on
// one of another stream in it, so that all calls read what they would read in a step. A call with indices
// begins a batch and the device's operators run first, so that no copy overwrites the indices before they are
// read.
func (p *profile) run(most int, want func(*kind) bool) error {
	for i := range p.kinds {
		p.kinds[i].pass = 0
	}
	if err := fillScalars(p.calls, p.device); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	var batch []int
	for i := range p.calls {
		c, k := &p.calls[i], &p.kinds[p.of[i]]
		if !want(k) {
			continue
		}
		k.pass++
		k.runs++
		indices := hasIndices(c)
		if indices || len(batch) >= most || slices.ContainsFunc(batch, func(b int) bool { return depends(c, &p.calls[b]) }) {
			if err := p.flush(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
		if indices { // other calls may have overwritten them
			if err := fillIndices(c, p.device); err != nil {
				return fmt.Errorf("profile: %w", err)
			}
		}
		batch = append(batch, i)
	}
	return p.flush(batch)
}

// depends reports whether two calls of different streams must keep their order.
func depends(a, b *device.Call) bool {
	if a.Stream == b.Stream {
		return false
	}
	as, bs := a.Op.Info().Args, b.Op.Info().Args
	for i, x := range a.Args {
		for j, y := range b.Args {
			if x.Tier == y.Tier && x.Addr < y.End() && y.Addr < x.End() && (as[i].Access != graph.Read || bs[j].Access != graph.Read) {
				return true
			}
		}
	}
	return false
}

// flush runs a batch of calls and records their times.
func (p *profile) flush(batch []int) error {
	for s := range device.NumStreams {
		for _, i := range batch {
			if p.calls[i].Stream == s {
				p.device.Launch(p.first + i)
			}
		}
		if err := p.device.Sync(); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	}
	var before [device.NumStreams]*device.Span
	for _, i := range batch {
		k, now, row := &p.kinds[p.of[i]], &p.spans[i], &before[p.calls[i].Stream]
		k.add(now.End - now.Start)
		if *row != nil {
			k.gaps = append(k.gaps, now.Start-(*row).End)
		}
		*row = now
	}
	return nil
}

// profile groups calls by key and runs them.
type profile struct {
	calls  []device.Call
	device device.Device
	first  int // the device's number of the first call
	spans  []device.Span
	index  map[string]int // key to kind
	of     []int          // kind of a call
	kinds  []kind
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

func (p *profile) group() {
	for i := range p.calls {
		key := Key(&p.calls[i])
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

func (p *profile) measurements() []Measurement {
	var list []Measurement
	for i := range p.kinds {
		k := &p.kinds[i]
		// At least a nanosecond, even if the clock did not advance.
		m := Measurement{Call: p.calls[k.call], Seconds: max(k.seconds(), 1e-9), Whole: stat.Mean(k.times, math.Inf(1)), Runs: len(k.times)}
		if len(k.gaps) > 0 {
			m.Gap = stat.Mean(k.gaps, outlier)
		}
		list = append(list, m)
	}
	return list
}

// fill writes into all operands numbers that kernels process at their usual speed. On disk it writes only what
// is read: unwritten blocks of a sparse file would not be read from the disk.
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
		have := n
		if device.Tier(tier) == device.DeviceTier { // a GPU copies within its memory faster than any link brings data
			have = min(n, seedBytes)
		}
		if err := write(d, device.Tier(tier), 0, have); err != nil {
			return err
		}
		if err := double(d, have, n); err != nil {
			return err
		}
	}
	return nil
}

// seedBytes of the device tier are written, a multiple of the period of the pattern that write repeats.
const seedBytes = 64 << 20

// double repeats the first have bytes of the device tier up to byte n, by the device's
// own copies.
func double(d device.Device, have, n int64) error {
	var calls []device.Call
	at := func(addr, n int64) device.Operand {
		return device.Operand{DType: graph.BF16, Addr: addr, Rows: 1, Cols: int(n / 2), Stride: int(n / 2)}
	}
	for ; n-have > 1; have = min(2*have, n) {
		part := min(have, n-have) &^ 1
		calls = append(calls, device.Call{Op: graph.Copy, Stream: device.Compute, Args: []device.Operand{at(have, part), at(0, part)}})
	}
	if calls == nil {
		return nil
	}
	first, err := d.Prepare(calls, nil)
	if err != nil {
		return err
	}
	for i := range calls {
		d.Launch(first + i)
	}
	return d.Sync()
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
	if r, ok := d.(device.Repeater); ok && hi-lo > period {
		if err := d.Write(tier, lo, piece[:period]); err != nil {
			return err
		}
		return r.Repeat(tier, lo, period, hi-lo)
	}
	for at := lo; at < hi; at += int64(len(piece)) {
		if err := d.Write(tier, at, piece[:min(hi-at, int64(len(piece)))]); err != nil {
			return err
		}
	}
	return nil
}

// fillScalars writes a step's scalars where operators read them, and where they are
// copied from.
func fillScalars(calls []device.Call, d device.Device) error {
	var values [graph.NumScalars]float32
	values[graph.ScalarLR], values[graph.ScalarLossScale] = 1e-4, 1e-4
	values[graph.ScalarCorrection1], values[graph.ScalarCorrection2] = 1, 1
	values[graph.ScalarBound] = math.MaxFloat32
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	done := map[device.Operand]bool{}
	set := func(o device.Operand) error {
		if done[o] || o.Absent() {
			return nil
		}
		done[o] = true
		return d.Write(o.Tier, o.Addr, b[:min(o.Bytes(), int64(len(b)))])
	}
	for i := range calls {
		specs := calls[i].Op.Info().Args
		for k, o := range calls[i].Args {
			if specs[k].Name == "scalars" {
				if err := set(o); err != nil {
					return err
				}
			}
		}
	}
	for i := range calls {
		if c := &calls[i]; c.Op == graph.Copy && done[c.Args[graph.CopyDst]] {
			if err := set(c.Args[graph.CopySrc]); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasIndices reports whether a call has operands that fillIndices fills.
func hasIndices(c *device.Call) bool {
	switch c.Op {
	case graph.Embed, graph.EmbedBwd, graph.CrossEntropy, graph.Distil, graph.LossPart, graph.ExpertLinear, graph.ExpertDW, graph.ExpertDB, graph.RouteBwd,
		graph.EmbedAt, graph.RoPEAt, graph.AttentionAt, graph.ShortConvAt, graph.DeltaRuleAt, graph.StateScanAt:
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
		o, limit = c.Args[graph.EmbedTokens], c.Args[graph.EmbedWTE].Rows
	case graph.EmbedBwd:
		o, limit = c.Args[graph.EmbedBwdTokens], c.Args[graph.EmbedBwdDWTE].Rows
	case graph.CrossEntropy:
		o, limit = c.Args[graph.CrossEntropyTargets], c.Args[graph.CrossEntropyLogits].Cols
	case graph.Distil:
		o, limit = c.Args[graph.DistilTargets], c.Args[graph.DistilLogits].Cols
		if err := fillExperts(c.Args[graph.DistilIds], limit, d); err != nil { // different ones
			return err
		}
	case graph.LossPart:
		o, limit = c.Args[graph.LossPartTargets], c.Args[graph.LossPartLogits].Cols
	case graph.EmbedAt:
		if err := fillPlaces(c.Args[graph.EmbedAtPos], 1, 1, d); err != nil {
			return err
		}
		o, limit = c.Args[graph.EmbedAtTokens], c.Args[graph.EmbedAtWTE].Rows
	case graph.RoPEAt:
		return fillPlaces(c.Args[graph.RoPEAtPos], 1, 1, d)
	case graph.ShortConvAt:
		return fillPlaces(c.Args[graph.ShortConvAtPos], 1, c.Args[graph.ShortConvAtPast].Rows/(c.Args[graph.ShortConvAtW].Cols-1), d)
	case graph.DeltaRuleAt:
		return fillPlaces(c.Args[graph.DeltaRuleAtPos], 1, c.Args[graph.DeltaRuleAtState].Rows/(c.Attr.Heads*c.Attr.HeadDim), d)
	case graph.StateScanAt:
		return fillPlaces(c.Args[graph.StateScanAtPos], 1, c.Args[graph.StateScanAtState].Rows/(c.Attr.Heads*c.Attr.HeadDim), d)
	case graph.AttentionAt:
		kv, rows := c.Args[graph.AttentionAtKV].Rows, c.Args[graph.AttentionAtO].Rows
		context := graph.CacheContext(&c.Attr, kv)
		last := context - 1
		if c.Args[graph.AttentionAtPos].Rows == 1 {
			last = context - rows
		}
		return fillPlaces(c.Args[graph.AttentionAtPos], last+1, kv/context/(2*c.Attr.KVHeads), d)
	case graph.ExpertLinear:
		return fillExperts(c.Args[graph.ExpertLinearExperts], c.Attr.Experts, d)
	case graph.ExpertDW:
		return fillExperts(c.Args[graph.ExpertDWExperts], c.Attr.Experts, d)
	case graph.ExpertDB:
		return fillExperts(c.Args[graph.ExpertDBExperts], c.Attr.Experts, d)
	case graph.RouteBwd:
		return fillExperts(c.Args[graph.RouteBwdExperts], c.Args[graph.RouteBwdLogits].Cols, d)
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

// fillPlaces writes places of tokens in caches: each is the last of so many, of one of so many sequences. Then attention sees as many keys
// as its price by FLOPs and bytes says.
func fillPlaces(o device.Operand, tokens, sequences int, d device.Device) error {
	b := make([]byte, 0, o.Bytes())
	for r := range o.Rows {
		b = binary.LittleEndian.AppendUint32(b, uint32(tokens-1))
		if o.Cols > 1 {
			b = binary.LittleEndian.AppendUint32(b, uint32(r%sequences))
		}
	}
	return d.Write(o.Tier, o.Addr, b)
}

// fillExperts writes experts of tokens: those of a token differ, and all occur equally often.
func fillExperts(o device.Operand, experts int, d device.Device) error {
	b := make([]byte, 0, o.Bytes())
	for n := range o.Rows * o.Cols {
		b = binary.LittleEndian.AppendUint32(b, uint32(n%experts))
	}
	return d.Write(o.Tier, o.Addr, b)
}

// fillStarts writes the starts of documents that begin at multiples of their length in each sequence. The
// queries are the last of the keys' rows.
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
