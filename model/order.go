package model

import "strings"

// Files and operators disagree on the order of some parameters' elements. It is changed where
// whole parameters pass.
//
//	Heads           files have queries, keys and values head by head
//	Second          of experts' adapters files have all experts for each rank
//	Turned, InTurn  files have gpt-oss's experts as [in, out], gate and up in turn
//
// For example, an expert of inputs a, b, gates g, h and ups u, v:
//
//	file           operators
//	ga ua ha va    ga gb
//	gb ub hb vb    ha hb
//	               ua ub
//	               va vb

// Reordered reports whether files have another order of elements than operators.
func (p Param) Reordered() bool { return p.Heads > 0 || p.ofExperts() || p.Turned || p.InTurn }

// Second reports whether a parameter is the second factor of an adapter, see LoRA.
func (p Param) Second() bool { return p.Adapter && strings.HasSuffix(p.Name, loraB) }

// ofExperts reports whether a parameter is the second factor of experts' adapters.
func (p Param) ofExperts() bool { return p.Second() && p.Experts > 0 }

// blocks returns in how many groups of how many blocks files have a parameter, of which operators have
// the groups' first blocks first, then their second ones, and so on. 0: that is not how they differ.
func (p Param) blocks() (groups, each int) {
	if p.ofExperts() {
		return int(p.Elems()) / p.Experts, p.Experts
	}
	return p.Heads, 3
}

// FromFile copies a parameter in the order of files to dst in the order of operators.
func (p Param) FromFile(dst, src []float32) {
	if groups, each := p.blocks(); groups > 0 {
		reorder(dst, src, each, groups)
		return
	}
	for r := range p.runs {
		for k := range r.n {
			dst[r.ours+k*r.stride] = src[r.theirs+k*r.step]
		}
	}
}

// ToFile is the inverse of FromFile.
func (p Param) ToFile(dst, src []float32) {
	if groups, each := p.blocks(); groups > 0 {
		reorder(dst, src, groups, each)
		return
	}
	for r := range p.runs {
		for k := range r.n {
			dst[r.theirs+k*r.step] = src[r.ours+k*r.stride]
		}
	}
}

// reorder transposes blocks: src has across of them in each of down groups.
func reorder(dst, src []float32, across, down int) {
	n := len(src) / (across * down)
	for i := range down {
		for j := range across {
			copy(dst[(j*down+i)*n:][:n], src[(i*across+j)*n:])
		}
	}
}

// run is a run of elements, n of them: from index ours on in steps of stride, and from index
// theirs on in steps of step.
type run struct{ ours, theirs, n, stride, step int }

// runs iterates over runs of an input's weights, short ones, so that the lines of memory that
// adjacent inputs share are still in the cache. A bias is turned like a matrix of one input.
func (p Param) runs(yield func(run) bool) {
	const short = 32
	ins, parts := p.Cols, 1
	if p.Vector {
		ins = 1
	}
	if p.InTurn {
		parts = 2
	}
	size := int(p.Elems()) / p.Experts
	outs := size / ins
	each := outs / parts
	for block := range p.Experts * parts {
		expert, part := block/parts*size, block%parts
		for lo := 0; lo < each; lo += short {
			for i := range ins {
				r := run{expert + (part*each+lo)*ins + i, expert + i*outs + lo*parts + part, min(short, each-lo), ins, parts}
				if !yield(r) {
					return
				}
			}
		}
	}
}
