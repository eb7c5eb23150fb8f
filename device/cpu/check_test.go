package cpu

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// guess makes calls that are right or nearly so.
type guess struct {
	*rand.Rand
	attr    graph.Attr
	letters map[byte]int
}

// small numbers, and others that nobody would write.
func (g *guess) number() int {
	if absurd := []int{-1, 64, 1 << 20, 1 << 31, 1 << 40, 1<<62 + 1}; g.IntN(6) == 0 {
		return absurd[g.IntN(len(absurd))]
	}
	return g.IntN(9)
}

func (g *guess) of(list ...int) int { return list[g.IntN(len(list))] }

// attributes sets those from which an operator's extents come, and then the letters that depend on each other.
func (g *guess) attributes(op graph.Op) {
	a := &g.attr
	*a = graph.Attr{Seq: g.of(1, 2, 4, 6), KVHeads: g.of(1, 2), HeadDim: g.of(2, 4, 8, 16), Scale: 0.5, Unit: 0.25, Eps: 1e-5, WT: g.IntN(2) == 0, Experts: g.of(1, 2, 5)}
	a.Heads = a.KVHeads * g.of(1, 3)
	l := map[byte]int{'#': graph.NumScalars, 'T': a.Seq, 'S': a.HeadDim, 'H': a.Heads, 'A': a.Heads * a.HeadDim, 'G': 2 * a.KVHeads * a.HeadDim}
	l['Q'], l['U'] = l['A']+l['G'], a.Heads
	g.letters = l
	for _, c := range "NOIDFKEVPRCXYMJLBW" {
		l[byte(c)] = 1 + g.IntN(9)
	}
	l['N'] = a.Seq * g.of(1, 2, 3)
	l['M'] = l['N']
	switch k, in, out := g.of(1, 2), l['I'], l['O']; op {
	case graph.ExpertLinear, graph.ExpertDW, graph.ExpertDB:
		a.Slots = g.IntN(2) == 0
		a.NF4 = op == graph.ExpertLinear && g.IntN(3) == 0
		l['K'], l['E'], l['X'], l['Y'] = k, a.Experts, in, k*out
		if a.Slots {
			l['X'] *= k
		}
		if a.WT {
			in, out = out, in
		}
		l['R'], l['C'] = a.Experts*in, out
	case graph.Linear, graph.LinearDX:
		a.NF4 = g.IntN(3) == 0
		a.FP8 = !a.NF4 && g.IntN(3) == 0
	case graph.LinearDW:
		a.Cut = g.of(0, 2, 32)
	case graph.RMSNorm, graph.RMSNormDX, graph.RMSNormDW:
		l['D'] = l['P'] * a.Heads
	case graph.SoftCap:
		a.Limit = 1.5
	case graph.Attention, graph.AttentionBwd, graph.CrossEntropy:
		a.Limit = float64(g.of(0, 2))
	case graph.Distil:
		a.Limit, a.Rate, a.Scale = float64(g.of(0, 2)), 0.5, 2
		l['V'] += l['K']
	case graph.TopLogs:
		a.Scale = 2
		l['V'] += l['K']
	case graph.SwiGLU, graph.SwiGLUBwd:
		l['F'] *= l['K']
	case graph.Route, graph.RouteBwd:
		l['E'] += l['K']
	case graph.Combine:
		l['X'] = l['D'] * k
	case graph.Embed, graph.EmbedAt, graph.PosBwd:
		l['P'] += max(a.Seq, l['N'])
	case graph.RoPE, graph.RoPEAt:
		l['P'], l['R'] = l['N']+1, 2
	case graph.AttentionAt:
		a.CacheBits = g.of(0, 0, 4, 8)
		l['C'], l['R'], l['X'] = a.HeadDim, 2*a.KVHeads*(l['N']+3), (a.Heads+2*a.KVHeads*g.of(0, 1))*a.HeadDim
		if a.Seq = g.of(0, l['N'], l['N']+2); a.Seq > 0 {
			l['R'] = 2 * a.KVHeads * a.Seq * g.of(1, 3)
		}
	case graph.DeltaRule, graph.DeltaRuleBwd:
		each := g.of(1, 3)
		l['P'], l['V'] = a.Heads, a.Heads*each
		l['W'], l['Z'] = 2*a.KVHeads*a.HeadDim+l['V'], a.Heads*graph.DeltaStateCols(a.Seq, a.HeadDim*each)
		return
	case graph.StateScan, graph.StateScanBwd:
		each := g.of(1, 3)
		l['P'], l['V'] = a.Heads, a.Heads*each
		l['W'], l['Z'], l['Y'] = 2*a.KVHeads*a.HeadDim+l['V'], a.Heads*graph.ScanStateCols(a.Seq, a.HeadDim*each), graph.ScanRoom(a)
		return
	case graph.LatentKV, graph.LatentKVBwd:
		l['R'] = g.of(1, a.HeadDim)
		l['W'] = a.KVHeads * (a.HeadDim - l['R'] + g.of(1, a.HeadDim))
		return
	case graph.HeadCols:
		l['X'], l['Y'] = a.Heads*g.of(1, 3), a.Heads*g.of(1, 3)
	case graph.ShortConvAt:
		l['K'] = l['R'] + 1
	case graph.DeltaRuleAt, graph.StateScanAt:
		l['P'], l['R'], l['V'] = a.Heads, a.Heads*a.HeadDim, a.Heads*l['D']
		l['Y'] = 2*a.KVHeads*a.HeadDim + l['V']
	case graph.Compress, graph.Expand:
		l['M'] = graph.MaskWords(l['E'])
	case graph.NormPart:
		l['K'] = 1
	case graph.Muon:
		l['K'] = graph.MuonPlacesOf(l['R'], l['C']).Len
	}
	if l['B'], l['W'] = 1, g.of(1, 2); l['W'] == 2 && g.IntN(2) == 0 {
		l['B'] = l['N']
	}
	if op.Info().Args[0].Access == graph.Sum {
		a.Acc = g.IntN(4) == 0
	}
}

// value returns an extent, mostly.
func (g *guess) value(e graph.Extent) int {
	n := e.Times
	if e.Letter != 0 {
		n *= g.letters[e.Letter]
	}
	if g.IntN(60) == 0 {
		n += g.of(-1, 1, n)
	}
	return n
}

// call returns a call whose operands lie apart from each other in an arena of this size, unless they are too large.
func (g *guess) call(op graph.Op, arena int64) device.Call {
	g.attributes(op)
	kind, types := g.IntN(3), map[string][]graph.DType{"f": {graph.F32, graph.BF16}, "s": {graph.F32}, "r": {graph.F32, graph.F64},
		"h": {graph.BF16}, "q": {graph.F32, graph.BF16, graph.I8}, "m": {graph.F32, graph.BF16, graph.U8}, "i": {graph.I32}, "d": {graph.F64}, "u": {graph.U16}, "*": {graph.F32}}
	c := device.Call{Op: op, Stream: device.Compute, Attr: g.attr}
	at := int64(0)
	for _, s := range op.Info().Args {
		if s.Optional && g.IntN(2) == 0 {
			c.Args = append(c.Args, device.Operand{})
			continue
		}
		rows, cols := g.value(s.Shape.Rows), g.value(s.Shape.Cols)
		if s.Shape.Turned && g.attr.WT {
			rows, cols = cols, rows
		}
		list := types[s.Shape.Types]
		o := device.Operand{Tier: device.DeviceTier, DType: list[kind%len(list)], Rows: rows}
		if kind == 2 { // mixed
			o.DType = list[g.IntN(len(list))]
		}
		if g.attr.NF4 && s.Name == "w" {
			cols = graph.NF4Cols(max(cols, 0), o.DType)
		}
		if op == graph.AttentionAt && s.Name == "kv" {
			cols = graph.CacheCols(max(cols, 0), g.attr.CacheBits, o.DType)
		}
		if o.DType == graph.U8 {
			cols = graph.PackedMoments(max(cols, 0))
		}
		o.Cols = cols
		o.Stride, o.Addr = cols+g.of(0, 0, 3), (at+63)/64*64
		if at = o.End(); at < 0 || at > arena {
			at = 0
		}
		c.Args = append(c.Args, o)
	}
	if g.IntN(2) == 0 {
		g.spoil(&c)
	}
	return c
}

// spoil changes an attribute.
func (g *guess) spoil(c *device.Call) {
	switch v := graph.AttrFields[g.IntN(len(graph.AttrFields))].Ptr(&c.Attr).(type) {
	case *bool:
		*v = !*v
	case *int:
		*v = g.number()
	case *float64:
		*v = []float64{-1, 0, 1e-9, 2, 1e300}[g.IntN(5)]
	}
}

// indices fills index operands with numbers in range.
func (g *guess) indices(c *device.Call, memory []byte) {
	for i, s := range c.Op.Info().Args {
		if i >= len(c.Args) || c.Args[i].Absent() || s.Shape.Types != "i" || s.Access != graph.Read {
			continue
		}
		limit := 1 // starts, pos
		switch c.Op {
		case graph.Embed, graph.EmbedAt:
			if s.Name == "tokens" {
				limit = cmp.Or(c.Attr.Vocab, c.Args[graph.EmbedWTE].Rows)
			}
		case graph.EmbedBwd:
			limit = cmp.Or(c.Attr.Vocab, c.Args[graph.EmbedBwdDWTE].Rows)
		case graph.CrossEntropy:
			limit = c.Args[graph.CrossEntropyLogits].Cols
		case graph.Distil:
			limit = c.Args[graph.DistilLogits].Cols
		case graph.LossPart:
			limit = c.Args[graph.LossPartLogits].Cols
		case graph.RouteBwd:
			limit = c.Args[graph.RouteBwdLogits].Cols
		case graph.ExpertLinear, graph.ExpertDW, graph.ExpertDB:
			limit = c.Attr.Experts
		}
		o := c.Args[i]
		for r := range o.Rows {
			for k := range o.Cols {
				at := o.Addr + 4*int64(r*o.Stride+k)
				binary.LittleEndian.PutUint32(memory[at:], uint32(g.IntN(min(limit, math.MaxInt32)))) // numbers have 32 bits, whatever attributes claim
			}
		}
	}
}

// TestChecked: a call that Prepare accepts neither panics nor writes outside the operands that its row says it
// writes, however absurd its attributes.
func TestChecked(t *testing.T) {
	const arena = 1 << 16
	r := testkit.Rand(t)
	calls := testkit.Count(30, 150, 20000)
	for op := graph.None + 1; op < graph.NumOps; op++ {
		if op == graph.Copy || op.Info().Between {
			continue
		}
		t.Run(op.String(), func(t *testing.T) {
			g := &guess{Rand: rand.New(rand.NewPCG(r.Uint64(), uint64(op)))}
			noise, memory, accepted := rand.NewChaCha8([32]byte{byte(op)}), make([]byte, arena), 0
			d := newDevice(t, Options{Workers: 2}, arena)
			for range calls {
				c := g.call(op, arena)
				first, err := d.Prepare([]device.Call{c}, nil)
				if err != nil {
					continue
				}
				accepted++
				_, _ = noise.Read(memory)
				g.indices(&c, memory)
				if err := d.Write(device.DeviceTier, 0, memory); err != nil {
					t.Fatal(err)
				}
				d.Launch(first)
				if err := d.Sync(); err != nil {
					t.Fatal(err)
				}
				checkOutside(t, d, &c, memory)
			}
			if accepted < calls/10 {
				t.Errorf("only %d of %d calls were accepted", accepted, calls)
			}
			t.Logf("%d of %d calls accepted", accepted, calls)
		})
	}
}

// checkOutside compares all bytes that a call must not write.
func checkOutside(t *testing.T, d *Device, c *device.Call, before []byte) {
	t.Helper()
	after := make([]byte, len(before))
	if err := d.Read(device.DeviceTier, 0, after); err != nil {
		t.Fatal(err)
	}
	for i, o := range c.Args {
		if c.Op.Info().Args[i].Access == graph.Read {
			continue
		}
		for r := range o.Rows {
			lo := o.Addr + int64(r)*int64(o.Stride)*o.DType.Size()
			copy(after[lo:lo+int64(o.Cols)*o.DType.Size()], before[lo:])
		}
	}
	if !slices.Equal(before, after) {
		at := 0
		for before[at] == after[at] {
			at++
		}
		t.Errorf("byte %d outside of results changed: %+v", at, *c)
	}
}
