package model

// Files and operators disagree on the order of some parameters' elements. It is converted where whole
// parameters are read and written.
//
//	Heads                    files have queries, keys and values head by head
//	Groups                   files have queries, keys and others group by group
//	Paired                   files have rows that rotary positions turn together side by side
//	Transposed, Interleaved  files have gpt-oss's experts as [in, out], gate and up interleaved
//	Transposed               files have the embedding's first factor as [rank, vocabulary], see LoRA
//	adapters                 files have the second factors of all experts in one, see LoRA
//
// For example, an expert with inputs a, b, gates g, h and ups u, v:
//
//	file           operators
//	ga ua ha va    ga gb
//	gb ub hb vb    ha hb
//	               ua ub
//	               va vb

// Reordered reports whether files order the elements differently from operators.
func (p Param) Reordered() bool {
	return p.Heads > 0 || p.Groups > 0 || p.Paired > 0 || p.Transposed || p.Interleaved || p.ofExperts()
}

// InRuns reports whether what operators have next to each other is next to each other in files, too, at least a row of it.
func (p Param) InRuns() bool {
	return p.Heads > 0 || p.Groups > 0 || p.Paired > 0 && !p.Vector || !p.Reordered()
}

// FromFileAt returns where operators have element i of files, and how many from there on follow each other in both, of a parameter for
// which InRuns holds.
func (p Param) FromFileAt(i int) (ours, n int) {
	width := p.Cols
	if p.Vector {
		width = 1
	}
	all := int(p.Elems())
	switch {
	case p.Heads > 0:
		n = all / (3 * p.Heads)
		head, which := i/n/3, i/n%3
		return (which*p.Heads+head)*n + i%n, n - i%n
	case p.Groups > 0:
		each := all / p.Groups
		for _, band := range p.Bands {
			rows := band.Rows * width
			if at := i%each - band.At*width; at >= 0 && at < rows {
				return ours + i/each*rows + at, rows - at
			}
			ours += p.Groups * rows
		}
	case p.Paired > 0:
		head, turned := p.Head*width, p.Paired*width
		pairs, rest := 0, turned
		if p.PairedLast {
			pairs, rest = head-turned, 0
		}
		first, at := i/head*head, i%head-pairs
		if at < 0 || at >= turned {
			at += pairs - rest
			return first + turned + at, head - turned - at
		}
		row := at / width
		return first + (row%2*(p.Paired/2)+row/2)*width + at%width, width - at%width
	}
	return i, all - i
}

// FromFile copies a parameter in the order of files to dst in the order of operators.
func (p Param) FromFile(dst, src []float32) {
	if p.Heads > 0 {
		reorder(dst, src, 3, p.Heads)
		return
	}
	if p.Groups > 0 {
		p.reorderBands(dst, src, false)
		return
	}
	if p.Paired > 0 {
		p.reorderPairs(dst, src, false)
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
	if p.Heads > 0 {
		reorder(dst, src, p.Heads, 3)
		return
	}
	if p.Groups > 0 {
		p.reorderBands(dst, src, true)
		return
	}
	if p.Paired > 0 {
		p.reorderPairs(dst, src, true)
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

// reorderPairs transposes the rows of each head that are rotated, and copies the others: from the order of files to that of operators
// or, if back, the other way.
func (p Param) reorderPairs(dst, src []float32, back bool) {
	width := p.Cols
	if p.Vector {
		width = 1
	}
	head, turned := p.Head*width, p.Paired*width
	pairs, rest := 0, turned // where they are in a head of files
	if p.PairedLast {
		pairs, rest = head-turned, 0
	}
	for at := 0; at < len(src); at += head {
		if back {
			reorder(dst[at+pairs:][:turned], src[at:][:turned], p.Paired/2, 2)
			copy(dst[at+rest:][:head-turned], src[at+turned:])
		} else {
			reorder(dst[at:][:turned], src[at+pairs:][:turned], 2, p.Paired/2)
			copy(dst[at+turned:at+head], src[at+rest:])
		}
	}
}

// run is a run of n elements: for operators from index ours on in steps of stride, in files from index theirs
// on in steps of step.
type run struct{ ours, theirs, n, stride, step int }

// runs iterates over runs of one input's weights, short enough that the cache lines that adjacent inputs share
// are still in the cache. A bias is treated like a matrix with one input.
func (p Param) runs(yield func(run) bool) {
	const short = 32
	if p.ofExperts() {
		p.factorRuns(yield)
		return
	}
	ins, parts := p.Cols, 1
	if p.Vector {
		ins = 1
	}
	if p.Interleaved {
		parts = 2
	}
	experts := max(p.Experts, 1)
	size := int(p.Elems()) / experts
	outs := size / ins
	each := outs / parts
	for block := range experts * parts {
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

// factorRuns iterates over the runs of the second factor of experts' adapters: one element of each expert.
func (p Param) factorRuns(yield func(run) bool) {
	outs, parts := p.Rows/p.Experts, 1
	if p.Interleaved {
		parts = 2
	}
	for i := range outs * p.Cols {
		out, rank := i/p.Cols, i%p.Cols
		theirs := out%(outs/parts)*parts + out/(outs/parts)
		if !yield(run{i, (theirs*p.Cols + rank) * p.Experts, p.Experts, outs * p.Cols, 1}) {
			return
		}
	}
}
