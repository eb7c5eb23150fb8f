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
	// record behind them.
	moments [optimizer.MostMoments]store
}

// weights gives every chunk its homes, and brings chunks that are not entirely on the
// device there for the units that read them.
func (lo *lowering) weights() error {
	lo.weightBuf = make([]weightHome, len(lo.pl.Chunks))
	for c := range lo.pl.Chunks {
		if lo.local(c) {
			lo.weightBuf[c] = lo.home(c)
		}
	}
	lo.resolve(graph.ParamValue, func(u *unit, r ref) program.Region {
		c := lo.chunkOf[lo.g.Values[r.value].Param]
		if !lo.cached(c) {
			return lo.param(lo.weightBuf[c].work, r.value)
		}
		return program.Region{Buf: -1 - c, Rows: 1} // which copy is decided below
	})
	return lo.fetch()
}

// cached reports whether operators read a chunk through the cache.
func (lo *lowering) cached(c int) bool {
	return lo.pl.Chunks[c].Weights == device.HostTier || lo.sharded(c, "weights")
}

// weightClass returns the class of a chunk's weights in reports.
func (lo *lowering) weightClass(c int) program.Class {
	if lo.frozen(c) {
		return program.ClassFrozen
	}
	return program.ClassWeights
}

func (lo *lowering) home(c int) weightHome {
	ch := lo.pl.Chunks[c]
	kind, rule := optimizer.Weights, lo.pl.Optimizer.Rule()
	master, moments := lo.pl.State.Types()
	alike := master == lo.g.DType // operators read the master itself
	if lo.g.DType == graph.BF16 && (lo.frozen(c) || !alike) {
		kind = optimizer.HalfWeights
	}
	weights, state := lo.held(c, "weights"), lo.held(c, "state")
	h := weightHome{work: store{-1, 0}, rest: store{-1, 0}, moments: [...]store{{-1, 0}, {-1, 0}}} // a small chunk may have no shard here in a large group
	if weights.len() > 0 {
		h.work = lo.chunkBuffer(kind.String(), c, weights, ch.Weights, lo.weightClass(c), lo.g.DType, kind)
	}
	if !lo.updates() || lo.frozen(c) { // nothing is updated: the working copy is the only one
		lo.homes(c, weights, optimizer.Weights, h.work, false)
		return h
	}
	if state.len() == 0 {
		lo.homes(c, weights, kind, h.work, true)
		return h
	}
	records := rule.Moments
	switch {
	case alike && ch.Weights >= lo.updatedOn(c):
		h.master = h.work
	case !alike && ch.Weights >= lo.updatedOn(c):
		h.master = h.work
		h.rest = lo.chunkBuffer("rest", c, state, ch.State, program.ClassWeights, graph.U16, optimizer.LowerHalves)
		lo.homes(c, state, optimizer.LowerHalves, h.rest, false)
	case ch.State == device.DiskTier && !alike && master == moments:
		records = append(slices.Clone(records), optimizer.Weights)
	case ch.State == device.DiskTier && !alike:
		h.master = lo.chunkBuffer("master", c, state, ch.State, program.ClassWeights, master, optimizer.Weights)
	default:
		h.master = lo.chunkBuffer("master", c, state, min(ch.State, device.HostTier), program.ClassWeights, master, optimizer.Weights)
	}
	n := record(state, ch.State)
	kept := store{-1, 0}
	if len(records) > 0 {
		kept = lo.chunkBuffer("state", c, state, ch.State, program.ClassState, moments, records...)
	}
	for k := range rule.Moments {
		h.moments[k] = store{kept.buf, kept.at + k*n}
	}
	if len(records) > len(rule.Moments) {
		h.master = store{kept.buf, kept.at + len(rule.Moments)*n}
	}
	lo.homes(c, state, optimizer.Weights, h.master, false)
	for k, moment := range rule.Moments {
		lo.homes(c, state, moment, h.moments[k], false)
	}
	if h.work != h.master || weights != state {
		lo.homes(c, weights, kind, h.work, true)
	}
	return h
}

// fetch brings chunks that live elsewhere into a device cache of at most pl.Cache
// bytes: from the host by a copy, from other ranks by a gather, or this rank's shard by
// a copy and the others' by a gather. The whole order of uses is known, so eviction
// takes the chunk with the furthest next use (Belady 1966). A chunk's transfer is
// issued up to Prefetch units before its use, as soon as there is room.
//
// Known weakness: with chunks of different sizes, evicting the furthest next use is not
// always optimal.
func (lo *lowering) fetch() error {
	uses := lo.uses()
	next := nextUses(uses, len(lo.pl.Chunks))
	cache := &cache{room: lo.pl.Cache, held: make([]int64, len(lo.units))}
	loads := 0
	for i := range lo.units {
		u := &lo.units[i]
		for k, c := range uses[i] {
			line := cache.find(c)
			if line == nil {
				bytes := int64(lo.whole(c).len()) * lo.g.DType.Size()
				if !cache.evict(i, bytes) {
					return fmt.Errorf("the weights that %s needs at once do not fit into cache_bytes %d; hint: set cache_bytes to at least %d", lo.g.Segments[u.segment].Name, lo.pl.Cache, lo.pl.CacheNeeded(lo.g))
				}
				copied := lo.chunkBuffer(fmt.Sprintf("cache%d", loads), c, lo.whole(c), device.DeviceTier, lo.weightClass(c), lo.g.DType)
				loads++
				send := &lo.units[cache.load(i, c, copied, bytes, lo.pl.Prefetch)]
				send.before = append(send.before, lo.bring(c, copied, program.Key{Segment: u.segment, Micro: u.micro, Chunk: c})...)
				line = cache.find(c)
			}
			line.lastUse, line.next = i, next[i][k]
			lo.read(u, c, line.copied)
		}
		for k := range cache.lines {
			cache.held[i] += cache.lines[k].bytes
		}
	}
	return nil
}

// bring lists the instructions that fill a copy of a chunk.
func (lo *lowering) bring(c int, to store, key program.Key) []op {
	own, from := lo.held(c, "weights"), lo.weightBuf[c].work
	var list []op
	if lo.pl.Chunks[c].Weights == device.HostTier && own.len() > 0 {
		list = append(list, moveOp(device.HostToDev, key, to, from, own))
		from = to
	}
	if lo.sharded(c, "weights") {
		src := program.Region{}
		if own.len() > 0 {
			src = from.of(own)
		}
		list = append(list, lo.between(graph.AllGather, key, c, false, to.of(lo.whole(c)), src))
	}
	return list
}
