package graph

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// Parameters that are adjacent in memory.
//
// A layer's parameters are stored in a different order from that in which they are read, so that those treated
// alike are one range of memory. Where operators would read several of them together, one value spans them. For
// example, a layer of Qwen 2:
//
//	read    norm1  q qb  k kb  v vb  o  norm2  gate  up  down
//	stored  q k v  o  gate up  down | norm1 qb kb vb norm2
//
// q..v are the weight of one product, whose bias is qb..vb, and gate..up that of another. Package program keeps such
// neighbours in one chunk under every plan, see plan.Runs.
//
// Known weakness: chunks become larger, so plans for little memory have fewer to choose from.

// stored returns parameters in the order in which chunks store them: within a layer, frozen ones before trained ones,
// and within each of these groups matrices before vectors. So what updates treat alike is adjacent, and a GPU needs
// only a few calls for a layer's updates and norms; a call per vector would take longer to launch than to run.
func stored(list []model.Param) []model.Param {
	rank := func(p model.Param) int {
		k := 0
		if !p.Frozen {
			k = 2
		}
		if p.Vector {
			k++
		}
		return k
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b model.Param) int {
		return cmp.Or(cmp.Compare(a.Layer, b.Layer), cmp.Compare(rank(a), rank(b)))
	})
}

// linears is linear for neighbouring bands of columns of one value, each with a weight and bias of its own:
// queries, keys and values, or gates and ups. Where nothing sets them apart they are one product, whose
// derivative with respect to x is one sum instead of several that are rounded on the way.
func (b *builder) linears(bands []Use, x Use, p *next, bias bool) {
	first := p.i
	var weights, biases []Use
	for range bands {
		weights = append(weights, p.param())
		if bias {
			biases = append(biases, p.param())
		}
	}
	if b.m.InOut() || !b.adjacent(weights) || !b.adjacent(biases) {
		p.i = first
		for _, band := range bands {
			b.linear(band, x, p, bias, absent)
		}
		return
	}
	y := Use{bands[0].Value, bands[0].Lo, bands[len(bands)-1].Hi}
	nf4 := b.g.Params[b.g.ParamOf(weights[0].Value)].NF4
	b.node(Linear, Attr{WT: true, NF4: nf4}, y, x, b.span(weights), b.span(biases), absent)
}

// adjacent reports whether parameters are stored one after the other in a form that one operator can read,
// and are all trained or all frozen. Weights in 4 bits are read together where there are no derivatives: trained adapters beside them would
// get other bits. Nor are weights that are multiplied in FP8, where the gradients of queries, keys and values have scales of their own.
func (b *builder) adjacent(list []Use) bool {
	for i, u := range list {
		k := b.g.ParamOf(u.Value)
		p := &b.g.Params[k]
		if _, _, adapted := b.m.Factors(p.Name); adapted || p.FP8 || p.NF4 && b.g.Context == 0 {
			return false
		}
		if i == 0 {
			continue
		}
		if last := &b.g.Params[k-1]; b.g.ParamOf(list[i-1].Value) != k-1 || p.Frozen != last.Frozen || p.NF4 != last.NF4 || p.Unit != last.Unit {
			return false
		}
	}
	return true
}

// span makes one value of adjacent parameters, absent if there are none.
func (b *builder) span(list []Use) Use {
	if len(list) == 0 {
		return absent
	}
	v := b.g.Values[list[0].Value]
	for _, u := range list[1:] {
		next := &b.g.Values[u.Value]
		if b.g.Params[next.Param].Vector {
			v.Cols += next.Cols
		} else {
			v.Rows += next.Rows
		}
	}
	v.Name += ".." + b.g.Values[list[len(list)-1].Value].Name
	v.Params = len(list)
	return b.all(b.value(v))
}
