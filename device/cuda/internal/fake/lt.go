//go:build linux

package fake

import (
	"math"
	"sync"
	"unsafe"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// ltDesc and ltLayout are the objects behind handles.
type ltDesc struct {
	transA, transB bool
	bias           uintptr
}

type ltLayout struct {
	kind             int
	rows, cols, lead int
}

// Lt returns a cublasLt that computes products with plain loops, column-major, on
// the GPU's streams.
func (g *GPU) Lt() *nv.Lt {
	descs, layouts := map[uintptr]*ltDesc{}, map[uintptr]ltLayout{}
	prefs := map[uintptr]bool{}
	ok := func([]uintptr) int32 { return 0 }
	var mu sync.Mutex // guards the tables: each GPU has a thread
	proc := func(name string, free bool, f func([]uintptr) int32) nv.Proc {
		return g.proc(name, free, func(a []uintptr) int32 {
			mu.Lock()
			defer mu.Unlock()
			return f(a)
		})
	}
	handle := func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		set(a[0], g.handle())
		return 0
	}
	l := &nv.Lt{
		GetVersion: proc("LtGetVersion", true, ok), Create: proc("LtCreate", false, handle), Destroy: proc("LtDestroy", false, ok),
		PreferenceAttribute: proc("LtPreferenceAttribute", false, ok),
	}
	l.AlgoCheck = proc("LtAlgoCheck", false, func(a []uintptr) int32 {
		set(a[7]+64, uint64(g.Workspace))
		return 0
	})
	l.PreferenceCreate = proc("LtPreferenceCreate", false, func(a []uintptr) int32 {
		handle(a)
		prefs[*(*uintptr)(pointer(a[0]))] = true
		return 0
	})
	l.PreferenceDestroy = proc("LtPreferenceDestroy", false, func(a []uintptr) int32 { delete(prefs, a[0]); return 0 })
	l.DescCreate = proc("LtDescCreate", false, func(a []uintptr) int32 {
		handle(a)
		descs[*(*uintptr)(pointer(a[0]))] = &ltDesc{}
		return 0
	})
	l.DescDestroy = proc("LtDescDestroy", false, func(a []uintptr) int32 { delete(descs, a[0]); return 0 })
	l.DescSetAttribute = proc("LtDescSetAttribute", false, func(a []uintptr) int32 {
		d, sizes := descs[a[0]], map[uintptr]uintptr{3: 4, 4: 4, 7: 4, 8: 8, 26: 4}
		if d == nil || sizes[a[1]] != a[3] {
			return 7
		}
		switch v := *(*uint32)(pointer(a[2])); a[1] {
		case 3:
			d.transA = v == 1
		case 4:
			d.transB = v == 1
		case 8:
			d.bias = *(*uintptr)(pointer(a[2]))
		}
		return 0
	})
	l.LayoutCreate = proc("LtLayoutCreate", false, func(a []uintptr) int32 {
		m := ltLayout{int(a[1]), int(a[2]), int(a[3]), int(a[4])}
		if m.lead < m.rows {
			return 7
		}
		handle(a)
		layouts[*(*uintptr)(pointer(a[0]))] = m
		return 0
	})
	l.LayoutDestroy = proc("LtLayoutDestroy", false, func(a []uintptr) int32 { delete(layouts, a[0]); return 0 })
	l.AlgoGetHeuristic = proc("LtAlgoGetHeuristic", false, func(a []uintptr) int32 {
		if !prefs[a[6]] {
			return 7
		}
		clear(bytesAt(a[8], 96))
		set(a[9], int32(1))
		return 0
	})
	l.Matmul = proc("LtMatmul", false, func(a []uintptr) int32 {
		d := descs[a[1]]
		la, lb, lc, ld := layouts[a[4]], layouts[a[6]], layouts[a[9]], layouts[a[11]]
		p := matmul{desc: *d, la: la, lb: lb, lc: lc, ld: ld, a: a[3], b: a[5], c: a[8], d: a[10],
			alpha: *(*float32)(pointer(a[2])), beta: *(*float32)(pointer(a[7]))}
		if !p.fits() || lc.kind != ld.kind || la.kind != lb.kind {
			return 7
		}
		return g.push(a[15], p.run)
	})
	return l
}

type matmul struct {
	desc           ltDesc
	la, lb, lc, ld ltLayout
	a, b, c, d     uintptr
	alpha, beta    float32
}

func flip(l ltLayout, t bool) (rows, cols int) {
	if t {
		return l.cols, l.rows
	}
	return l.rows, l.cols
}

func (p *matmul) fits() bool {
	m, k := flip(p.la, p.desc.transA)
	k2, n := flip(p.lb, p.desc.transB)
	return k == k2 && p.ld.rows == m && p.ld.cols == n && p.lc.rows == m && p.lc.cols == n
}

func (p *matmul) run() {
	m, k := flip(p.la, p.desc.transA)
	for j := range p.ld.cols {
		for i := range m {
			var sum float32
			for l := range k {
				sum += element(p.a, p.la, i, l, p.desc.transA) * element(p.b, p.lb, l, j, p.desc.transB)
			}
			sum *= p.alpha
			if p.beta != 0 {
				sum += p.beta * element(p.c, p.lc, i, j, false)
			}
			if p.desc.bias != 0 {
				sum += number(p.desc.bias, p.ld.kind, i)
			}
			at := j*p.ld.lead + i
			if p.ld.kind == nv.LtF32 {
				*(*float32)(unsafe.Add(pointer(p.d), 4*at)) = sum
			} else {
				u := math.Float32bits(sum)
				*(*uint16)(unsafe.Add(pointer(p.d), 2*at)) = uint16((u + 0x7fff + u>>16&1) >> 16)
			}
		}
	}
}

func element(p uintptr, l ltLayout, r, c int, transposed bool) float32 {
	if transposed {
		r, c = c, r
	}
	return number(p, l.kind, c*l.lead+r)
}

func number(p uintptr, kind, i int) float32 {
	if kind == nv.LtF32 {
		return *(*float32)(unsafe.Add(pointer(p), 4*i))
	}
	return math.Float32frombits(uint32(*(*uint16)(unsafe.Add(pointer(p), 2*i))) << 16)
}
