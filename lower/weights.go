package lower

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// weightHome says where a chunk lives between steps. Chunk.Shard decides how much of it
// this rank holds.
//
//	                    operators read      updated, if of work's type      updated, if of another type
//	weights on device   work (device)       work itself if updated there    work, and the rest of it with the state
//	                                        else master (host)              master, with the state
//	weights on host     copies of work      work itself                     work, and the rest of it with the state
type weightHome struct {
	work   store // what operators read, or what copies are taken from
	master store // what is updated, or its upper halves; work itself where possible
	rest   store // lower halves, if work is bf16 and updated in fp32; else no buffer
	// moments are records of one buffer, as many as the optimizer has; on disk a master of their type may be another
	// record behind them. Where they are in 8 bits, small are those of small parameters, see moments.go.
	moments, small [optimizer.MostMoments]store
	mask           store // of a compact chunk, in words, where its weights are; else no buffer
}

// homeWeights gives every chunk its homes, and brings chunks that are not entirely on the
// device there for the units that read them.
func homeWeights(b *builder, units []unit, args []operand) ([]weightHome, error) {
	st := b.st
	homes, cached := make([]weightHome, len(st.pl.Chunks)), make([]bool, len(st.pl.Chunks))
	for c := range st.pl.Chunks {
		if cached[c] = st.cached(c); st.local(c) {
			homes[c] = homeOf(b, c)
		}
	}
	var fetched []operand
	for _, a := range args {
		if c := st.chunkOfArg(a); cached[c] {
			fetched = append(fetched, a)
		} else {
			a.resolve(st.paramOf(homes[c].work, a))
		}
	}
	return homes, fetchWeights(b, units, fetched, homes)
}

// chunkOfArg returns the chunk of an operand that is a parameter or its gradient.
func (st *step) chunkOfArg(a operand) int { return st.chunkOf[st.g.Values[a.ref().value].Param] }

// noMoments have no buffers.
var noMoments = [optimizer.MostMoments]store{{-1, 0}, {-1, 0}}

// homeOf allocates the buffers of a chunk and records what lives in them between steps.
func homeOf(b *builder, c int) weightHome {
	st := b.st
	ch := st.pl.Chunks[c]
	kind, rule := optimizer.Weights, st.pl.Rule(st.g, c)
	dtype := st.typeOf(c)
	master, moments := st.pl.State.TypesFor(dtype)
	alike := master == dtype // operators read the master itself
	if dtype == graph.BF16 && (st.frozen(c) || !alike) {
		kind = optimizer.HalfWeights
	}
	weights, state := st.homed(c, "weights"), st.homed(c, "state")
	h := weightHome{work: store{-1, 0}, rest: store{-1, 0}, moments: noMoments, small: noMoments, mask: store{-1, 0}} // a small chunk may have no shard here in a large group
	if weights.len() > 0 {
		h.work = b.chunkBuffer(kind.String(), c, weights, ch.Weights, st.weightClass(c), dtype, kind)
	}
	if st.compact(c) {
		h.mask = b.maskHome(c)
	}
	if !st.updates() || st.frozen(c) { // nothing is updated: the working copy is the only one
		b.recordHomes(c, weights, optimizer.Weights, h.work, false)
		return h
	}
	if state.len() == 0 {
		b.recordHomes(c, weights, kind, h.work, true)
		return h
	}
	records := rule.Moments
	switch {
	case alike && ch.Weights >= st.updatedOn(c):
		h.master = h.work
	case !alike && ch.Weights >= st.updatedOn(c):
		h.master = h.work
		h.rest = b.chunkBuffer("rest", c, state, ch.State, program.ClassWeights, graph.U16, optimizer.LowerHalves)
		b.recordHomes(c, state, optimizer.LowerHalves, h.rest, false)
	case ch.State == device.DiskTier && !alike && master == moments:
		records = append(slices.Clone(records), optimizer.Weights)
	case ch.State == device.DiskTier && !alike:
		h.master = b.chunkBuffer("master", c, state, ch.State, program.ClassWeights, master, optimizer.Weights)
	default:
		h.master = b.chunkBuffer("master", c, state, min(ch.State, device.HostTier), program.ClassWeights, master, optimizer.Weights)
	}
	switch n := record(state.len(), ch.State, moments); {
	case len(records) == 0:
	case moments == graph.U8:
		h.moments, h.small = b.homePacked(c, state, true, records), b.homePacked(c, state, false, records)
	default:
		kept := b.chunkBuffer("state", c, state, ch.State, program.ClassState, moments, records...)
		for k := range rule.Moments {
			h.moments[k] = store{kept.buf, kept.at + k*n}
		}
		if len(records) > len(rule.Moments) {
			h.master = store{kept.buf, kept.at + len(rule.Moments)*n}
		}
	}
	b.recordHomes(c, state, optimizer.Weights, h.master, false)
	for k, moment := range rule.Moments {
		if moments != graph.U8 {
			b.recordHomes(c, state, moment, h.moments[k], false)
			continue
		}
		for _, q := range st.splitByParam(c, state) {
			at, _ := st.moments.rangeOf(q)
			b.p.Homes = append(b.p.Homes, program.Home{Param: q.param, Kind: moment, At: at - st.moments.at[q.param], Region: st.moment(&h, k, q)})
		}
	}
	if h.work != h.master || weights != state {
		b.recordHomes(c, weights, kind, h.work, true)
	}
	return h
}

// fetchWeights brings chunks that live elsewhere, and that the given operands are in, into a device cache of at most pl.Cache
// bytes: from the host, and perhaps the disk before, by a copy, from other ranks by a gather, or this rank's shard by
// a copy and the others' by a gather. The whole order of uses is known, so eviction
// takes the chunk with the furthest next use (Belady 1966). A chunk's transfer is
// issued up to Prefetch units before its use, as soon as there is room.
//
// Known weakness: with chunks of different sizes, evicting the furthest next use is not
// always optimal.
func fetchWeights(b *builder, units []unit, fetched []operand, homes []weightHome) error {
	st := b.st
	args := byUnit(fetched, len(units))
	uses := cacheUses(st, args)
	next := nextUses(uses, len(st.pl.Chunks))
	cache := &cache{room: st.pl.Cache, held: make([]int64, len(units))}
	loads := 0
	for i := range units {
		u := &units[i]
		for k, c := range uses[i] {
			line := cache.find(c)
			if line == nil {
				bytes := int64(st.chunkRange(c).len()) * st.typeOf(c).Size()
				if !cache.evict(i, bytes) {
					return fmt.Errorf("the weights that %s needs at once do not fit into cache_bytes %d; hint: set cache_bytes to at least %d", st.g.Segments[u.segment].Name, st.pl.Cache, st.pl.CacheNeeded(st.g))
				}
				copied := b.chunkBuffer(fmt.Sprintf("cache%d", loads), c, st.chunkRange(c), device.DeviceTier, st.weightClass(c), st.typeOf(c))
				loads++
				at := cache.load(i, c, copied, bytes, st.pl.Prefetch)
				send, from := &units[at], homes[c].work
				if st.pl.Chunks[c].Weights == device.DiskTier {
					from = bringToHost(b, &units[max(0, at-st.pl.Prefetch)], from, u.key(c), loads)
				}
				if st.compact(c) {
					bringCompact(b, send, u, c, &homes[c], copied, loads)
				} else {
					send.before = append(send.before, bringChunk(st, c, from, copied, u.key(c))...)
				}
				line = cache.find(c)
			}
			line.lastUse, line.next = i, next[i][k]
			readCopy(st, args[i], c, line.copied)
		}
		for k := range cache.lines {
			cache.held[i] += cache.lines[k].bytes
		}
	}
	return nil
}

// bringToHost reads a chunk from the disk while a unit runs, for the n-th load, and returns where it is then.
func bringToHost(b *builder, u *unit, from store, key program.Key, n int) store {
	stage := b.stageBuffer(from.buf, device.HostTier)
	b.p.Buffers[stage].Name = numbered(b.p.Buffers[stage].Name, n)
	u.before = append(u.before, copyOp(device.DiskRead, key, b.p.BufferRegion(stage), b.p.BufferRegion(from.buf)))
	return store{stage, from.at}
}

// bringChunk lists the instructions that fill a copy of a chunk.
func bringChunk(st *step, c int, from, to store, key program.Key) []*op {
	own := st.held(c, "weights")
	var list []*op
	if st.pl.Chunks[c].Weights > device.DeviceTier && own.len() > 0 {
		list = append(list, moveOp(device.HostToDev, key, to, from, own))
		from = to
	}
	if st.sharded(c, "weights") {
		src := program.Region{}
		if own.len() > 0 {
			src = from.of(own)
		}
		list = append(list, st.collective(graph.AllGather, key, c, false, to.of(st.chunkRange(c)), src))
	}
	return list
}
