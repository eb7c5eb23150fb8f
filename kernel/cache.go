package kernel

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Rows of a cache in few bits (graph.CacheGroup). They are packed as they are written, and unpacked a block of keys
// or values at a time, to the cache's type, so that everything behind that computes as with a cache of numbers.

// cacheRow returns the bytes of a row of a cache.
func (t *Tensor) cacheRow(r int) []byte {
	size := int(t.DType.Size())
	return unsafe.Slice((*byte)(unsafe.Add(t.begin(), r*t.Stride*size)), t.Cols*size)
}

// keepRow writes a key or a value to a row of the cache.
func keepRow(w *worker, a *graph.Attr, kv *Tensor, row int, x []float32) {
	if a.CacheBits == 0 {
		w.put(kv, row, 0, x)
		return
	}
	packCacheRow(kv.cacheRow(row), x, a.CacheBits)
}

// keepRef writes the numbers of x from column c on to a row of the cache.
func keepRef(a *graph.Attr, kv *Tensor, row int, x *Tensor, c int) {
	if a.CacheBits > 0 {
		own := make([]float32, a.HeadDim)
		for k := range own {
			own[k] = float32(x.At(0, c+k))
		}
		packCacheRow(kv.cacheRow(row), own, a.CacheBits)
		return
	}
	for k := range a.HeadDim {
		kv.Set(row, k, x.At(0, c+k))
	}
}

// recallRows returns n rows of head size from row r and column c on: of keys or values, or of a cache, whose rows
// are unpacked to buffer k if they are packed.
func recallRows(w *worker, a *graph.Attr, kv *Tensor, r, c, n, k int) gemm.Matrix {
	if a.CacheBits == 0 {
		return kv.at(r, c)
	}
	y := &w.rows[k]
	y.resize(kv.DType, n, a.HeadDim)
	x := y.F32
	if y.DType != graph.F32 {
		x = w.tmp(6, n*a.HeadDim)
	}
	for i := range n {
		unpackCacheRow(w.v, x[i*a.HeadDim:(i+1)*a.HeadDim], kv.cacheRow(r+i), a.CacheBits)
	}
	if y.DType != graph.F32 {
		w.v.Narrow(y.BF16[:len(x)], x)
	}
	return y.matrix()
}

// packCacheRow stores numbers in so many bits each.
func packCacheRow(row []byte, x []float32, bits int) {
	counts, most := row[4*graph.CacheGroups(len(x)):], float32(int(1)<<bits-1)
	clear(counts)
	for g := 0; g*graph.CacheGroup < len(x); g++ {
		part := x[g*graph.CacheGroup : min((g+1)*graph.CacheGroup, len(x))]
		least, step := rangeOf(part, most)
		binary.LittleEndian.PutUint16(row[4*g:], uint16(math.Float32bits(least)>>16))
		binary.LittleEndian.PutUint16(row[4*g+2:], uint16(math.Float32bits(step)>>16))
		if !(step > 0) {
			continue
		}
		for i, v := range part {
			n := byte(min((v-least)/step+0.5, most))
			at := g*graph.CacheGroup + i
			if bits == 8 {
				counts[at] = n
			} else {
				counts[at/2] |= n << (at % 2 * 4)
			}
		}
	}
}

// rangeOf returns the least value of a group and the step, most of which reach the greatest one: bf16 numbers. The
// step is 0 if all values are the least one, and NaN if one is not finite.
func rangeOf(x []float32, most float32) (least, step float32) {
	least, top, rest := x[0], x[0], float32(0)
	for _, v := range x {
		least, top = min(least, v), max(top, v)
		rest += v - v // NaN if v is not finite
	}
	least = roundedUp(least+0, true) // never -0
	step = roundedUp((top-least)/most, false)
	if rest != 0 || math.IsInf(float64(step), 0) || math.IsInf(float64(least), 0) { // or bf16 has no such number
		return float32(math.NaN()), float32(math.NaN())
	}
	return least, step
}

// roundedUp returns the least bf16 number that is not below v, or the greatest that is not above it.
func roundedUp(v float32, down bool) float32 {
	b := math.Float32bits(v)
	if away := math.Signbit(float64(v)) == down; away {
		b += 1<<16 - 1
	}
	return math.Float32frombits(b &^ (1<<16 - 1))
}

// unpackCacheRow is the inverse of packCacheRow.
func unpackCacheRow(v *simd.Set, y []float32, row []byte, bits int) {
	counts := row[4*graph.CacheGroups(len(y)):]
	for g := 0; g*graph.CacheGroup < len(y); g++ {
		part := y[g*graph.CacheGroup : min((g+1)*graph.CacheGroup, len(y))]
		v.Counts(part, counts[g*graph.CacheGroup*bits/8:], bits, bf16At(row[4*g:]), bf16At(row[4*g+2:]))
	}
}

// bf16At returns the number at the beginning of b.
func bf16At(b []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}

// unpackedCache returns a cache with its rows unpacked, in plain Go: the reference.
func unpackedCache(a *graph.Attr, kv *Tensor) *Tensor {
	if a.CacheBits == 0 {
		return kv
	}
	y := NewTensor(kv.DType, kv.Rows, a.HeadDim)
	for r := range kv.Rows {
		row := kv.cacheRow(r)
		counts := row[4*graph.CacheGroups(a.HeadDim):]
		for c := range a.HeadDim {
			group := row[c/graph.CacheGroup*4:]
			n := int(counts[c*a.CacheBits/8]) >> (c * a.CacheBits % 8) & (1<<a.CacheBits - 1)
			y.Set(r, c, float64(bf16At(group))+float64(n)*float64(bf16At(group[2:])))
		}
	}
	return &y
}
