package program

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// gradHome says where the gradient of a chunk waits for the optimizer.
type gradHome struct {
	buf  int
	tier device.Tier
	last int // unit of the last contribution
}

// gradients gives the parameters' gradients their buffers. On the device a
// chunk's gradient is one buffer from its first contribution to the optimizer.
// On the host, each visit (a run of consecutive units that contribute to the
// chunk) has a buffer on the device: what was summed before comes back, the
// visit's contributions continue the sum, and it goes down again.
//
// The first contribution to a parameter in a step overwrites, all others add.
func (lo *lowering) gradients() error {
	lo.gradBuf = make([]gradHome, len(lo.pl.Chunks))
	if lo.opt.Mode != Train && lo.opt.Mode != Grads {
		return nil
	}
	touched := lo.contributions()
	started := make([]bool, len(lo.g.Params)) // something was added already
	for c := range lo.pl.Chunks {
		ch := lo.pl.Chunks[c]
		home := gradHome{tier: ch.Grads, last: touched[c][len(touched[c])-1]}
		home.buf = lo.chunkBuffer("grad", c, ch.Grads, ClassGrads, graph.F32)
		if lo.opt.Mode == Grads {
			lo.keepGradient(c, home.buf)
		}
		lo.gradBuf[c] = home
		if ch.Grads == device.DeviceTier {
			for _, i := range touched[c] {
				lo.contribute(&lo.units[i], c, home.buf, started)
			}
			continue
		}
		lo.visits(c, touched[c], started)
	}
	return nil
}

// contributions lists for each chunk the units that add to its gradient.
func (lo *lowering) contributions() [][]int {
	list := make([][]int, len(lo.pl.Chunks))
	for i := range lo.units {
		for j := range lo.units[i].work {
			for _, r := range lo.units[i].work[j].refs {
				if r.value < 0 || lo.g.Values[r.value].Kind != graph.ParamGrad {
					continue
				}
				c := lo.chunkOf[lo.g.Values[r.value].Param]
				if n := len(list[c]); n == 0 || list[c][n-1] != i {
					list[c] = append(list[c], i)
				}
			}
		}
	}
	return list
}

// contribute points the unit's gradient operands of chunk c to buf.
func (lo *lowering) contribute(u *unit, c, buf int, started []bool) {
	for j := range u.work {
		o := &u.work[j]
		for k, r := range o.refs {
			if r.value < 0 || lo.g.Values[r.value].Kind != graph.ParamGrad {
				continue
			}
			param := lo.g.Values[r.value].Param
			if lo.chunkOf[param] != c {
				continue
			}
			o.in.Args[k] = lo.param(buf, 0, r.value)
			o.in.Attr.Acc = started[param]
			started[param] = true
		}
	}
}

// visits handles a chunk whose gradient waits on the host.
func (lo *lowering) visits(c int, units []int, started []bool) {
	home := lo.gradBuf[c].buf
	for v, n := 0, 0; v < len(units); n++ {
		end := v + 1
		for end < len(units) && units[end] == units[end-1]+1 {
			end++
		}
		buf := lo.chunkBuffer(fmt.Sprintf("grad%d", n), c, device.DeviceTier, ClassGrads, graph.F32)
		first, last := &lo.units[units[v]], &lo.units[units[end-1]]
		key := Key{Segment: first.segment, Micro: first.micro, Chunk: c}
		before := append([]bool(nil), started...)
		for _, r := range lo.runs(c, before) {
			first.before = append(first.before, copyOp(device.HostToDev, key, at(buf, r), at(home, r)))
		}
		for _, i := range units[v:end] {
			lo.contribute(&lo.units[i], c, buf, started)
		}
		key = Key{Segment: last.segment, Micro: last.micro, Chunk: c}
		for _, r := range lo.runs(c, started) {
			last.after = append(last.after, copyOp(device.DevToHost, key, at(home, r), at(buf, r)))
		}
		v = end
	}
}

// runs are the ranges of a chunk's elements that hold gradients that were
// started, neighbours joined.
func (lo *lowering) runs(c int, started []bool) [][2]int {
	var list [][2]int
	for i := lo.pl.Chunks[c].First; i < lo.pl.Chunks[c].Last; i++ {
		lo0 := lo.offsetOf[i]
		hi := lo0 + int(lo.g.Params[i].Elems())
		switch n := len(list); {
		case !started[i]:
		case n > 0 && list[n-1][1] == lo0:
			list[n-1][1] = hi
		default:
			list = append(list, [2]int{lo0, hi})
		}
	}
	return list
}

func at(buf int, r [2]int) Region {
	n := r[1] - r[0]
	return Region{Buf: buf, Off: r[0], Rows: 1, Cols: n, Stride: n}
}

// keepGradient declares the gradient as a result of the program.
func (lo *lowering) keepGradient(c, buf int) {
	b := &lo.p.Buffers[buf]
	b.Persistent = true
	ch := lo.pl.Chunks[c]
	for range len(b.Cuts) + 1 {
		b.Init = append(b.Init, "")
	}
	for i := ch.First; i < ch.Last; i++ {
		b.Init[i-ch.First] = "grad.before:" + lo.g.Params[i].Name
		lo.p.Homes = append(lo.p.Homes, Home{Param: i, Kind: "g", Region: lo.flat(buf, 0, i)})
	}
}
