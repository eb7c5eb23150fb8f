package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Batches of sequences that are generated together (FlexGen, 2303.06865). Units go layer by layer for all of them, so a layer's
// weights are brought once; what a batch keeps meanwhile is where its plan.Batch says:
//
//	hidden on host    x of a layer goes to the host when it is computed, and back while the unit before the next layer's runs
//	cache elsewhere   comes to the device while the unit before runs, goes back while the unit after does: so at most
//	                  three batches' caches of a layer are there, one arriving, one read, one leaving
//	attend on host    only queries, keys and values of the new tokens cross the link, and what attention makes of them
//
//	h2d      kv 1       kv 2       kv 3
//	compute  unit 0     unit 1     unit 2     of one layer
//	d2h                 kv 0       kv 1
//
// Layers that only read a cache (model.Lent) send nothing back.
//
// Known weaknesses: caches cross the link with all their room, and go back whole, since programs have no regions that depend on
// a position. Where the host attends, the device waits for it.

// leaveDevice moves attention to the host's cores where the plan says so, and lets hidden states leave the device between layers.
func leaveDevice(b *builder, units []unit) {
	st := b.st
	if len(st.pl.Batches) == 0 {
		return
	}
	made := map[instance]int{} // unit that computed the hidden state
	var moves []insertion
	for i := range units {
		u, batch := &units[i], st.pl.BatchAt(units[i].micro)
		seg := &st.g.Segments[u.segment]
		if batch.Attend == plan.AttendOnHost {
			attendOnHost(b, u)
		}
		if batch.Hidden == device.DeviceTier {
			continue
		}
		if in := (instance{value: seg.In, micro: u.micro}); seg.In >= 0 && readAgain(u, in) {
			moves = append(moves, leaveUnit(b, units, in, made[in], i)...)
		}
		made[instance{value: seg.Out, micro: u.micro}] = i
	}
	insertOps(units, moves)
}

// readAgain makes a unit read the copy of a hidden state that has come back, and reports whether it reads it.
func readAgain(u *unit, in instance) (reads bool) {
	for _, o := range u.work {
		for k := range o.refs {
			if r := &o.refs[k]; r.value == in.value {
				r.copy, reads = 1, true
			}
		}
	}
	return reads
}

// leaveUnit lists the copies of a hidden state from the unit that makes it to the host, and back for the unit that reads it.
func leaveUnit(b *builder, units []unit, in instance, made, read int) []insertion {
	v := &b.st.g.Values[in.value]
	all := ref{value: in.value, micro: in.micro, rows: b.st.rows(), hi: v.Cols}
	home := hostRows(b, all)
	key := program.Key{Segment: units[read].segment, Micro: in.micro, Chunk: -1}
	away, back := copyOp(device.DevToHost, key, home, program.Region{}), copyOp(device.HostToDev, key, program.Region{}, home)
	away.refs, back.refs = []ref{none, all}, []ref{all, none}
	back.refs[0].copy = 1
	return []insertion{{spot{made, len(units[made].work) - 1}, away}, {spot{max(made+1, read-1), -1}, back}}
}

// hostRows allocates a buffer of the host for rows of a value, and returns the region of all of it.
func hostRows(b *builder, r ref) program.Region {
	v := &b.st.g.Values[r.value]
	buf := program.Buffer{Name: instanceName(v.Name, instance{value: r.value, micro: r.micro}) + ".host", Tier: device.HostTier,
		Class: program.ClassActivations, DType: v.DType, Rows: 1, Cols: v.Rows * v.Cols}
	if v.PerToken {
		buf.Rows, buf.Cols, buf.RowUnit, buf.Cuts = b.st.rows(), v.Cols, b.p.RowUnit, v.Cuts
	}
	at := b.buffer(buf)
	return program.Region{Buf: at, Rows: r.rows, Cols: v.Cols, Stride: v.Cols}
}

// attendOnHost moves a unit's attention to the host's cores.
func attendOnHost(b *builder, u *unit) {
	j := slices.IndexFunc(u.work, func(o *op) bool { return o.in.Op == graph.AttentionAt })
	if j >= 0 {
		moveToHost(b, u, j, graph.AttentionAtKV, graph.AttentionAtPos) // these are there, see bufferCaches and bufferScalars
	}
}

// lookUpOnHost moves operators that look up rows to the host's cores where the plan says so. Only these rows cross the link:
// 262144 rows of 8960 numbers are 4.7 GB in bf16, those of 2048 tokens 37 MB.
func lookUpOnHost(b *builder, units []unit) {
	st := b.st
	if !slices.ContainsFunc(st.pl.Chunks, func(c plan.Chunk) bool { return c.Lookup == plan.LookupOnHost }) {
		return
	}
	for i := range units {
		u := &units[i]
		for j := 0; j < len(u.work); j++ {
			o := u.work[j]
			if o.in.Op != graph.Embed && o.in.Op != graph.EmbedAt {
				continue
			}
			if c := st.chunkOf[st.g.Values[o.refs[graph.EmbedWTE].value].Param]; st.pl.Chunks[c].Lookup == plan.LookupOnHost {
				moveToHost(b, u, j, graph.EmbedTokens, graph.EmbedWTE, graph.EmbedAtPos) // see bufferInputs, homeWeights, bufferScalars
			}
		}
	}
}

// moveToHost moves the j-th operator of a unit to the host's cores: what it reads is copied there, except for operands that are there,
// and its results are copied back.
func moveToHost(b *builder, u *unit, j int, there ...int) {
	o := u.work[j]
	o.in.Stream = device.HostCompute
	var before, after []*op
	for k := range o.refs {
		r := o.refs[k]
		if r.value < 0 || slices.Contains(there, k) {
			continue
		}
		home := hostRows(b, r)
		o.refs[k], o.in.Args[k] = none, home
		if a := o.in.Op.Info().Args[k].Access; a == graph.Write || a == graph.Sum && !o.in.Attr.Acc {
			back := copyOp(device.HostToDev, o.in.Key, program.Region{}, home)
			back.refs = []ref{r, none}
			after = append(after, back)
			continue
		}
		away := copyOp(device.DevToHost, o.in.Key, home, program.Region{})
		away.refs = []ref{none, r}
		before = append(before, away)
	}
	u.work = slices.Concat(u.work[:j], before, []*op{o}, after, u.work[j+1:])
}

// stay is the time away from home of a cache, while consecutive units use it.
type stay struct {
	instance        // of the cache: its value and its batch
	uses            []operand
	earliest, until int // units between which it may be away
}

// bufferCaches gives the caches of each batch their homes between steps, and brings those that are elsewhere to where attention reads
// them.
func bufferCaches(b *builder, units []unit, args []operand) {
	homes := map[instance]int{}
	for n, s := range cacheStays(b.st, units, args) {
		batch, v := b.st.pl.BatchAt(units[s.uses[0].unit].micro), &b.st.g.Values[s.value]
		home, ok := homes[s.instance]
		if !ok {
			home = cacheBuffer(b, s.instance, batch.Cache)
			homes[s.instance] = home
		}
		at := device.DeviceTier
		if batch.Attend == plan.AttendOnHost {
			at = device.HostTier
		}
		stops := []int{home}
		for len(stops) <= int(batch.Cache)-int(at) {
			stops = append(stops, cacheStop(b, stops[len(stops)-1], n))
		}
		resolve(s.uses, func(ref) program.Region {
			return program.Region{Buf: stops[len(stops)-1], Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
		})
		bringCache(b, units, stops, &s)
	}
}

// cacheStays lists the stays of all caches. Of the units between two of the same cache, each may have half.
func cacheStays(st *step, units []unit, args []operand) (list []stay) {
	latest := map[instance]int{}
	for _, a := range args {
		key := instance{value: a.ref().value, micro: st.pl.BatchOf(a.ref().micro)}
		n, before := latest[key]
		if before && n == len(list)-1 {
			list[n].uses = append(list[n].uses, a)
			continue
		}
		s := stay{instance: key, uses: []operand{a}, until: len(units) - 1}
		if before {
			s.earliest = (list[n].last() + a.unit + 1) / 2
			list[n].until = s.earliest - 1
		}
		latest[key] = len(list)
		list = append(list, s)
	}
	return list
}

// addsToCache reports whether an operator changes a cache: attention of queries alone does not.
func addsToCache(a operand) bool {
	if a.op.in.Op != graph.AttentionAt {
		return true
	}
	cols := a.op.in.Args[graph.AttentionAtQKV].Cols
	if r := a.op.refs[graph.AttentionAtQKV]; r.value >= 0 {
		cols = r.hi - r.lo
	}
	return cols > a.op.in.Attr.Heads*a.op.in.Attr.HeadDim
}

// last returns the last unit that uses the cache.
func (s *stay) last() int { return s.uses[len(s.uses)-1].unit }

// cacheBuffer allocates the home of a batch's cache of a layer.
func cacheBuffer(b *builder, key instance, tier device.Tier) int {
	v := &b.st.g.Values[key.value]
	name := numbered(v.Name, key.micro)
	return b.buffer(program.Buffer{Name: name, Tier: tier, Class: program.ClassActivations, DType: v.DType, Rows: 1, Cols: v.Rows * v.Cols, Persistent: true, Init: []string{name}})
}

// cacheStop allocates a buffer for the n-th stay of a cache in the next tier towards the device.
func cacheStop(b *builder, like, n int) int {
	at := b.stageBuffer(like, b.p.Buffers[like].Tier-1)
	b.p.Buffers[at].Name = numbered(b.p.Buffers[at].Name+"@", n)
	return at
}

// bringCache adds the copies of a cache from its home, the first of its stops, to the last, each hop a unit ahead of the next, and back if keys and values were added.
func bringCache(b *builder, units []unit, stops []int, s *stay) {
	p, first := b.p, s.uses[0].unit
	key := program.Key{Segment: units[first].segment, Micro: units[first].micro, Chunk: -1}
	hops := len(stops) - 1
	for k := range hops {
		u := &units[max(s.earliest, first-(hops-k))]
		from, to := stops[k], stops[k+1]
		u.before = append(u.before, copyOp(nearer[p.Buffers[from].Tier], key, p.BufferRegion(to), p.BufferRegion(from)))
	}
	for k := hops; k > 0 && slices.ContainsFunc(s.uses, addsToCache); k-- {
		u := &units[min(s.last()+1+hops-k, s.until)]
		to := stops[k-1]
		u.after = append(u.after, copyOp(farther[p.Buffers[to].Tier], key, p.BufferRegion(to), p.BufferRegion(stops[k])))
	}
}
