package elixir

import "slices"

// Packing assigns parameters to chunks.
type Packing struct {
	Chunk  []int // of each parameter; -1: it is private
	Chunks int
	Waste  int64 // unused elements at the ends of chunks
}

// Pack fills chunks of size elements in order: a parameter that does not fit the
// open chunk starts a new one. No parameter is larger than size.
func Pack(params []Param, size int64) Packing {
	p := Packing{Chunk: make([]int, len(params))}
	var left int64
	for i := range params {
		if params[i].Private {
			p.Chunk[i] = -1
			continue
		}
		if p.Chunks == 0 || left < params[i].Elems {
			p.Waste += left
			p.Chunks, left = p.Chunks+1, size
		}
		p.Chunk[i] = p.Chunks - 1
		left -= params[i].Elems
	}
	p.Waste += left
	return p
}

// Steps returns the public chunks that each step needs, ascending.
func (p *Packing) Steps(params [][]int) [][]int {
	list := make([][]int, len(params))
	for i, step := range params {
		for _, q := range step {
			if c := p.Chunk[q]; c >= 0 && !slices.Contains(list[i], c) {
				list[i] = append(list[i], c)
			}
		}
		slices.Sort(list[i])
	}
	return list
}
