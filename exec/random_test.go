package exec_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Random programs: adds, casts and copies between all tiers on all streams
// that have a meaning on one rank, on whole buffers and bands of columns. Waits
// are exactly those that data needs, found by comparing all pairs, so a wait
// that an engine forgets shows as a wrong sum.

const elems = 2048 // of a buffer of f32: two pages of the disk tier

// streamOf says which stream moves data between two tiers.
var streamOf = map[[2]device.Tier]device.Stream{
	{device.DeviceTier, device.DeviceTier}: device.Compute,
	{device.HostTier, device.HostTier}:     device.HostCompute,
	{device.HostTier, device.DeviceTier}:   device.HostToDev,
	{device.DeviceTier, device.HostTier}:   device.DevToHost,
	{device.DiskTier, device.HostTier}:     device.DiskRead,
	{device.HostTier, device.DiskTier}:     device.DiskWrite,
}

func randomProgram(r *rand.Rand, instrs int) *program.Program {
	p := randomBuffers(r)
	for len(p.Instrs) < instrs {
		p.Instrs = append(p.Instrs, randomInstr(r, p))
		addWaits(p, len(p.Instrs)-1)
	}
	return p
}

func randomBuffers(r *rand.Rand) *program.Program {
	p := &program.Program{Name: "random"}
	for _, t := range []device.Tier{device.DeviceTier, device.HostTier, device.DiskTier} {
		for k := range 2 + r.IntN(4) {
			rows := 1 << r.IntN(4)
			p.Buffers = append(p.Buffers, program.Buffer{
				Name: fmt.Sprintf("%s%d", t, k), Tier: t, DType: graph.F32, Rows: rows, Cols: elems / rows,
				Size: 4 * elems, Align: 4096, Addr: p.Height[t], Persistent: true,
			})
			p.Height[t] += 4 * elems
		}
	}
	return p
}

func randomInstr(r *rand.Rand, p *program.Program) program.Instr {
	for {
		dst, src := r.IntN(len(p.Buffers)), r.IntN(len(p.Buffers))
		a, b := &p.Buffers[dst], &p.Buffers[src]
		stream, ok := streamOf[[2]device.Tier{b.Tier, a.Tier}]
		if dst == src || !ok {
			continue
		}
		in := program.Instr{Op: graph.Copy, Stream: stream, Key: program.Key{Segment: -1, Micro: -1, Chunk: -1}}
		if a.Tier == b.Tier {
			in.Op = []graph.Op{graph.Copy, graph.Add, graph.Cast}[r.IntN(3)]
		}
		in.Args = []program.Region{whole(dst, a), whole(src, b)}
		switch {
		case in.Op != graph.Copy && a.Cols != b.Cols:
			in.Args[0].Rows, in.Args[0].Cols, in.Args[0].Stride = 1, elems, elems
			in.Args[1] = in.Args[0]
			in.Args[1].Buf = src
		case a.Cols == b.Cols && a.Cols > 1 && r.IntN(2) == 0: // a band of columns
			lo := r.IntN(a.Cols)
			n := 1 + r.IntN(a.Cols-lo)
			for k := range in.Args {
				in.Args[k].Off, in.Args[k].Cols = lo, n
			}
		}
		return in
	}
}

func whole(i int, b *program.Buffer) program.Region {
	return program.Region{Buf: i, Rows: b.Rows, Cols: b.Cols, Stride: b.Cols}
}

// addWaits makes instruction i wait for the latest instruction on each other
// stream that writes what i touches or touches what i writes. Buffers on the
// disk tier count as touched as a whole, since pages are.
func addWaits(p *program.Program, i int) {
	var seen [device.NumStreams]bool
	seen[p.Instrs[i].Stream] = true
	for j := i - 1; j >= 0; j-- {
		if s := p.Instrs[j].Stream; !seen[s] && conflict(p.Instrs[i].Args, p.Instrs[j].Args) {
			seen[s] = true
			p.Instrs[i].Waits = append(p.Instrs[i].Waits, j)
		}
	}
}

// conflict: operand 0 is taken as written by all operators used here.
func conflict(a, b []program.Region) bool {
	touches := func(list []program.Region, buf int) bool {
		return slices.ContainsFunc(list, func(r program.Region) bool { return r.Buf == buf })
	}
	return touches(a, b[0].Buf) || touches(b, a[0].Buf)
}

// interpret is the oracle: the program's meaning, one instruction after the
// other, on slices.
func interpret(p *program.Program, memory [][]float32) {
	for i := range p.Instrs {
		interpretOne(&p.Instrs[i], memory)
	}
}

func interpretOne(in *program.Instr, memory [][]float32) {
	dst, src := elements(in.Args[0]), elements(in.Args[1])
	to, from := memory[in.Args[0].Buf], memory[in.Args[1].Buf]
	for k := range dst {
		if in.Op == graph.Add {
			to[dst[k]] += from[src[k]]
		} else {
			to[dst[k]] = from[src[k]]
		}
	}
}

// elements lists the indices of a region's elements in its buffer.
func elements(r program.Region) []int {
	var list []int
	for row := range r.Rows {
		for c := range r.Cols {
			list = append(list, r.Off+row*r.Stride+c)
		}
	}
	return list
}

func randomMemory(r *rand.Rand, p *program.Program) [][]float32 {
	memory := make([][]float32, len(p.Buffers))
	for b := range memory {
		memory[b] = make([]float32, elems)
		for i := range memory[b] {
			memory[b][i] = float32(r.IntN(1 << 10))
		}
	}
	return memory
}
