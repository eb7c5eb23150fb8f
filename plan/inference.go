package plan

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// This file plans inference: programs that update nothing, on one device, such as an evaluation or the two programs
// of a generator.
//
// Approach. No time is predicted, and so no machine need be measured: one rule decides. Weights on the device are
// read at its memory's rate. Those on the host cross a link first, which takes 10 to 100 times as long, for every
// token that is generated. So the fewest bytes are left on the host. Until the programs fit, there are
//
//  1. fewer logits at a time, then smaller micro-batches, which go layer by layer together;
//  2. more and more bytes of weights on the host. The cache holds what two consecutive layers stream, so that the
//     next layer's weights cross the link while this layer computes. So what is streamed is spread evenly;
//  3. room in the cache for one layer only.
//
// Example: each of six layers has parameters of 1 and 4 MiB, and 5 MiB are lacking. With the large one of every other
// layer on the host, the device holds 12 MiB less, and 4 MiB of cache: 8 are won. With all the small ones and the large
// ones of two layers, 14 MiB less and 6 of cache: also 8, but more is streamed. With the large ones of two layers,
// only 4 are won. All choices of this kind are compared: some kinds of parameters in all layers, and one kind in
// some of them.
//
// Known weakness: which choices fit is first reckoned as if activations and the cache were never at the same address,
// so a choice that streams a little less may be missed.

// Inference returns programs, one per graph, that compute the given number of sequences (1 for generation) within the
// machine's capacity. The graphs are of one model; the programs of all but the first are lowered with the first as
// their base. The error is a *Misfit if nothing fits.
func Inference(ctx context.Context, graphs []*graph.Graph, sequences int, mode program.Mode, m *Machine) ([]*program.Program, error) {
	n := &inference{ctx: ctx, graphs: graphs, m: m, opt: program.Options{Mode: mode, Capacity: m.Capacity}}
	var tight *program.Plan
	for _, pl := range n.batches(sequences) {
		if fits, err := n.lower(pl); err != nil || fits {
			return n.programs, err
		}
		tight = pl
	}
	return n.stream(tight)
}

// inference is the state of one search.
type inference struct {
	ctx      context.Context
	graphs   []*graph.Graph
	m        *Machine
	opt      program.Options
	programs []*program.Program // the latest
}

// lower lowers a plan for the first graph, with the lengths of the others where it is theirs, and reports whether all
// programs fit.
func (n *inference) lower(pl *program.Plan) (bool, error) {
	n.programs = nil
	var need [device.NumTiers]int64
	for i, g := range n.graphs {
		own, opt := *pl, n.opt
		if i > 0 {
			own.SequenceLength, own.HeadRows = g.Seq, pl.MicroBatch*g.Seq
			opt.Base = n.programs[0]
		}
		p, err := program.Lower(n.ctx, g, &own, opt)
		if err != nil {
			return false, err
		}
		n.programs = append(n.programs, p)
		for t, h := range p.Height {
			need[t] = max(need[t], h)
		}
	}
	fits := n.m.Shared == 0 || need[device.DeviceTier]+need[device.HostTier] <= n.m.Shared
	for t, h := range need {
		fits = fits && h <= n.m.Capacity[t]
	}
	return fits, nil
}

// batches lists plans with all weights on the device, from most sequences and logits at a time to fewest.
func (n *inference) batches(sequences int) []*program.Plan {
	g := n.graphs[0]
	list := []*program.Plan{program.Plain(g, sequences)}
	if g.Context > 0 {
		return list
	}
	least := g.CutSequences()
	req := &Request{Graph: g}
	for b := sequences; ; b /= 2 {
		pl := program.Plain(g, sequences)
		pl.MicroBatch, pl.MicroBatches, pl.Group, pl.HeadRows = b, sequences/b, sequences/b, b*g.Seq
		if n.opt.Mode != program.Grads { // where to cut sums over tokens is the device's choice
			pl.HeadRows = req.Head(b*g.Seq, n.m.Capacity[device.DeviceTier])
		}
		list = append(list, pl)
		if b%2 != 0 || (b/2)%least != 0 {
			break
		}
	}
	if n.opt.Mode == program.Grads {
		pl := *list[len(list)-1]
		pl.Group, pl.Activations = 1, slices.Clone(pl.Activations)
		for l := range pl.Activations {
			pl.Activations[l] = program.Recomputed("full")
		}
		list = append(list, &pl)
	}
	return list
}

// stream finds the plan that leaves the fewest bytes on the host, given how sequences are batched.
func (n *inference) stream(batch *program.Plan) ([]*program.Program, error) {
	w := newWeights(n.graphs[0])
	for _, ahead := range []int{1, 0} { // layers whose weights are in the cache besides those of the layer that computes
		shares := w.shares(ahead)
		all := &shares[len(shares)-1]
		fits, err := n.lower(n.streamed(batch, w, all))
		if err != nil {
			return nil, err
		}
		if !fits {
			continue
		}
		room := n.m.Capacity[device.DeviceTier] - n.height(device.DeviceTier) + all.held
		for i := range shares {
			if s := &shares[i]; s.held > room {
				continue
			}
			if fits, err := n.lower(n.streamed(batch, w, &shares[i])); err != nil || fits {
				return n.programs, err
			}
		}
	}
	return nil, n.misfit(batch)
}

// streamed returns the plan in which a share of the weights is on the host.
func (n *inference) streamed(batch *program.Plan, w *weights, s *share) *program.Plan {
	pl := *batch
	pl.Chunks, pl.Cache = slices.Clone(w.chunks), s.cache
	for c := range pl.Chunks {
		if slices.Contains(s.chunks, c) {
			pl.Chunks[c].Weights = device.HostTier
		}
		pl.Chunks[c].Grads, pl.Chunks[c].State = device.HostTier, device.HostTier // gradients if there are any, never a state
	}
	return &pl
}

// height returns the memory of a tier that the latest programs take.
func (n *inference) height(t device.Tier) (most int64) {
	for _, p := range n.programs {
		most = max(most, p.Height[t])
	}
	return most
}

// misfit describes what the latest programs lack.
func (n *inference) misfit(pl *program.Plan) *Misfit {
	most := slices.MaxFunc(n.programs, func(a, b *program.Program) int {
		return cmp.Compare(a.Height[device.DeviceTier], b.Height[device.DeviceTier])
	})
	e := NewMisfit(&Candidate{Plan: pl, Programs: []*program.Program{most}, Program: most})
	if e.Need == 0 { // each tier by itself is large enough
		e.Tier, e.Need, e.Have = device.HostTier, n.height(device.DeviceTier)+n.height(device.HostTier), n.m.Shared
	}
	return e
}

// weights are the weights of a model in chunks that are as small as they may be.
type weights struct {
	chunks []program.Chunk
	bytes  []int64 // of each chunk
	reads  [][]int // chunks that each segment reads
	kinds  [][]int // the largest kinds of chunks in layers, each with its chunks from the first layer to the last
	rest   []int   // what else layers have, then the embedding and the head
}

// maxKinds bounds the kinds of chunks that may be streamed in some layers only. Layers have four or five large
// ones; small ones, such as those of adapters, are streamed last.
const maxKinds = 5

func newWeights(g *graph.Graph) *weights {
	w := &weights{chunks: program.Layout(g, 1), reads: make([][]int, len(g.Segments))}
	named := map[string]int{} // kinds by the name of their first parameter, without the number of the layer
	var ends []int
	for c, ch := range w.chunks {
		var sum int64
		for i := ch.First; i < ch.Last; i++ {
			sum += g.Stored(i).Bytes()
		}
		w.bytes = append(w.bytes, (sum+63)/64*64)
		reader := 0
		for s := range g.Segments {
			if slices.Contains(g.Segments[s].Params, ch.First) {
				w.reads[s], reader = append(w.reads[s], c), s
			}
		}
		if reader == 0 || reader == len(g.Segments)-1 {
			ends = append(ends, c)
			continue
		}
		name := strings.Map(withoutDigits, g.Params[ch.First].Name)
		k, known := named[name]
		if !known {
			k = len(w.kinds)
			named[name], w.kinds = k, append(w.kinds, nil)
		}
		w.kinds[k] = append(w.kinds[k], c)
	}
	slices.SortStableFunc(w.kinds, func(a, b []int) int { return cmp.Compare(w.total(b), w.total(a)) })
	large := min(maxKinds, len(w.kinds))
	w.rest = append(slices.Concat(w.kinds[large:]...), ends...)
	w.kinds = w.kinds[:large]
	return w
}

func withoutDigits(r rune) rune {
	if '0' <= r && r <= '9' {
		return -1
	}
	return r
}

// total returns the bytes of some chunks.
func (w *weights) total(chunks []int) (sum int64) {
	for _, c := range chunks {
		sum += w.bytes[c]
	}
	return sum
}

// share is a choice of weights that are left on the host.
type share struct {
	chunks   []int
	streamed int64 // their bytes
	cache    int64 // bytes of the cache for them
	held     int64 // bytes of weights on the device, with the cache
}

// shares lists choices from fewest streamed bytes to most, which is all of them. The cache has room for what a layer
// streams and for what the given number of layers after it do.
func (w *weights) shares(ahead int) []share {
	var list []share
	add := func(chunks []int) {
		s := share{chunks: chunks, streamed: w.total(chunks), cache: w.cache(chunks, ahead)}
		s.held = s.cache - s.streamed
		for _, b := range w.bytes {
			s.held += b
		}
		list = append(list, s)
	}
	for set := range 1 << len(w.kinds) { // kinds that are streamed in all layers
		var whole []int
		for k, kind := range w.kinds {
			if set>>k&1 == 1 {
				whole = append(whole, kind...)
			}
		}
		add(whole)
		for k, kind := range w.kinds {
			for n := 1; n < len(kind) && set>>k&1 == 0; n++ {
				add(append(spread(kind, n), whole...))
			}
		}
	}
	for n := range w.rest {
		add(append(slices.Concat(w.kinds...), w.rest[:n+1]...))
	}
	slices.SortStableFunc(list, func(a, b share) int { return cmp.Compare(a.streamed, b.streamed) })
	return list
}

// cache returns the bytes of the cache for streamed chunks: of those that any segment and the given number of segments
// after it read.
func (w *weights) cache(chunks []int, ahead int) (most int64) {
	streamed := make([]bool, len(w.chunks))
	for _, c := range chunks {
		streamed[c] = true
	}
	reads := make([]int64, len(w.reads)+ahead)
	for s, list := range w.reads {
		for _, c := range list {
			if streamed[c] {
				reads[s] += w.bytes[c]
			}
		}
	}
	for s := range w.reads {
		var sum int64
		for _, n := range reads[s : s+1+ahead] {
			sum += n
		}
		most = max(most, sum)
	}
	return most
}

// spread returns n of the chunks, at even distances.
func spread(chunks []int, n int) (list []int) {
	for i, c := range chunks {
		if (i+1)*n/len(chunks) > i*n/len(chunks) {
			list = append(list, c)
		}
	}
	return list
}
