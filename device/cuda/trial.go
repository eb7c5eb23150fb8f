package cuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// A trial computes one product with each of the library's algorithms, for tune.go: it says whose results have
// the first one's bits, and how long each takes.

// trial is a product in memory of its own.
type trial struct {
	d      *Device
	key    choiceKey
	differ launch
	scalars
	memory     uintptr
	bytes      int64 // of it
	a, b, c    uintptr
	extra      uintptr
	want, have uintptr // of size bytes: a result begins after as many as D is aligned to
	size       int64
	flag       uintptr
	workspace  uintptr
	events     [2]uintptr
}

// reserve allocates the operands and says whether that was possible with so much memory and Overhead. They
// begin where programs put them, no better aligned than the key says: some algorithms may want more.
func (t *trial) reserve(memory int64) bool {
	p := &t.key.product
	size := func(m nv.LtMatrix) int64 {
		return (int64(m.Lead)*int64(m.Cols-1) + int64(m.Rows)) * ltBytes[m.Type]
	}
	t.size = (int64(p.D.Align) + size(p.D) + 15) &^ 15
	if t.size/16 > math.MaxInt32 { // rows of differ
		return false
	}
	var c int64 // otherwise not read
	if t.key.added {
		c = size(p.C)
	}
	extra := nv.LtMatrix{Type: p.D.Type, Rows: p.D.Rows, Cols: 1, Lead: p.Lead}
	if p.Epilogue == nv.LtDGELU {
		extra.Cols = p.D.Cols
	}
	parts := []struct {
		at    *uintptr
		bytes int64
		align int
	}{{&t.flag, 16, 0}, {&t.workspace, workspaceBytes, 0}, {&t.want, t.size, 0}, {&t.have, t.size, 0},
		{&t.a, size(p.A), p.A.Align}, {&t.b, size(p.B), p.B.Align}, {&t.c, c, p.C.Align}, {&t.extra, size(extra), p.Align}}
	for _, part := range parts {
		*part.at = uintptr(t.bytes + int64(part.align))
		t.bytes += (int64(part.align) + part.bytes + 4095) &^ 4095
		if t.bytes < 0 || t.bytes-Overhead > memory {
			return false
		}
	}
	v := t.d.driver
	if v.MemAlloc(nv.Addr(&t.memory), uintptr(t.bytes)) != nv.Success {
		return false
	}
	for _, part := range parts {
		*part.at += t.memory
	}
	return true
}

func (t *trial) close() error {
	v := t.d.driver
	for _, e := range t.events {
		if e != 0 {
			v.EventDestroy(e)
		}
	}
	if t.plan != nil {
		t.plan.Close()
	}
	return v.Check("cuMemFree", v.MemFree(t.memory))
}

// candidates lists what to try, beginning with the first choice.
func (t *trial) candidates(first algorithm) []algorithm {
	list := []algorithm{first}
	for _, p := range []nv.Product{t.key.product, canonical(t.key.product)} {
		plan, err := t.d.library.lt.Plan(p, t.extra)
		if err != nil {
			continue
		}
		more, err := plan.Algorithms(t.d.library.handle, p, workspaceBytes, tuneMost)
		plan.Close()
		if err != nil {
			continue
		}
		for _, a := range more {
			if !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	return list
}

// fill writes random numbers from -2 to 2 to all memory but the library's own.
func (t *trial) fill() error {
	const period = 1<<20 - 16 // no row of a matrix begins like its neighbours
	numbers := rand.New(rand.NewPCG(1, 2))
	some := make([]byte, period)
	for i := 0; i < period; i += 2 {
		binary.LittleEndian.PutUint16(some[i:], uint16(math.Float32bits(float32(4*numbers.Float64()-2))>>16))
	}
	v, s := t.d.driver, t.d.work.streams[device.Compute]
	at, left := t.want, t.bytes-int64(t.want-t.memory)
	n := min(period, left)
	err := v.Check("cuMemcpy", v.Memcpy(at, nv.Addr(&some[0]), uintptr(n)))
	runtime.KeepAlive(some)
	if err != nil {
		return err
	}
	if err := v.Check("cuCtxSynchronize", v.CtxSynchronize()); err != nil { // see transfer
		return err
	}
	for have := n; have < left; {
		n := min(have, left-have)
		if err := v.Check("cuMemcpyAsync", v.MemcpyAsync(at+uintptr(have), at, uintptr(n), s)); err != nil {
			return err
		}
		have += n
	}
	return nil
}

// withFirstBits returns the candidates whose results have the bits of the first one's.
func (t *trial) withFirstBits(list []algorithm) (same []algorithm, err error) {
	for i, a := range list {
		to := t.have
		if i == 0 {
			to = t.want
		}
		equal, err := t.compute(a, to)
		if err != nil {
			return nil, err
		}
		if equal {
			same = append(same, a)
		} else if i == 0 {
			return nil, nil // the first choice does not run
		}
	}
	return same, nil
}

// compute computes the product at to, and reports whether this is want now. An algorithm that the library
// rejects is not.
func (t *trial) compute(a algorithm, to uintptr) (equal bool, err error) {
	v, s := t.d.driver, t.d.work.streams[device.Compute]
	for _, m := range []struct {
		at    uintptr
		bytes int64
	}{{to, t.size}, {t.flag, 4}} {
		if err := v.Check("cuMemsetD8Async", v.MemsetD8Async(m.at, 0, uintptr(m.bytes), s)); err != nil {
			return false, err
		}
	}
	if t.plan.Adopt(t.d.library.handle, a, workspaceBytes) != nil || !t.start(to) {
		return false, nil
	}
	l := t.differ
	rows := t.size / 16
	l.grid = [3]int64{blocks(rows, threads), 1, 1}
	l.args.t[0] = mat{uint64(t.flag), 1, 1, 1}
	l.args.t[1] = mat{uint64(t.want), 4, int32(rows), 4}
	l.args.t[2] = mat{uint64(to), 4, int32(rows), 4}
	launch, err := t.d.code.step(&l, s)
	if err != nil {
		return false, err
	}
	if err := t.d.work.take([]step{launch}); err != nil {
		return false, err
	}
	if err := v.Check("cuStreamSynchronize", v.StreamSynchronize(s)); err != nil {
		return false, err
	}
	flag := make([]byte, 4)
	err = v.Check("cuMemcpy", v.Memcpy(nv.Addr(&flag[0]), t.flag, 4))
	runtime.KeepAlive(flag)
	return bytes.Equal(flag, make([]byte, 4)), err
}

// start launches the product and reports whether the library does so.
func (t *trial) start(to uintptr) bool {
	to += uintptr(t.key.product.D.Align)
	c := t.c
	if !t.key.added {
		c = to // as Prepare has it
	}
	args := t.plan.Args(t.d.library.handle, nv.Operands{Alpha: &t.alpha, Beta: &t.beta, A: t.a, B: t.b, C: c, D: to, Workspace: t.workspace, Bytes: workspaceBytes}, t.d.work.streams[device.Compute])
	return t.d.library.lt.Matmul(args...) == nv.Success
}

// seconds returns how long so many products take one after another.
func (t *trial) seconds(turns int) (float64, error) {
	v, s := t.d.driver, t.d.work.streams[device.Compute]
	for i := range t.events {
		if t.events[i] == 0 {
			var err error
			if t.events[i], err = v.Word("cuEventCreate", v.EventCreate, nv.EventBlocking); err != nil {
				return 0, err
			}
		}
	}
	if err := v.Check("cuEventRecord", v.EventRecord(t.events[0], s)); err != nil {
		return 0, err
	}
	for range turns {
		if !t.start(t.have) {
			return 0, fmt.Errorf("an algorithm of the matrix library for %+v ran once, but not again", t.key.product)
		}
	}
	if err := v.Check("cuEventRecord", v.EventRecord(t.events[1], s)); err != nil {
		return 0, err
	}
	if err := v.Check("cuEventSynchronize", v.EventSynchronize(t.events[1])); err != nil {
		return 0, err
	}
	var ms float32
	err := v.Check("cuEventElapsedTime", v.EventElapsedTime(nv.Addr(&ms), t.events[0], t.events[1]))
	return float64(ms) / 1e3, err
}
