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
	Seconds float64     // mean, but for outliers
	Runs    int
	// Gap is the seconds since the end of the call before it in its stream's row,
	// mean but for outliers; 0: it never followed one.
	Gap float64
}

// What is enough for a key. A key that has not run at all runs once even if
// the budget is spent, since a guess would cost more than it saves.
const (
	enoughRuns = 3
	enoughTime = 0.02 // seconds
	mostRuns   = 50
	perPass    = 3 // runs of a key in one pass over the program
	// Small programs are gone through as a whole so many times.
	wholePasses = 8
	// Calls that run between two looks at the clock.
	batchCalls = 64
)

// Profile measures every distinct Key of the calls on a device whose arenas
// are reserved, but for calls between ranks, which one device cannot run by
// itself (ProbePeers). It destroys what the arenas hold.
//
// Calls run one by one, but in program order and each right behind the one
// before on its stream, so that each finds the caches and the cores as its
// predecessor leaves them; running one call over and over would find its operands
// in the cache, where a step does not have them, and in a pause the cores fall
// asleep.
// Passes over the program go on until all keys have run often enough or the
// budget is spent.
func Profile(calls []device.Call, d device.Device, budget time.Duration) ([]Measurement, error) {
	calls = slices.DeleteFunc(slices.Clone(calls), func(c device.Call) bool { return c.Op.Info().Between })
	spans := make([]device.Span, len(calls))
	first, err := d.Prepare(calls, spans)
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

// pass is how long one pass over the program takes, by what was measured.
func (p *profile) pass(calls []device.Call) (seconds float64) {
	for i := range calls {
		seconds += p.kinds[p.of[i]].seconds()
	}
	return seconds
}

// whole measures again in passes that leave nothing out, where the budget
// allows that: in the passes before, calls that were known already were skipped,
// so that the others found more of their operands in the caches than in a step.
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

// run goes through the program once and runs the calls whose kinds are wanted:
// so many at a time, one stream after the other and each stream's without a
// pause. Operators on the device are first, so what has indices finds them as they
// were filled: it begins its batch, and copies that may overwrite them follow.
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
			// Other calls may have left anything where the indices are.
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
	call  int // the first of the kind
	times []float64
	gaps  []float64 // before runs that followed another
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

// outlier is how many times as long as the median a run of a kind may take and count
// as it is.
const outlier = 3

// seconds is what a run of the kind takes in the mean: a step is a sum of many, and
// what else goes on makes some longer and none shorter, so a sum of medians would be
// too little.
func (k *kind) seconds() float64 { return stat.Mean(k.times, outlier) }

func (p *profile) measurements(calls []device.Call) []Measurement {
	var list []Measurement
	for i := range p.kinds {
		k := &p.kinds[i]
		// A clock that did not advance has still seen a nanosecond.
		m := Measurement{Call: calls[k.call], Seconds: max(k.seconds(), 1e-9), Runs: len(k.times)}
		if len(k.gaps) > 0 {
			m.Gap = stat.Mean(k.gaps, outlier)
		}
		list = append(list, m)
	}
	return list
}

// fill gives all operands content that kernels can work on at their usual
// speed: small numbers, indices in range. On disk it writes what is read, since
// blocks that were never written are not read from the disk either.
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

// write fills bytes lo to hi with numbers of absolute value 0.01 to 0.2. The
// pattern is one of bf16; read as f32 its pairs are such numbers too.
func write(d device.Device, tier device.Tier, lo, hi int64) error {
	const period, largest = 1 << 20, 16 << 20 // a GPU is given many bytes at a time in far less time than one by one
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
	return c.Op == graph.Embed || c.Op == graph.EmbedBwd || c.Op == graph.CrossEntropy || c.Attr.Document > 0
}

// fillIndices gives a call's token and target operands values in range, and
// attention documents of the length that it is said to have.
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

// fillStarts has documents begin at multiples of their length in each sequence. The
// queries of a slice are its last rows.
func fillStarts(c *device.Call, d device.Device) error {
	a, o, keys := &c.Attr, c.Args[len(c.Args)-1], 0
	for _, other := range c.Args {
		keys = max(keys, other.Rows)
	}
	b := make([]byte, 0, o.Bytes())
	for row := keys - o.Rows; row < keys; row++ {
		at := row % a.Seq
		b = binary.LittleEndian.AppendUint32(b, uint32(at-at%a.Document))
	}
	return d.Write(o.Tier, o.Addr, b)
}
