package graph

import (
	"hash/fnv"
	"math"
	"slices"
)

// Noise while training: dropout of what adapters read, and NEFTune (Jain et al., 2310.05914).
//
//	drop k x | linear low k A        the weight itself reads x
//
// Each token has a key, which is an input like its target, so what is drawn for it does not depend on how a plan divides tokens. In
// validations all keys are 0: then there is no noise. No mask is stored. The backward pass drops the gradient by the same mask, drawn
// again, and draws x again for A's gradient, so that nothing is kept of dropout between the passes.

// dropped returns what an adapter whose first factor is down reads of x.
func dropped(b *builder, name string, x Use, down string) Use {
	rate := b.m.LoRA.Dropout
	if b.g.Noise < 0 || rate == 0 {
		return x
	}
	y := b.all(b.tokens(name, x.Hi-x.Lo, b.g.DType))
	b.node(Drop, Attr{Rate: rate, Param: maskOf(down)}, y, x, b.all(b.g.Noise))
	return y
}

// maskOf returns the number of the mask that belongs to a parameter. It depends on the name alone, so that a run has the same masks
// whatever else the model has.
func maskOf(param string) int {
	h := fnv.New32a()
	h.Write([]byte(param))
	return int(h.Sum32())
}

// jitter adds NEFTune's noise to what the embedding makes, which was multiplied by scale unless that is 0. As the embedding itself makes
// it in transformers, where Gemma's does multiply, and others' result is multiplied later.
func jitter(b *builder, x int, scale float64) {
	m := b.m
	if b.g.Noise < 0 || m.Neftune == 0 {
		return
	}
	by := m.Neftune / math.Sqrt(float64(b.g.Sequence())*float64(m.Width))
	if scale != 0 && !m.ScaledEmbed {
		by *= scale
	}
	b.node(Jitter, Attr{Scale: by, Param: maskOf(b.list[0].Name)}, b.all(x), b.all(b.g.Noise))
}

func diffDrop(b *differentiator, n *Node) {
	dx, acc := b.into(n.Args[DropX])
	attr := n.Attr
	attr.Acc = acc
	b.node(Drop, attr, dx, b.of(n.Args[DropY]), n.Args[DropKeys])
}

// droppedBy returns the node of the segment that made x, if it is one that drops; else nil.
func (b *differentiator) droppedBy(x Use) *Node {
	i := slices.IndexFunc(b.seg.Forward, func(n Node) bool { return n.Op == Drop && n.Args[DropY] == x })
	if i < 0 {
		return nil
	}
	return &b.seg.Forward[i]
}

// redraw appends what such a node computes, and returns it.
func (b *differentiator) redraw(n *Node) Use {
	v := b.g.Values[n.Args[DropY].Value]
	v.Name += ".again"
	if !v.Chunked {
		v.Kind = Gradient
	}
	again := b.all(b.value(v))
	b.node(Drop, n.Attr, again, n.Args[DropX], n.Args[DropKeys])
	return again
}
