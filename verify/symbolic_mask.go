package verify

import (
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// What masks keep. The value of the kept elements of an atom is the atom's value and the mask's, each of which determines the other
// given the third, and says no more than which elements of the whole they are:
//
//	compress(x, mask)            kept(x)
//	expand(kept(x), mask)        x, if x is 0 wherever the mask keeps nothing
//	update(kept(p), kept(g))     kept(update(p, g)), if weights that are 0 stay so
//
// Weights are 0 there before the first step: the run makes masks of them. Moments need not be: an update makes them 0 whatever they
// were, and expands nothing. What an update that keeps zeros makes of them stays 0, so kept(p) can be expanded after each.

// whole is what kept elements are of.
type whole struct {
	value, mask Value
	zero        bool // all others are 0
}

// kept knows for the values of kept elements what they are of.
type kept map[Value]whole

// of returns the value of what a mask keeps of an atom.
func (k kept) of(w whole) Value {
	v := Value{w.value[0] ^ w.mask[0] ^ 0x3c6ef372fe94f82b, w.value[1] ^ (w.mask[1]^0xa54ff53a5f1d36f1)&^1}
	if known, ok := k[v]; ok && known.zero {
		w.zero = true
	}
	k[v] = w
	return v
}

// wholeName returns the name and the extent of that of which a mask keeps what is named: "p:x|n" is what that of x keeps of the n elements
// that "p:x" names. Other names are their own.
func wholeName(name string, at within) (full string, of within, some bool) {
	full, number, some := strings.Cut(name, program.KeptOf)
	if some {
		at.cols, _ = strconv.Atoi(number)
	}
	return full, at, some
}

// named returns the value of a name, given that of names of wholes.
func (k kept) named(name string, at within, value func(full string, of within) Value) Value {
	full, of, some := wholeName(name, at)
	if !some {
		return value(name, at)
	}
	kind, param, _ := strings.Cut(full, ":")
	state := !strings.HasPrefix(kind, gradBefore) // gradients are not 0 where nothing is kept
	return k.of(whole{value(full, of), initValue(maskName+param, graph.I32, within{}), state})
}

// gradBefore begins the names of gradients that a step leaves for the next.
const gradBefore = "grad.before"

// initial is initValue, also of what a mask keeps.
func (k kept) initial(name string, t graph.DType, at within) Value {
	return k.named(name, at, func(full string, of within) Value { return initValue(full, t, of) })
}

// wholeOf returns the value of what kept elements are of, and other values as they are.
func (k kept) wholeOf(v Value) Value {
	if w, ok := k[v]; ok {
		return w.value
	}
	return v
}

// masked: Compress and Expand, of an atom as a whole.
func (x *execution) masked(in *program.Instr, args []box) {
	const to, from, mask = graph.ExpandY, graph.ExpandX, graph.ExpandMask // and of Compress
	v := x.atom(from, args[from].atom)
	m := x.atom(mask, args[mask].atom)
	w, known := x.kept[v]
	switch {
	case args[to].bands > 1 || args[from].bands > 1 || args[mask].bands > 1:
		x.dependOnAll(in, args)
	case in.Op == graph.Compress:
		x.atoms[args[to].atom] = x.kept.of(whole{v, m, false})
	case known && w.zero && w.mask == m:
		x.atoms[args[to].atom] = w.value
	default:
		x.dependOnAll(in, args)
	}
}

// ofKept returns what turns values of kept elements into those of what they are of, for an update of weights of which a mask keeps
// some and in which the others stay 0; and that mask. Other updates compute with what they are given.
func (x *execution) ofKept(in *program.Instr, args []box, rule *optimizer.Rule, i at) (of func(Value) Value, mask Value) {
	const p = 0
	w, known := x.kept[x.atoms[args[p].at(i.block, i.band)]]
	for j := range rule.GradientAt() + 1 {
		k, ok := x.kept[x.atoms[args[j].at(i.block, i.band)]]
		known = known && ok && k.mask == w.mask
	}
	if !known || !w.zero || !in.Attr.Masked {
		return func(v Value) Value { return v }, Value{}
	}
	return func(v Value) Value {
		if k, ok := x.kept[v]; ok && k.mask == w.mask {
			return k.value
		}
		return v
	}, w.mask
}

// keepUpdated makes the results of an update, of an atom, those of what the mask keeps; without a mask it does nothing.
func (x *execution) keepUpdated(in *program.Instr, args []box, rule *optimizer.Rule, i at, mask Value) {
	if mask == (Value{}) {
		return
	}
	for j, s := range args {
		if _, writes := accessOf(in, j); writes && s.blocks > 0 && j != rule.ClipAt() && j != rule.ScalarsAt() {
			v := &x.atoms[s.at(i.block, i.band)]
			*v = x.kept.of(whole{*v, mask, true})
		}
	}
}
