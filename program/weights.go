package program

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// weightHome says where the parameters of a chunk live between steps.
//
//	                    operators read      optimizer's fp32 master
//	weights on device   work (device)       fp32: work if the state is there, else master (host)
//	weights on host     copies of work      fp32: work itself; bf16: master, beside the state
type weightHome struct {
	work   int // buffer that operators read from, or that copies come from
	master int // buffer of the fp32 master; work itself where that is one
	// masterAt is where the chunk's elements begin in master.
	masterAt int
	state    int // buffer of the moments: m, then v (then the master, on disk)
}

// weights gives every chunk its homes, and brings those that live on the host
// to the device for the units that read them.
func (lo *lowering) weights() error {
	lo.index()
	for c := range lo.pl.Chunks {
		lo.weightBuf = append(lo.weightBuf, lo.home(c))
	}
	lo.resolve(graph.ParamValue, func(u *unit, r ref) Region {
		c := lo.chunkOf[lo.g.Values[r.value].Param]
		if lo.pl.Chunks[c].Weights == device.DeviceTier {
			return lo.param(lo.weightBuf[c].work, 0, r.value)
		}
		return Region{Buf: -1 - c, Rows: 1} // which copy is decided below
	})
	return lo.fetch()
}

// index finds each parameter's chunk and offset.
func (lo *lowering) index() {
	lo.chunkOf = make([]int, len(lo.g.Params))
	lo.offsetOf = make([]int, len(lo.g.Params))
	for c, ch := range lo.pl.Chunks {
		off := 0
		for i := ch.First; i < ch.Last; i++ {
			lo.chunkOf[i], lo.offsetOf[i] = c, off
			off += int(lo.g.Params[i].Elems())
		}
	}
}

// param is a parameter's region in a buffer that holds its chunk's elements
// from element at on, with the extents of the parameter's value.
func (lo *lowering) param(buf, at, value int) Region {
	v := &lo.g.Values[value]
	return Region{Buf: buf, Off: at + lo.offsetOf[v.Param], Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
}

// flat is a parameter's region as one row.
func (lo *lowering) flat(buf, at, param int) Region {
	n := int(lo.g.Params[param].Elems())
	return Region{Buf: buf, Off: at + lo.offsetOf[param], Rows: 1, Cols: n, Stride: n}
}

// chunkBuffer makes a flat buffer of records of chunk c's elements, one for
// each kind ("p", "m", ...): cut at the parameters, padding at each end on disk.
func (lo *lowering) chunkBuffer(name string, c int, tier device.Tier, class Class, dt graph.DType, kinds ...string) int {
	ch, elems := lo.pl.Chunks[c], lo.record(c, tier)
	b := Buffer{Name: fmt.Sprintf("%s.c%d", name, c), Tier: tier, Class: class, DType: dt, Rows: 1, Cols: elems * max(len(kinds), 1)}
	for k := range max(len(kinds), 1) {
		at := k * elems
		for i := ch.First; i < ch.Last; i++ {
			at += int(lo.g.Params[i].Elems())
			b.Cuts = append(b.Cuts, at)
			if len(kinds) > 0 {
				b.Init = append(b.Init, kinds[k]+":"+lo.g.Params[i].Name)
			}
		}
		if end := (k + 1) * elems; at == end {
			b.Cuts = b.Cuts[:len(b.Cuts)-1]
		} else if len(kinds) > 0 {
			b.Init = append(b.Init, "")
		}
		b.Cuts = append(b.Cuts, (k+1)*elems)
	}
	if b.Cuts = b.Cuts[:len(b.Cuts)-1]; len(b.Cuts) == 0 {
		b.Cuts = nil
	}
	b.Persistent = len(kinds) > 0
	return lo.buffer(b)
}

// record is the number of elements of a chunk, padded on disk.
func (lo *lowering) record(c int, tier device.Tier) int {
	last := lo.pl.Chunks[c].Last - 1
	n := lo.offsetOf[last] + int(lo.g.Params[last].Elems())
	if tier == device.DiskTier {
		n = (n + PadElems - 1) / PadElems * PadElems
	}
	return n
}

func (lo *lowering) home(c int) weightHome {
	ch := lo.pl.Chunks[c]
	elems := lo.record(c, ch.State)
	work, bf16 := "p", lo.g.DType == graph.BF16
	if bf16 {
		work = "p16"
	}
	h := weightHome{work: lo.chunkBuffer(work, c, ch.Weights, ClassWeights, lo.g.DType, work)}
	if lo.opt.Mode != Train { // nothing is updated: the working copy is all
		for i := ch.First; i < ch.Last; i++ {
			lo.p.Homes = append(lo.p.Homes, Home{Param: i, Kind: "p", Region: lo.flat(h.work, 0, i)})
		}
		return h
	}
	switch {
	case !bf16 && (ch.Weights == ch.State || ch.Weights == device.HostTier):
		h.master = h.work
		h.state = lo.chunkBuffer("state", c, ch.State, ClassState, graph.F32, "m", "v")
	case ch.State == device.DiskTier && bf16:
		h.state = lo.chunkBuffer("state", c, ch.State, ClassState, graph.F32, "m", "v", "p")
		h.master, h.masterAt = h.state, 2*elems
	default:
		h.master = lo.chunkBuffer("master", c, min(ch.State, device.HostTier), ClassWeights, graph.F32, "p")
		h.state = lo.chunkBuffer("state", c, ch.State, ClassState, graph.F32, "m", "v")
	}
	for i := ch.First; i < ch.Last; i++ {
		lo.p.Homes = append(lo.p.Homes,
			Home{Param: i, Kind: "p", Region: lo.flat(h.master, h.masterAt, i)},
			Home{Param: i, Kind: "m", Region: lo.flat(h.state, 0, i)},
			Home{Param: i, Kind: "v", Region: lo.flat(h.state, elems, i)})
		if h.work != h.master {
			lo.p.Homes = append(lo.p.Homes, Home{Param: i, Kind: work, Region: lo.flat(h.work, 0, i), Replica: true})
		}
	}
	return h
}

// fetch brings chunks that live on the host into a cache on the device, of
// pl.Cache bytes at most. Since the whole order of uses is known, what gives
// way is what is used again last (Belady 1966), and a chunk is sent off up to
// Prefetch units before its use, as soon as there is room for it.
//
// Known weakness: with chunks of different sizes, the furthest next use is not
// always the best to give up.
func (lo *lowering) fetch() error {
	uses := lo.uses()
	next := nextUses(uses)
	cache := &cache{room: lo.pl.Cache, held: make([]int64, len(lo.units))}
	loads := 0
	for i := range lo.units {
		u := &lo.units[i]
		for _, c := range uses[i] {
			line := cache.find(c)
			if line == nil {
				bytes := int64(lo.record(c, device.DeviceTier)) * lo.g.DType.Size()
				if !cache.evict(i, bytes, func(chunk int) int {
					if slices.Contains(uses[i], chunk) {
						return -1
					}
					return next(chunk, i)
				}) {
					return fmt.Errorf("the weights that %s needs at once do not fit into cache_bytes %d; hint: at least %d", lo.g.Segments[u.segment].Name, lo.pl.Cache, lo.pl.CacheNeeded(lo.g))
				}
				buf := lo.chunkBuffer(fmt.Sprintf("cache%d", loads), c, device.DeviceTier, ClassWeights, lo.g.DType)
				loads++
				send := &lo.units[cache.load(i, c, buf, bytes, lo.pl.Prefetch)]
				key := Key{Segment: u.segment, Micro: u.micro, Chunk: c}
				send.before = append(send.before, copyOp(device.HostToDev, key, lo.p.whole(buf), lo.p.whole(lo.weightBuf[c].work)))
				line = cache.find(c)
			}
			line.lastUse = i
			lo.read(u, c, line.buf)
		}
		for k := range cache.lines {
			cache.held[i] += cache.lines[k].bytes
		}
	}
	return nil
}

// cache is what is on the device while the units are gone through.
type cache struct {
	room  int64
	lines []line
	held  []int64 // bytes held during each unit gone through so far
}

type line struct {
	chunk, buf, lastUse int
	bytes               int64
}

func (k *cache) find(chunk int) *line {
	for i := range k.lines {
		if k.lines[i].chunk == chunk {
			return &k.lines[i]
		}
	}
	return nil
}

// evict makes room for bytes at unit i; distance is the next use of a chunk,
// -1 if it may not go.
func (k *cache) evict(i int, bytes int64, distance func(chunk int) int) bool {
	var sum int64
	for n := range k.lines {
		sum += k.lines[n].bytes
	}
	for sum+bytes > k.room {
		if len(k.lines) == 0 {
			return false
		}
		at := 0
		for n := range k.lines {
			if distance(k.lines[n].chunk) > distance(k.lines[at].chunk) {
				at = n
			}
		}
		l := k.lines[at]
		if distance(l.chunk) < 0 {
			return false
		}
		for u := l.lastUse + 1; u < i; u++ {
			k.held[u] -= l.bytes // it might as well have gone then
		}
		sum -= l.bytes
		k.lines = slices.Delete(k.lines, at, at+1)
	}
	return true
}

// load takes a chunk in and returns the unit before which it is sent off.
func (k *cache) load(i, chunk, buf int, bytes int64, prefetch int) int {
	at := i
	for at > 0 && at > i-prefetch && k.held[at-1]+bytes <= k.room {
		at--
		k.held[at] += bytes
	}
	k.lines = append(k.lines, line{chunk: chunk, buf: buf, lastUse: i, bytes: bytes})
	return at
}

// uses lists per unit the chunks that it reads through the cache.
func (lo *lowering) uses() [][]int {
	uses := make([][]int, len(lo.units))
	for i := range lo.units {
		for j := range lo.units[i].work {
			for _, r := range lo.units[i].work[j].in.Args {
				if c := -1 - r.Buf; r.Buf < 0 && !slices.Contains(uses[i], c) {
					uses[i] = append(uses[i], c)
				}
			}
		}
	}
	return uses
}

// nextUses returns a function that finds the first unit after i that uses a
// chunk; never used again counts as the furthest.
func nextUses(uses [][]int) func(chunk, i int) int {
	at := map[int][]int{}
	for i, list := range uses {
		for _, c := range list {
			at[c] = append(at[c], i)
		}
	}
	return func(chunk, i int) int {
		k, _ := slices.BinarySearch(at[chunk], i+1)
		if k == len(at[chunk]) {
			return len(uses)
		}
		return at[chunk][k]
	}
}

// read points the unit's operands of chunk c to buffer buf.
func (lo *lowering) read(u *unit, c, buf int) {
	for j := range u.work {
		o := &u.work[j]
		for k := range o.in.Args {
			if o.in.Args[k].Buf == -1-c {
				o.in.Args[k] = lo.param(buf, 0, o.refs[k].value)
			}
		}
	}
}

// CacheNeeded is the least Cache: the most bytes of chunks on the host that
// one segment reads.
func (pl *Plan) CacheNeeded(g *graph.Graph) int64 {
	var most int64
	for s := range g.Segments {
		var sum int64
		for _, c := range pl.Chunks {
			if c.Weights == device.HostTier && slices.Contains(g.Segments[s].Params, c.First) {
				for _, p := range g.Params[c.First:c.Last] {
					sum += p.Elems() * g.DType.Size()
				}
			}
		}
		most = max(most, sum)
	}
	return most
}
