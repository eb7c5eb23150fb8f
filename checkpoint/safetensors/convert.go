package safetensors

// Conversions between float32 and the stored types, little endian. Rounding is to nearest, ties to even, like PyTorch's;
// a NaN stays a NaN, overflow becomes infinity.

import (
	"cmp"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
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
		return func(dst []float32, src []byte) {
			for i := range dst {
				dst[i] = fromBF16(le.Uint16(src[2*i:]))
			}
		}
	case F16:
		return func(dst []float32, src []byte) {
			for i := range dst {
				dst[i] = fromF16(le.Uint16(src[2*i:]))
			}
		}
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
		return func(dst []byte, src []float32) {
			for i, x := range src {
				le.PutUint16(dst[2*i:], toBF16(x))
			}
		}
	case F16:
		return func(dst []byte, src []float32) {
			for i, x := range src {
				le.PutUint16(dst[2*i:], toF16(x))
			}
		}
	case F64:
		return func(dst []byte, src []float32) {
			for i, x := range src {
				le.PutUint64(dst[8*i:], math.Float64bits(float64(x)))
			}
		}
	}
	return nil
}

func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40 // the payload may be in the truncated half: keep it a (quiet) NaN, not infinity
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// upperHalves writes the upper halves of values, which are all that bf16 numbers consist of. It returns the
// index of the first value that has more, or -1.
func upperHalves(dst []byte, src []float32) int {
	rest := uint32(0)
	for i, x := range src {
		b := math.Float32bits(x)
		rest |= b << 16
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(b>>16))
	}
	if rest == 0 {
		return -1
	}
	return slices.IndexFunc(src, func(x float32) bool { return math.Float32bits(x)<<16 != 0 })
}

// fromF16 widens: 1 sign, 5 exponent (bias 15), 10 fraction bits.
func fromF16(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exponent {
	case 0: // zero or subnormal: fraction * 2^-24, exact in float32
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	case 31:
		return math.Float32frombits(sign | 255<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent-15+127)<<23 | fraction<<13)
}

// toF16 narrows. Below the smallest normal value the hardware's own rounding does the work: adding 0.5 leaves a unit in
// the last place of 2^-24, which is float16's subnormal step.
func toF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 255<<23:
		return sign | 0x7e00
	case b >= (127+16)<<23: // 65536 and more
		return sign | 0x7c00
	case b < (127-14)<<23:
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b += 0xfff + b>>13&1 // may carry into the exponent, up to infinity: that is right
	return sign | uint16(b>>13-(127-15)<<10)
}
