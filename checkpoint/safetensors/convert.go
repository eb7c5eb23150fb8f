package safetensors

// Conversions between float32 and the stored types, little endian; those of 16 bits are package float16's.

import (
	"cmp"
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/athanor-llm/athanor/internal/float16"
)

// pieceElements is the number of elements converted at a time: large enough to amortise calls, small enough for the cache.
const pieceElements = 16 << 10

// share is the number of elements that one core converts. It is a multiple of every format's group of elements.
const share = 256 * pieceElements

// inShares calls f for shares of 0 to n on all cores, and returns the error of the first share that has one:
// one core would take longer for a model's billions of numbers than the disk.
func inShares(n int, f func(lo, hi int) error) error {
	if n <= share {
		return f(0, n)
	}
	errs := make([]error, (n+share-1)/share)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(errs)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(errs); i = int(next.Add(1)) - 1 {
				errs[i] = f(i*share, min((i+1)*share, n))
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// asStored returns the values' own memory as bytes if it has the layout of F32 in a file, that is on a little-endian
// machine. Large reads and writes then skip the conversion, which would be slower than a good disk.
func asStored(values []float32) ([]byte, bool) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, false
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values)), true
}

// decoder returns the function that converts len(dst) stored elements to float32, or nil if there is none.
func decoder(d DType) func(dst []float32, src []byte) {
	le := binary.LittleEndian
	switch d {
	case F32:
		return func(dst []float32, src []byte) {
			for i := range dst {
				dst[i] = math.Float32frombits(le.Uint32(src[4*i:]))
			}
		}
	case BF16:
		return float16.ReadBF16
	case F16:
		return float16.ReadF16
	case F64:
		return func(dst []float32, src []byte) {
			for i := range dst {
				dst[i] = float32(math.Float64frombits(le.Uint64(src[8*i:])))
			}
		}
	}
	return nil
}

// encoder returns the inverse conversion, or nil if there is none.
func encoder(d DType) func(dst []byte, src []float32) {
	le := binary.LittleEndian
	switch d {
	case F32:
		return func(dst []byte, src []float32) {
			for i, x := range src {
				le.PutUint32(dst[4*i:], math.Float32bits(x))
			}
		}
	case BF16:
		return float16.WriteBF16
	case F16:
		return float16.WriteF16
	case F64:
		return func(dst []byte, src []float32) {
			for i, x := range src {
				le.PutUint64(dst[8*i:], math.Float64bits(float64(x)))
			}
		}
	}
	return nil
}
