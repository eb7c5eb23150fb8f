//go:build linux

package fake

import (
	"math"
	"sync"
	"unsafe"

	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/internal/float16"
)

// ltDesc and ltLayout are the objects behind handles.
type ltDesc struct {
	transA, transB bool
	epilogue       nv.Epilogue
	extra          uintptr
	lead           int
}

type ltLayout struct {
	kind             int
	rows, cols, lead int
}

// CUBLAS_STATUS_INVALID_VALUE and CUBLAS_STATUS_NOT_SUPPORTED.
const wrongArgument, notSupported = 7, 15

// Algorithm is one way in which the matrix library may compute a product.
type Algorithm struct {
	Turns int  // how often it computes the product, which takes so many times as long; 0: once
	Rough bool // it has other bits: it rounds sums after every term
	Fails bool // it is offered and does not run
	Needs int  // it is offered and does not run unless all operands are aligned to this many bytes; 0: any
}

// lt is a cublasLt on the GPU's streams.
type lt struct {
	gpu     *GPU
	mu      sync.Mutex // guards the tables: each GPU has a thread
	descs   map[uintptr]*ltDesc
	layouts map[uintptr]ltLayout
	prefs   map[uintptr]bool
}

// Lt returns a cublasLt that computes products with plain loops, column-major, on
// the GPU's streams.
func (g *GPU) Lt() *nv.Lt {
	t := &lt{gpu: g, descs: map[uintptr]*ltDesc{}, layouts: map[uintptr]ltLayout{}, prefs: map[uintptr]bool{}}
	none := func([]uintptr) int32 { return 0 }
	return &nv.Lt{
		GetVersion:          t.proc("LtGetVersion", true, none),
		Create:              t.proc("LtCreate", false, func(a []uintptr) int32 { t.handle(a); return 0 }),
		Destroy:             t.proc("LtDestroy", false, none),
		PreferenceCreate:    t.proc("LtPreferenceCreate", false, func(a []uintptr) int32 { t.prefs[t.handle(a)] = true; return 0 }),
		PreferenceAttribute: t.proc("LtPreferenceAttribute", false, none),
		PreferenceDestroy:   t.proc("LtPreferenceDestroy", false, func(a []uintptr) int32 { delete(t.prefs, a[0]); return 0 }),
		DescCreate:          t.proc("LtDescCreate", false, func(a []uintptr) int32 { t.descs[t.handle(a)] = &ltDesc{}; return 0 }),
		DescSetAttribute:    t.proc("LtDescSetAttribute", false, t.describe),
		DescDestroy:         t.proc("LtDescDestroy", false, func(a []uintptr) int32 { delete(t.descs, a[0]); return 0 }),
		LayoutCreate:        t.proc("LtLayoutCreate", false, t.layout),
		LayoutDestroy:       t.proc("LtLayoutDestroy", false, func(a []uintptr) int32 { delete(t.layouts, a[0]); return 0 }),
		AlgoGetHeuristic:    t.proc("LtAlgoGetHeuristic", false, t.heuristic),
		AlgoCheck:           t.proc("LtAlgoCheck", false, func(a []uintptr) int32 { set(a[7]+64, uint64(g.Workspace)); return 0 }),
		Matmul:              t.proc("LtMatmul", false, t.matmul),
	}
}

// proc is GPU.proc with the tables locked.
func (t *lt) proc(name string, free bool, f func([]uintptr) int32) nv.Proc {
	return t.gpu.proc(name, free, func(a []uintptr) int32 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return f(a)
	})
}

// handle returns a new handle and stores it where the first argument points.
func (t *lt) handle(a []uintptr) uintptr {
	t.gpu.mu.Lock()
	defer t.gpu.mu.Unlock()
	h := t.gpu.handle()
	set(a[0], h)
	return h
}

// describe sets an attribute of a product's description.
func (t *lt) describe(a []uintptr) int32 {
	d, sizes := t.descs[a[0]], map[uintptr]uintptr{3: 4, 4: 4, 7: 4, 8: 8, 11: 8, 12: 8, 26: 4}
	if d == nil || sizes[a[1]] != a[3] {
		return wrongArgument
	}
	switch v := *(*uint32)(pointer(a[2])); a[1] {
	case 3:
		d.transA = v == 1
	case 4:
		d.transB = v == 1
	case 7:
		d.epilogue = nv.Epilogue(v)
	case 8, 11:
		d.extra = *(*uintptr)(pointer(a[2]))
	case 12:
		d.lead = *(*int)(pointer(a[2]))
	}
	return 0
}

func (t *lt) layout(a []uintptr) int32 {
	m := ltLayout{int(a[1]), int(a[2]), int(a[3]), int(a[4])}
	if m.lead < m.rows {
		return wrongArgument
	}
	t.layouts[t.handle(a)] = m
	return 0
}

// heuristic returns the numbers of the GPU's algorithms, each in the first of its bytes.
func (t *lt) heuristic(a []uintptr) int32 {
	if !t.prefs[a[6]] {
		return wrongArgument
	}
	if t.gpu.Plain && t.descs[a[1]].epilogue == nv.LtDGELU {
		return notSupported
	}
	n := min(max(1, len(t.gpu.Algorithms)), int(a[7]))
	results := bytesAt(a[8], 96*int(a[7]))
	clear(results)
	for i := range n {
		results[96*i] = byte(i)
	}
	set(a[9], int32(n))
	return 0
}

func (t *lt) matmul(a []uintptr) int32 {
	p := matmul{desc: *t.descs[a[1]], la: t.layouts[a[4]], lb: t.layouts[a[6]], lc: t.layouts[a[9]], ld: t.layouts[a[11]],
		a: a[3], b: a[5], c: a[8], d: a[10],
		alpha: *(*float32)(pointer(a[2])), beta: *(*float32)(pointer(a[7]))}
	number := int(bytesAt(a[12], nv.AlgoBytes)[0])
	t.gpu.used(number)
	var algo Algorithm
	if number < len(t.gpu.Algorithms) {
		algo = t.gpu.Algorithms[number]
	}
	if !p.fits() || p.lc.kind != p.ld.kind || p.la.kind != p.lb.kind {
		return wrongArgument
	}
	if p.la.kind == nv.LtE4M3 && !(p.desc.transA && !p.desc.transB && (p.a|p.b|p.c|p.d)%16 == 0 && p.la.rows%16 == 0 && p.la.lead%16 == 0 && p.lb.lead%16 == 0 && p.ld.rows%16 == 0) {
		return notSupported // as on Ada and Hopper
	}
	if algo.Fails || algo.Needs > 0 && (p.a|p.b|p.c|p.d|p.desc.extra)%uintptr(algo.Needs) != 0 {
		return notSupported
	}
	return t.gpu.push(a[15], func() {
		for range algo.Turns - 1 {
			idle := p
			idle.d = 0
			idle.run(false)
		}
		p.run(algo.Rough)
	})
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
	if d := p.desc; d.epilogue != 0 && d.extra == 0 || d.epilogue == nv.LtDGELU && (d.lead < m || d.lead%8 != 0 || d.extra%16 != 0 || p.beta != 0) {
		return false
	}
	return k == k2 && p.ld.rows == m && p.ld.cols == n && p.lc.rows == m && p.lc.cols == n
}

// run computes the product, and writes it if there is a place.
func (p *matmul) run(rough bool) {
	m, k := flip(p.la, p.desc.transA)
	for j := range p.ld.cols {
		for i := range m {
			var sum float32
			for l := range k {
				sum += element(p.a, p.la, i, l, p.desc.transA) * element(p.b, p.lb, l, j, p.desc.transB)
				if rough {
					sum = math.Float32frombits(math.Float32bits(sum) &^ 0xffff)
				}
			}
			sum *= p.alpha
			if p.beta != 0 {
				sum += p.beta * element(p.c, p.lc, i, j, false)
			}
			switch p.desc.epilogue {
			case nv.LtBias:
				sum += number(p.desc.extra, p.ld.kind, i)
			case nv.LtDGELU:
				sum *= slope(number(p.desc.extra, p.ld.kind, j*p.desc.lead+i))
			}
			at := j*p.ld.lead + i
			if p.d == 0 {
				continue
			}
			if p.ld.kind == nv.LtF32 {
				*(*float32)(unsafe.Add(pointer(p.d), 4*at)) = sum
			} else {
				*(*uint16)(unsafe.Add(pointer(p.d), 2*at)) = float16.ToBF16(sum)
			}
		}
	}
}

// slope is the derivative of GELU by tanh.
func slope(x float32) float32 {
	v, k, q := float64(x), math.Sqrt(2/math.Pi), 0.044715
	t := math.Tanh(k * (v + q*v*v*v))
	return float32((1+t)/2 + v/2*(1-t*t)*k*(1+3*q*v*v))
}

func element(p uintptr, l ltLayout, r, c int, transposed bool) float32 {
	if transposed {
		r, c = c, r
	}
	return number(p, l.kind, c*l.lead+r)
}

func number(p uintptr, kind, i int) float32 {
	switch kind {
	case nv.LtF32:
		return *(*float32)(unsafe.Add(pointer(p), 4*i))
	case nv.LtE4M3:
		return fromE4M3(*(*byte)(unsafe.Add(pointer(p), i)))
	}
	return float16.FromBF16(*(*uint16)(unsafe.Add(pointer(p), 2*i)))
}

// fromE4M3 returns the number of a code: 4 bits of exponent and 3 of mantissa, no infinities.
func fromE4M3(code byte) float32 {
	exponent, mantissa := int(code>>3&15), float64(code&7)
	v := math.Ldexp(8+mantissa, exponent-10)
	switch {
	case code&127 == 127:
		return float32(math.NaN())
	case exponent == 0:
		v = math.Ldexp(mantissa, -9)
	}
	if code > 127 {
		v = -v
	}
	return float32(v)
}
