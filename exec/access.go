package exec

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"sync"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Access to arenas between steps. Parameters and optimizer state are converted to and
// from float32 whatever their stored type. Results are read as float64, which holds
// every element type exactly. Byte order is little-endian on all supported machines.

// Save has the process of the engine's device, a device.Saver, write elements that the rank holds to a file.
func (e *Engine) Save(file string, b device.FileBlock, s device.StateRange) {
	e.device.(device.Saver).Save(e.first, file, b, s)
}

// Fill has the process of the engine's device, a device.Saver, read elements from a file, as far as the rank has them.
func (e *Engine) Fill(file string, offset int64, s device.StateRange) {
	e.device.(device.Saver).Fill(e.first, file, offset, s)
}

// Draw has the process of the engine's device, a device.Saver, draw elements, as far as the rank has them.
func (e *Engine) Draw(from device.Beginning, s device.StateRange) {
	e.device.(device.Saver).Draw(e.first, from, s)
}

// Arenas are a rank's memory on a device, as a program divides it. Only one goroutine may use them at a time, and none
// during a step.
type Arenas struct {
	program *program.Program
	device  device.Device
	buffers map[string]int
	scratch []byte // for transfers
}

// NewArenas returns those of a program on a device, whose arenas must be reserved.
func NewArenas(p *program.Program, d device.Device) (*Arenas, error) {
	e := &Arenas{program: p, device: d, buffers: map[string]int{}, scratch: make([]byte, scratchLen)}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Addr < 0 && b.Persistent {
			return nil, fmt.Errorf("exec: buffer %s has no address", b.Name)
		} else if b.Addr < 0 {
			continue // nothing uses it, or devices refuse the calls that do
		}
		e.buffers[p.Buffers[i].Name] = i
	}
	return e, nil
}

const scratchLen = 4 << 20 // bytes converted at a time; a multiple of all element sizes

// homes lists where this rank holds a parameter's state of one kind: for reading, without
// replicas; for writing, also the replicas and, for weights, the bf16 copies. The
// lower halves of weights are a separate kind.
func (e *Arenas) homes(param int, kind optimizer.Kind, write bool) iter.Seq[*program.Home] {
	return func(yield func(*program.Home) bool) {
		for i := range e.program.Homes {
			h := &e.program.Homes[i]
			one := h.Kind == kind && !h.Replica || write && (h.Kind == kind || kind == optimizer.Weights && h.Kind == optimizer.HalfWeights)
			if h.Param == param && one && !yield(h) {
				return
			}
		}
	}
}

// Parts lists the element ranges of a parameter whose state of one kind this rank
// holds; none if the program has no such state.
func (e *Arenas) Parts(param int, kind optimizer.Kind) [][2]int {
	var list [][2]int
	for h := range e.homes(param, kind, false) {
		list = append(list, [2]int{h.At, h.At + h.Elems()})
	}
	return list
}

// ReadBytes is ReadHome without conversion, for state that is stored as the given type. For weights in 4 bits, elements are
// those of graph.Stored, for moments in 8 bits bytes.
func (e *Arenas) ReadBytes(param int, kind optimizer.Kind, as graph.DType, first int, dst []byte) error {
	err := e.halves(param, kind, func(*program.Home) error {
		return fmt.Errorf("exec: parameter %d is stored as separate upper and lower halves", param)
	})
	if err != nil {
		return err
	}
	size := int(as.Size())
	for h := range e.homes(param, kind, false) {
		if b := &e.program.Buffers[h.Region.Buf]; b.DType != as {
			return fmt.Errorf("exec: buffer %s holds %s, not %s", b.Name, b.DType, as)
		}
		place, r := overlapOf(h, first, len(dst)/size)
		if err := e.read(r, func(_ graph.DType, at int, b []byte) { copy(dst[(place+at)*size:], b) }); err != nil {
			return err
		}
	}
	return nil
}

// ReadState reads elements of a state, all of which this rank must hold, as files have them: in fp32, or as they are stored.
func (e *Arenas) ReadState(s device.StateRange, dst []byte) error {
	switch {
	case !e.Holds(s):
		return fmt.Errorf("exec: rank %d does not hold elements %d to %d of parameter %d, %s", e.program.Rank, s.First, s.First+s.N, s.Param, s.Kind)
	case len(dst) != s.Bytes():
		return fmt.Errorf("exec: room for %d bytes is not that of %d elements in %s", len(dst), s.N, s.As)
	case s.As == graph.F32:
		values := make([]float32, s.N)
		if err := e.ReadHome(s.Param, s.Kind, s.First, values); err != nil {
			return err
		}
		copy(dst, bytesOf(values))
		return nil
	}
	return e.ReadBytes(s.Param, s.Kind, s.As, s.First, dst)
}

// WriteState is the inverse of ReadState, for what this rank has of the elements: to their homes and all copies.
func (e *Arenas) WriteState(s device.StateRange, src []byte) error {
	if len(src) != s.Bytes() || s.As != graph.F32 && s.As != graph.BF16 {
		return fmt.Errorf("exec: %d bytes are not %d elements in %s", len(src), s.N, s.As)
	}
	values := make([]float32, s.N)
	toFloat32(s.As, values, src)
	return e.WriteHome(s.Param, s.Kind, s.First, values)
}

// Keeps returns the first range of s of which this rank has something to be written, the home or a copy; none: it has no elements.
func (e *Arenas) Keeps(s device.StateRange) device.StateRange {
	end := s.First + s.N
	from, n := end, 0
	for h := range e.homes(s.Param, s.Kind, true) {
		if at := max(h.At, s.First); at < h.At+h.Elems() && at < from {
			from = at
		}
	}
	for more := true; more && from+n < end; {
		more = false
		for h := range e.homes(s.Param, s.Kind, true) {
			if to := h.At + h.Elems(); h.At <= from+n && from+n < to {
				n, more = to-from, true
			}
		}
	}
	s.First, s.N = from, min(n, end-from)
	return s
}

// Holds reports whether this rank holds all elements of a range.
func (e *Arenas) Holds(s device.StateRange) bool {
	return s.N > 0 && s.First >= 0 && e.HeldFrom(s.Param, s.Kind, s.First) >= s.N
}

// HeldFrom returns how many elements of a parameter's state this rank holds from index first on.
func (e *Arenas) HeldFrom(param int, kind optimizer.Kind, first int) (n int) {
	for more := true; more; {
		more = false
		for h := range e.homes(param, kind, false) {
			if end := h.At + h.Elems(); h.At <= first+n && first+n < end {
				n, more = end-first, true
			}
		}
	}
	return n
}

// HeldAfter returns after how many elements from index first on, which it does not hold, this rank holds some; 0: none.
func (e *Arenas) HeldAfter(param int, kind optimizer.Kind, first int) (n int) {
	for h := range e.homes(param, kind, false) {
		if at := h.At - first; at > 0 && (n == 0 || at < n) {
			n = at
		}
	}
	return n
}

// WriteBytes writes this rank's part of one kind of a parameter's state, as it is stored, to its
// home and to all replicas, limited to what src has from element first on.
func (e *Arenas) WriteBytes(param int, kind optimizer.Kind, first int, src []byte) error {
	for h := range e.homes(param, kind, true) {
		size := int(e.program.Buffers[h.Region.Buf].DType.Size())
		place, r := overlapOf(h, first, len(src)/size)
		if err := e.write(r, func(_ graph.DType, at int, b []byte) { copy(b, src[(place+at)*size:]) }); err != nil {
			return err
		}
	}
	return nil
}

// ReadHome reads this rank's part of a parameter's state of one kind, limited to the len(dst) elements from index first
// on, into their positions in dst.
func (e *Arenas) ReadHome(param int, kind optimizer.Kind, first int, dst []float32) error {
	if mask := e.maskOf(param, kind); mask != nil {
		return e.readKept(param, kind, mask, first, dst)
	}
	for h := range e.homes(param, kind, false) {
		place, r := overlapOf(h, first, len(dst))
		if err := e.read(r, func(t graph.DType, at int, b []byte) { toFloat32(t, dst[place+at:], b) }); err != nil {
			return err
		}
	}
	return e.halves(param, kind, func(h *program.Home) error {
		place, r := overlapOf(h, first, len(dst))
		return e.read(r, func(_ graph.DType, at int, b []byte) { float16.ReadRest(dst[place+at:][:len(b)/2], b) })
	})
}

// overlapOf returns the part of a home that lies among the n elements from index first on, possibly empty, and the position of
// that part's first element among them.
func overlapOf(h *program.Home, first, n int) (place int, r program.Region) {
	lo, hi := max(h.At, first), min(h.At+h.Region.Rows*h.Region.Cols, first+n)
	if lo >= hi {
		return 0, program.Region{Buf: h.Region.Buf}
	}
	return lo - first, program.Region{Buf: h.Region.Buf, Off: h.Region.Off + lo - h.At, Rows: 1, Cols: hi - lo, Stride: hi - lo}
}

// halves visits the homes of a parameter's lower halves if kind is that of weights.
func (e *Arenas) halves(param int, kind optimizer.Kind, visit func(h *program.Home) error) error {
	if kind != optimizer.Weights {
		return nil
	}
	for h := range e.homes(param, optimizer.LowerHalves, false) {
		if err := visit(h); err != nil {
			return err
		}
	}
	return nil
}

// WriteHome is the inverse of ReadHome: it writes what this rank has of the len(src) elements from index first on to
// their home and to all replicas; for weights also to the bf16 copies.
func (e *Arenas) WriteHome(param int, kind optimizer.Kind, first int, src []float32) error {
	if mask := e.maskOf(param, kind); mask != nil {
		return e.writeKept(param, kind, mask, first, src)
	}
	for h := range e.homes(param, kind, true) {
		place, r := overlapOf(h, first, len(src))
		err := e.write(r, func(t graph.DType, at int, b []byte) {
			if from := src[place+at:]; kind == optimizer.Weights && t == graph.BF16 {
				float16.WriteUpper(b, from[:len(b)/2])
			} else {
				fromFloat32(t, b, from)
			}
		})
		if err != nil {
			return err
		}
	}
	return e.halves(param, kind, func(h *program.Home) error {
		place, r := overlapOf(h, first, len(src))
		return e.write(r, func(_ graph.DType, at int, b []byte) { float16.WriteRest(b, src[place+at:][:len(b)/2]) })
	})
}

// ClearHome zeroes this rank's part of a parameter's state of one kind, as WriteHome of
// zeros would.
func (e *Arenas) ClearHome(param int, kind optimizer.Kind) error {
	c, can := e.device.(device.Clearer)
	for h := range e.homes(param, kind, true) {
		var err error
		if o := e.program.Operand(h.Region); can && o.Tier != device.DiskTier && o.Contiguous() {
			err = c.Clear(o.Tier, o.Addr, o.Bytes())
		} else {
			err = e.write(h.Region, func(_ graph.DType, _ int, b []byte) { clear(b) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// BufferLen returns the number of elements of the named buffer, 0 if it is absent.
func (e *Arenas) BufferLen(name string) int {
	i, ok := e.buffers[name]
	if !ok {
		return 0
	}
	return e.program.Buffers[i].Rows * e.program.Buffers[i].Cols
}

// ReadBuffer reads all elements of the named buffer.
func (e *Arenas) ReadBuffer(name string, dst []float64) error {
	r, err := e.namedRegion(name, len(dst))
	if err != nil {
		return err
	}
	return e.read(r, func(t graph.DType, at int, b []byte) { toFloat64(t, dst[at:], b) })
}

// WriteFloats writes all elements of the named buffer of f32 or bf16.
func (e *Arenas) WriteFloats(name string, src []float32) error {
	r, err := e.namedRegion(name, len(src))
	if err != nil {
		return err
	}
	if t := e.program.Buffers[r.Buf].DType; t != graph.F32 && t != graph.BF16 {
		return fmt.Errorf("exec: buffer %s holds %s, not floats", name, t)
	}
	return e.write(r, func(t graph.DType, at int, b []byte) { fromFloat32(t, b, src[at:]) })
}

// WriteInts writes all elements of the named buffer of i32.
func (e *Arenas) WriteInts(name string, src []int32) error {
	r, err := e.namedRegion(name, len(src))
	if err != nil {
		return err
	}
	if t := e.program.Buffers[r.Buf].DType; t != graph.I32 {
		return fmt.Errorf("exec: buffer %s holds %s, not i32", name, t)
	}
	return e.write(r, func(_ graph.DType, at int, b []byte) {
		for i := range len(b) / 4 {
			binary.LittleEndian.PutUint32(b[4*i:], uint32(src[at+i]))
		}
	})
}

// namedRegion returns the region of a named buffer of n elements.
func (e *Arenas) namedRegion(name string, n int) (program.Region, error) {
	i, ok := e.buffers[name]
	if !ok {
		return program.Region{}, fmt.Errorf("exec: there is no buffer %s", name)
	}
	b := &e.program.Buffers[i]
	if b.Rows*b.Cols != n {
		return program.Region{}, fmt.Errorf("exec: buffer %s has %d x %d elements, not %d", name, b.Rows, b.Cols, n)
	}
	return program.Region{Buf: i, Rows: b.Rows, Cols: b.Cols, Stride: b.Cols}, nil
}

// read passes the bytes of a region to use in pieces; at is the index of a piece's
// first element.
func (e *Arenas) read(r program.Region, use func(t graph.DType, at int, b []byte)) error {
	return e.pieces(r, func(tier device.Tier, t graph.DType, addr int64, at int, b []byte) error {
		if err := e.device.Read(tier, addr, b); err != nil {
			return err
		}
		convertInParallel(t, at, b, use)
		return nil
	})
}

// write stores the pieces that fill produces.
func (e *Arenas) write(r program.Region, fill func(t graph.DType, at int, b []byte)) error {
	return e.pieces(r, func(tier device.Tier, t graph.DType, addr int64, at int, b []byte) error {
		convertInParallel(t, at, b, fill)
		return e.device.Write(tier, addr, b)
	})
}

// convertInParallel converts a large piece on several cores: for a model's billions of elements,
// one core would need minutes.
func convertInParallel(t graph.DType, at int, b []byte, convert func(t graph.DType, at int, b []byte)) {
	const least = 1 << 18 // bytes
	if len(b) <= least {
		convert(t, at, b)
		return
	}
	var all sync.WaitGroup
	for lo := 0; lo < len(b); lo += least {
		part := b[lo:min(lo+least, len(b))]
		all.Go(func() { convert(t, at+lo/int(t.Size()), part) })
	}
	all.Wait()
}

// pieces walks a region in pieces of at most scratchLen contiguous bytes.
func (e *Arenas) pieces(r program.Region, visit func(tier device.Tier, t graph.DType, addr int64, at int, b []byte) error) error {
	o := e.program.Operand(r)
	rows, cols, size := o.Rows, o.Cols, o.DType.Size()
	if o.Contiguous() {
		rows, cols = 1, rows*cols
	}
	at := 0
	for row := range rows {
		addr := o.Addr + int64(row)*int64(o.Stride)*size
		for left := cols; left > 0; {
			n := min(left, int(scratchLen/size))
			if err := visit(o.Tier, o.DType, addr, at, e.scratch[:int64(n)*size]); err != nil {
				return fmt.Errorf("exec: buffer %s: %w", e.program.Buffers[r.Buf].Name, err)
			}
			at, left, addr = at+n, left-n, addr+int64(n)*size
		}
	}
	return nil
}

func toFloat64(t graph.DType, dst []float64, b []byte) {
	le := binary.LittleEndian
	dst = dst[:len(b)/int(t.Size())]
	switch t {
	case graph.F32: // logits, of which there may be millions in a step
		for i := range dst {
			dst[i] = float64(math.Float32frombits(le.Uint32(b)))
			b = b[4:]
		}
	case graph.BF16:
		for i := range dst {
			dst[i] = float64(float16.FromBF16(le.Uint16(b[2*i:])))
		}
	case graph.I32:
		for i := range dst {
			dst[i] = float64(int32(le.Uint32(b[4*i:])))
		}
	case graph.F64:
		for i := range dst {
			dst[i] = math.Float64frombits(le.Uint64(b[8*i:]))
		}
	case graph.I8: // in units
		for i := range dst {
			dst[i] = float64(graph.FromInt8(int8(b[i])))
		}
	}
}

// bytesOf returns the in-memory bytes of x.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

func toFloat32(t graph.DType, dst []float32, b []byte) {
	le := binary.LittleEndian
	switch t {
	case graph.F32:
		copy(bytesOf(dst), b)
	case graph.BF16:
		float16.ReadBF16(dst[:len(b)/2], b)
	case graph.I32:
		for i := range len(b) / 4 {
			dst[i] = float32(int32(le.Uint32(b[4*i:])))
		}
	case graph.F64:
		for i := range len(b) / 8 {
			dst[i] = float32(math.Float64frombits(le.Uint64(b[8*i:])))
		}
	}
}

func fromFloat32(t graph.DType, b []byte, src []float32) {
	le := binary.LittleEndian
	switch t {
	case graph.F32:
		copy(b, bytesOf(src))
	case graph.BF16:
		float16.WriteBF16(b, src[:len(b)/2])
	case graph.I32:
		for i := range len(b) / 4 {
			le.PutUint32(b[4*i:], uint32(int32(src[i])))
		}
	case graph.F64:
		for i := range len(b) / 8 {
			le.PutUint64(b[8*i:], math.Float64bits(float64(src[i])))
		}
	}
}
