package search

import (
	"cmp"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// weights are the weights of a model in chunks that are as small as they may be.
type weights struct {
	layers int
	chunks []plan.Chunk
	bytes  []int64 // of each chunk
	reads  [][]int // chunks that each segment reads
	kinds  [][]int // the largest kinds of chunks in layers, each with its chunks from the first layer to the last
	small  []int   // what else layers have
	ends   []int   // what the first and the last segment read, in the order of the chunks: embedding, head, final norm
	tables []int   // of these those that are tables: they are on the host if anything is, where rows are looked up, and never streamed
}

// maxKinds bounds the kinds of chunks that are streamed one without the other. Layers have four or five large
// ones; small ones, such as those of adapters, are streamed if all others are.
const maxKinds = 5

func newWeights(g *graph.Graph) *weights {
	w := &weights{layers: g.Model.Layers, chunks: plan.Layout(g, 1), reads: make([][]int, len(g.Segments))}
	named := map[string]int{} // kinds by the name of their first parameter, without the number of the layer
	for c, ch := range w.chunks {
		var sum int64
		for i := ch.First; i < ch.Last; i++ {
			sum += g.Stored(i).Bytes()
		}
		w.bytes = append(w.bytes, (sum+63)/64*64) // buffers begin at multiples of 64 bytes
		if ch.Tables(g) {
			w.tables = append(w.tables, c)
			continue
		}
		reader := 0
		for s := range g.Segments {
			if slices.Contains(g.Segments[s].Params, ch.First) {
				w.reads[s], reader = append(w.reads[s], c), s
			}
		}
		if reader == 0 || reader == len(g.Segments)-1 {
			w.ends = append(w.ends, c)
			continue
		}
		name := unnumbered(g.Params[ch.First].Name)
		k, known := named[name]
		if !known {
			k = len(w.kinds)
			named[name], w.kinds = k, append(w.kinds, nil)
		}
		w.kinds[k] = append(w.kinds[k], c)
	}
	slices.SortStableFunc(w.kinds, func(a, b []int) int { return cmp.Compare(w.total(b), w.total(a)) })
	large := min(maxKinds, len(w.kinds))
	w.small = slices.Concat(w.kinds[large:]...)
	w.kinds = w.kinds[:large]
	return w
}

// unnumbered returns the name of a parameter without the number of its layer.
func unnumbered(name string) string {
	parts := strings.Split(name, ".")
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return strings.Trim(s, "0123456789") == "" }), ".")
}

// plan returns the plan in which a share of the weights is on the host. batch says all else.
func (w *weights) plan(batch *plan.Plan, s *share) *plan.Plan {
	pl := *batch
	pl.Chunks, pl.Cache = slices.Clone(w.chunks), s.cache
	for c := range pl.Chunks {
		pl.Chunks[c].Grads, pl.Chunks[c].State = device.HostTier, device.HostTier // gradients if there are any, never a state
	}
	for _, c := range w.list(nil, s) {
		pl.Chunks[c].Weights = device.HostTier
	}
	for _, c := range w.tables {
		pl.Chunks[c].Weights, pl.Chunks[c].Lookup = device.HostTier, plan.LookupOnHost
	}
	return &pl
}

// total returns the bytes of some chunks.
func (w *weights) total(chunks []int) (sum int64) {
	for _, c := range chunks {
		sum += w.bytes[c]
	}
	return sum
}

// all returns the bytes of all chunks that are not tables.
func (w *weights) all() (sum int64) {
	for _, b := range w.bytes {
		sum += b
	}
	return sum - w.total(w.tables)
}

// share is a choice of weights that are left on the host.
type share struct {
	all   uint // the kinds, as bits, that are streamed in all layers
	some  uint // those that are in n of them
	n     int
	ends  int  // of the ends, so many are streamed
	small bool // and all that is small
	ahead int  // layers whose weights are in the cache besides those of the layer that computes: 1 or 0

	away     int64 // bytes of these weights
	resident int64 // bytes of the others
	streamed int64 // bytes that cross the link in a step: those of a tied embedding twice
	cache    int64
}

// cost returns what a share costs, in bytes that cross the link. Where nothing crosses it while a layer computes, the layers' time
// comes on top: that of reading them from the device's memory, at about ten times the link's rate.
func (s *share) cost() int64 {
	if s.ahead > 0 {
		return s.streamed
	}
	return s.streamed + s.streamed/10
}

// shares lists choices from the cheapest, in which nothing is streamed, to the one with everything streamed and the smallest
// cache.
func (w *weights) shares() []share {
	var list []share
	var chunks []int
	add := func(s share) {
		chunks = w.list(chunks[:0], &s)
		s.away = w.total(chunks)
		s.resident = w.all() - s.away
		for s.ahead = range 2 {
			s.streamed, s.cache = w.cache(chunks, s.ahead)
			list = append(list, s)
		}
	}
	sets := uint(1) << len(w.kinds)
	for ends := range len(w.ends) + 1 {
		for all := range sets {
			add(share{all: all, ends: ends})
			for some := uint(1); some < sets; some++ {
				for n := 1; n < w.layers && all&some == 0; n++ {
					add(share{all: all, some: some, n: n, ends: ends})
				}
			}
		}
	}
	add(share{all: sets - 1, ends: len(w.ends), small: true})
	slices.SortStableFunc(list, func(a, b share) int { return cmp.Compare(a.cost(), b.cost()) })
	return list
}

// list appends the chunks of a share.
func (w *weights) list(list []int, s *share) []int {
	for k, kind := range w.kinds {
		switch {
		case s.all>>k&1 == 1:
			list = append(list, kind...)
		case s.some>>k&1 == 1:
			list = spread(list, kind, min(s.n, len(kind)))
		}
	}
	if s.small {
		list = append(list, w.small...)
	}
	return append(list, w.ends[:s.ends]...)
}

// cache returns the bytes of streamed chunks that all segments read, and those of the cache: of the chunks that any segment and
// the given number of segments after it read.
func (w *weights) cache(chunks []int, ahead int) (all, most int64) {
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
		all += reads[s]
	}
	for s := range w.reads {
		var sum int64
		for _, n := range reads[s : s+1+ahead] {
			sum += n
		}
		most = max(most, sum)
	}
	return all, most
}

// spread appends n of the chunks, at distances as even as possible, from the last to the first. The last layer's is
// streamed rather than the first's, since a prompt needs less of that layer.
func spread(list, chunks []int, n int) []int {
	last := len(chunks) - 1
	for i := range n {
		list = append(list, chunks[last-i*last/max(n-1, 1)])
	}
	return list
}
