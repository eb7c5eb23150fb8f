package cuda

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
)

// all_to_all: what a member fetches of the others, and sends to those elsewhere, see device.Crossings. Both ends cut the rows into blocks
// alike, whatever gaps are between these at either.

// cross starts with the next member, as gather does.
func (e *exchange) cross(parts []*exchange) (list []step) {
	for i := range parts {
		p := parts[(e.member+1+i)%len(parts)]
		src, dst := device.Crossings(&e.call, p.member, e.member)
		round := 0
		for k := range dst {
			at, pitch := placeOf(&e.call.Args[graph.AllToAllDst], e.dst, dst[k])
			width := int64(dst[k].Cols) * e.call.Args[graph.AllToAllDst].DType.Size()
			if p.device == nil {
				blocks := e.rowBlocks(p.member, round, at, int64(dst[k].Rows), width, pitch)
				list, round = append(list, blocks...), len(blocks)
				continue
			}
			from, other := placeOf(&p.call.Args[graph.AllToAllSrc], p.src, src[k])
			list = append(list, e.fetchRows(at, p, from, int64(dst[k].Rows), width, pitch, other)...)
		}
	}
	return inRounds(list)
}

// crossOuts returns what a member elsewhere gets from here.
func (e *exchange) crossOuts(to int) (list []step) {
	src, _ := device.Crossings(&e.call, e.member, to)
	for _, b := range src {
		o := &e.call.Args[graph.AllToAllSrc]
		at, pitch := placeOf(o, e.src, b)
		list = append(list, e.rowBlocks(to, len(list), at, int64(b.Rows), int64(b.Cols)*o.DType.Size(), pitch)...)
	}
	return list
}

// placeOf returns the address of a block of an operand, and the bytes from row to row.
func placeOf(o *device.Operand, at uintptr, b device.Block) (uintptr, int64) {
	pitch := int64(o.Stride) * o.DType.Size()
	return at + uintptr(int64(b.Row)*pitch+int64(b.Col)*o.DType.Size()), pitch
}

// fetchRows copies rows of some bytes from a member's memory to this rank's: at once where copies reach it, else row by row.
func (e *exchange) fetchRows(dst uintptr, from *exchange, src uintptr, rows, width, pitch, other int64) (list []step) {
	d := e.device
	if from.device == d || d.peers.reach[from.device.work.context] {
		return []step{copyRows(d.driver, nv.NewCopy2D(dst, src, pitch, other, width, rows), e.stream)}
	}
	for r := range rows {
		list = append(list, e.fetch(dst+uintptr(r*pitch), from, src+uintptr(r*other), width)...)
	}
	return list
}
