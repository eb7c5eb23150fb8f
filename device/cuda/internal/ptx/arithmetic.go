package ptx

import (
	"math"
	"math/bits"
)

// op is an operation on up to three operands, by each lane of a set on its own. A register
// holds 64 bits; those above the operand's type are undefined.
type op struct {
	operands int
	run      func(d, a, b, c *[32]uint64, set uint32)
}

// whole is the set of all lanes of a warp.
const whole = 1<<32 - 1

// integer is the set of integer types.
type integer interface {
	int16 | uint16 | int32 | uint32 | int64 | uint64
}

// scalars returns, by opcode, the instructions that each lane executes by itself on
// registers.
func scalars() map[string]op {
	t := map[string]op{}
	integers[int16](t, "s16")
	integers[uint16](t, "u16")
	integers[int32](t, "s32")
	integers[uint32](t, "u32")
	integers[int64](t, "s64")
	integers[uint64](t, "u64")
	words[uint16](t, "b16")
	words[uint32](t, "b32")
	words[uint64](t, "b64")
	highs(t)
	fields(t)
	floats(t)
	doubles(t)
	conversions(t)
	return t
}

// one, two and three contain the loops over lanes, rather than return operations for a loop elsewhere
// to call: so the compiler inlines an operation into its loops. Most sets are whole.

func one(f func(a uint64) uint64) op {
	return op{1, func(d, a, _, _ *[32]uint64, set uint32) {
		if set == whole {
			for l := range d {
				d[l] = f(a[l])
			}
			return
		}
		for l := range lanes(set) {
			d[l] = f(a[l])
		}
	}}
}

func two(f func(a, b uint64) uint64) op {
	return op{2, func(d, a, b, _ *[32]uint64, set uint32) {
		if set == whole {
			for l := range d {
				d[l] = f(a[l], b[l])
			}
			return
		}
		for l := range lanes(set) {
			d[l] = f(a[l], b[l])
		}
	}}
}

func three(f func(a, b, c uint64) uint64) op {
	return op{3, func(d, a, b, c *[32]uint64, set uint32) {
		if set == whole {
			for l := range d {
				d[l] = f(a[l], b[l], c[l])
			}
			return
		}
		for l := range lanes(set) {
			d[l] = f(a[l], b[l], c[l])
		}
	}}
}

func integers[T integer](t map[string]op, name string) {
	t["add."+name] = two(func(a, b uint64) uint64 { return uint64(T(a) + T(b)) })
	t["sub."+name] = two(func(a, b uint64) uint64 { return uint64(T(a) - T(b)) })
	t["mul.lo."+name] = two(func(a, b uint64) uint64 { return uint64(T(a) * T(b)) })
	t["mad.lo."+name] = three(func(a, b, c uint64) uint64 { return uint64(T(a)*T(b) + T(c)) })
	t["mul.wide."+name] = two(func(a, b uint64) uint64 { return uint64(int64(T(a)) * int64(T(b))) })
	t["mad.wide."+name] = three(func(a, b, c uint64) uint64 { return uint64(int64(T(a))*int64(T(b))) + c })
	t["div."+name] = two(func(a, b uint64) uint64 { return uint64(T(a) / T(b)) })
	t["rem."+name] = two(func(a, b uint64) uint64 { return uint64(T(a) % T(b)) })
	t["min."+name] = two(func(a, b uint64) uint64 { return uint64(min(T(a), T(b))) })
	t["max."+name] = two(func(a, b uint64) uint64 { return uint64(max(T(a), T(b))) })
	t["neg."+name] = one(func(a uint64) uint64 { return uint64(-T(a)) })
	t["abs."+name] = one(func(a uint64) uint64 { return uint64(max(T(a), -T(a))) })
	t["shr."+name] = two(func(a, b uint64) uint64 { return uint64(T(a) >> uint32(b)) })
}

// highs adds the upper halves of products.
func highs(t map[string]op) {
	t["mul.hi.s16"] = two(func(a, b uint64) uint64 { return uint64(int32(int16(a)) * int32(int16(b)) >> 16) })
	t["mul.hi.u16"] = two(func(a, b uint64) uint64 { return uint64(uint16(a)) * uint64(uint16(b)) >> 16 })
	t["mul.hi.s32"] = two(func(a, b uint64) uint64 { return uint64(int64(int32(a)) * int64(int32(b)) >> 32) })
	t["mul.hi.u32"] = two(func(a, b uint64) uint64 { return uint64(uint32(a)) * uint64(uint32(b)) >> 32 })
	t["mul.hi.u64"] = two(func(a, b uint64) uint64 { hi, _ := bits.Mul64(a, b); return hi })
	t["mul.hi.s64"] = two(func(a, b uint64) uint64 {
		hi, _ := bits.Mul64(a, b)
		return hi - uint64(int64(a)>>63)&b - uint64(int64(b)>>63)&a
	})
}

// fields adds bit-field extraction (n bits from a position on, sign-extended if signed) and the choice
// of four bytes out of two words: each nibble of c has a byte's number from 0 to 7 or, with 8 added,
// means that byte's sign, eight times.
func fields(t map[string]op) {
	t["bfe.u32"] = three(func(a, at, n uint64) uint64 { return uint64(uint32(a)) >> (at & 255) & (1<<(n&255) - 1) })
	t["bfe.s32"] = three(func(a, at, n uint64) uint64 {
		return uint64(uint32(int64(int32(a)) >> min(at&255, 63) << (64 - min(n&255, 64)) >> (64 - min(n&255, 64))))
	})
	t["prmt.b32"] = three(permute)
}

func permute(a, b, c uint64) (word uint64) {
	for i := 0; i < 32; i += 8 {
		at := c >> (i / 2) & 15
		chosen := (uint64(uint32(a)) | b<<32) >> (at & 7 * 8) & 255
		if at > 7 {
			chosen = chosen >> 7 * 255
		}
		word |= chosen << i
	}
	return word
}

func words[T uint16 | uint32 | uint64](t map[string]op, name string) {
	t["mov."+name] = one(func(a uint64) uint64 { return a })
	t["and."+name] = two(func(a, b uint64) uint64 { return a & b })
	t["or."+name] = two(func(a, b uint64) uint64 { return a | b })
	t["xor."+name] = two(func(a, b uint64) uint64 { return a ^ b })
	t["not."+name] = one(func(a uint64) uint64 { return ^a })
	t["shl."+name] = two(func(a, b uint64) uint64 { return uint64(T(a) << uint32(b)) })
	t["popc."+name] = one(func(a uint64) uint64 { return uint64(bits.OnesCount64(uint64(T(a)))) })
}

// floats adds the operations on 32-bit floats.
func floats(t map[string]op) {
	binary := func(f func(a, b float32) float32) op {
		return op{2, func(d, a, b, _ *[32]uint64, set uint32) {
			for l := range lanes(set) {
				d[l] = bits32(f(f32(a[l]), f32(b[l])))
			}
		}}
	}
	unary := func(f func(a float32) float32) op {
		return op{1, func(d, a, _, _ *[32]uint64, set uint32) {
			for l := range lanes(set) {
				d[l] = bits32(f(f32(a[l])))
			}
		}}
	}
	t["mov.f32"] = one(func(a uint64) uint64 { return a })
	t["add.f32"] = binary(func(a, b float32) float32 { return a + b })
	t["sub.f32"] = binary(func(a, b float32) float32 { return a - b })
	t["mul.f32"] = binary(func(a, b float32) float32 { return a * b })
	t["add.rn.f32"], t["sub.rn.f32"], t["mul.rn.f32"] = t["add.f32"], t["sub.f32"], t["mul.f32"]
	t["div.rn.f32"] = binary(func(a, b float32) float32 { return a / b })
	t["min.f32"] = binary(func(a, b float32) float32 { return number32(a, b, min(a, b)) })
	t["max.f32"] = binary(func(a, b float32) float32 { return number32(a, b, max(a, b)) })
	t["copysign.f32"] = two(func(a, b uint64) uint64 { return a&(1<<31) | b&(1<<31-1) }) // the sign is a's
	t["fma.rn.f32"] = three(func(a, b, c uint64) uint64 { return bits32(fma(f32(a), f32(b), f32(c))) })
	t["fma.rm.f32"] = three(func(a, b, c uint64) uint64 { return bits32(fmaDown(f32(a), f32(b), f32(c))) })
	t["neg.f32"] = one(func(a uint64) uint64 { return a ^ 1<<31 })
	t["abs.f32"] = one(func(a uint64) uint64 { return a &^ (1 << 31) })
	t["sqrt.rn.f32"] = unary(func(a float32) float32 { return float32(math.Sqrt(float64(a))) })
	t["rcp.rn.f32"] = unary(func(a float32) float32 { return 1 / a })
	// Approximations have about the largest error that NVIDIA documents (bounds recalled,
	// not checked), with the sign given by the operand's last bit.
	t["ex2.approx.f32"] = unary(func(a float32) float32 { return withRelativeError(math.Exp2(float64(a)), a, 0x1p-22) })
	t["ex2.approx.ftz.f32"] = unary(func(a float32) float32 { return flush(withRelativeError(math.Exp2(float64(flush(a))), a, 0x1p-22)) })
	t["rcp.approx.ftz.f32"] = unary(func(a float32) float32 { return flush(withRelativeError(1/float64(flush(a)), a, 0x1p-23)) })
	t["rsqrt.approx.f32"] = unary(func(a float32) float32 { return withRelativeError(1/math.Sqrt(float64(a)), a, 1.28e-7) }) // 2^-22.9
}

// number32 returns the result of min or max, c, or the other operand if one is NaN.
func number32(a, b, c float32) float32 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	}
	return c
}

// withRelativeError returns the exact result with a relative error of the given size.
func withRelativeError(exact float64, a float32, size float64) float32 {
	if math.Float32bits(a)&1 != 0 {
		size = -size
	}
	if x := float32(exact); float64(x) == exact && exact == math.Trunc(exact) { // integers are assumed to be exact: sums depend on e^0 = 1
		return x
	}
	return float32(exact * (1 + size))
}

// flush returns x, or a signed 0 if x is denormal.
func flush(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// fma returns a*b+c, correctly rounded. Rounding the float64 sum to float32 is as good as rounding the
// exact value unless the sum lies half-way between two float32s, where the exact value decides.
func fma(a, b, c float32) float32 {
	s := float64(a)*float64(b) + float64(c) // the product is exact
	u := math.Float64bits(s)
	const middle, least, behind = 1 << 28, 1023 - 126, 1023 + 128 // normal float32s have exponents from least on, up to behind
	if e := u >> 52 & 0x7ff; u&(2*middle-1) != middle && e >= least && e < behind || s == 0 {
		return float32(s)
	}
	return float32(wide(a, b, c))
}

// wide returns a*b+c as a float64 rounded to odd, so that rounding it to float32, in any
// direction, gives the correctly rounded result. (S. Boldo, G. Melquiond, Emulation of FMA
// and correctly rounded sums, 2008.)
func wide(a, b, c float32) float64 {
	p, z := float64(a)*float64(b), float64(c) // p is exact
	s := p + z
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return s
	}
	v := s - p
	err := p - (s - v) + (z - v)
	if u := math.Float64bits(s); err != 0 && u&1 == 0 {
		if err > 0 == (s > 0) {
			return math.Float64frombits(u + 1)
		}
		return math.Float64frombits(u - 1)
	}
	return s
}

func fmaDown(a, b, c float32) float32 {
	w := wide(a, b, c)
	r := float32(w)
	if float64(r) > w {
		r = math.Nextafter32(r, float32(math.Inf(-1)))
	}
	return r
}

// towardZero rounds w to float32 toward zero.
func towardZero(w float64) float32 {
	r := float32(w)
	if math.Abs(float64(r)) > math.Abs(w) {
		r = math.Nextafter32(r, 0)
	}
	return r
}

func doubles(t map[string]op) {
	binary := func(f func(a, b float64) float64) op {
		return two(func(a, b uint64) uint64 { return bits64(f(f64(a), f64(b))) })
	}
	t["mov.f64"] = one(func(a uint64) uint64 { return a })
	t["add.f64"] = binary(func(a, b float64) float64 { return a + b })
	t["sub.f64"] = binary(func(a, b float64) float64 { return a - b })
	t["mul.f64"] = binary(func(a, b float64) float64 { return a * b })
	t["add.rn.f64"], t["mul.rn.f64"] = t["add.f64"], t["mul.f64"]
	t["div.rn.f64"] = binary(func(a, b float64) float64 { return a / b })
	t["fma.rn.f64"] = three(func(a, b, c uint64) uint64 { return bits64(math.FMA(f64(a), f64(b), f64(c))) })
	t["sqrt.rn.f64"] = one(func(a uint64) uint64 { return bits64(math.Sqrt(f64(a))) })
	t["rcp.rn.f64"] = one(func(a uint64) uint64 { return bits64(1 / f64(a)) })
	t["neg.f64"] = one(func(a uint64) uint64 { return a ^ 1<<63 })
	t["abs.f64"] = one(func(a uint64) uint64 { return a &^ (1 << 63) })
}

func conversions(t map[string]op) {
	same := one(func(a uint64) uint64 { return a })
	for _, to := range []string{"u16", "u32", "u64", "s16", "s32", "s64"} {
		t["cvt."+to+".u8"] = one(func(a uint64) uint64 { return uint64(uint8(a)) })
		t["cvt."+to+".s8"] = one(func(a uint64) uint64 { return uint64(int8(a)) })
		t["cvt."+to+".u16"] = one(func(a uint64) uint64 { return uint64(uint16(a)) })
		t["cvt."+to+".u32"] = one(func(a uint64) uint64 { return uint64(uint32(a)) })
		t["cvt."+to+".u64"], t["cvt."+to+".s64"] = same, same
		t["cvt."+to+".s16"] = one(func(a uint64) uint64 { return uint64(int16(a)) })
		t["cvt."+to+".s32"] = one(func(a uint64) uint64 { return uint64(int32(a)) })
	}
	for _, name := range []string{"b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"} {
		t["mov."+name] = same
	}
	t["cvt.rn.f32.s32"] = one(func(a uint64) uint64 { return bits32(float32(int32(a))) })
	t["cvt.rn.f32.u16"] = one(func(a uint64) uint64 { return bits32(float32(uint16(a))) })
	t["cvt.rn.f32.u32"] = one(func(a uint64) uint64 { return bits32(float32(uint32(a))) })
	t["cvt.rn.f32.s64"] = one(func(a uint64) uint64 { return bits32(float32(int64(a))) })
	t["cvt.rn.f32.u64"] = one(func(a uint64) uint64 { return bits32(float32(a)) })
	t["cvt.rn.f64.s32"] = one(func(a uint64) uint64 { return bits64(float64(int32(a))) })
	t["cvt.f64.f32"] = one(func(a uint64) uint64 { return bits64(float64(f32(a))) })
	t["cvt.rn.f32.f64"] = one(func(a uint64) uint64 { return bits32(float32(f64(a))) })
	t["cvt.rzi.f32.f32"] = one(func(a uint64) uint64 { return bits32(float32(math.Trunc(float64(f32(a))))) })
	t["cvt.rni.f32.f32"] = one(func(a uint64) uint64 { return bits32(float32(math.RoundToEven(float64(f32(a))))) })
	t["cvt.rzi.u64.f32"] = one(func(a uint64) uint64 { return saturated(float64(f32(a)), 0, math.MaxUint64) })
	t["cvt.rzi.u32.f32"] = one(func(a uint64) uint64 { return saturated(float64(f32(a)), 0, math.MaxUint32) })
	t["cvt.rzi.s32.f32"] = one(func(a uint64) uint64 { return saturated(float64(f32(a)), math.MinInt32, math.MaxInt32) })
	t["cvt.sat.f32.f32"] = one(func(a uint64) uint64 {
		if x := f32(a); x > 0 {
			return bits32(min(x, 1))
		}
		return 0 // of NaN too
	})
	t["cvt.rn.bf16.f32"] = one(func(a uint64) uint64 { return bf16(f32(a)) })
	t["cvt.rn.bf16x2.f32"] = two(func(a, b uint64) uint64 { return bf16(f32(a))<<16 | bf16(f32(b)) })
}

// saturated truncates a float to an integer clamped to [low, high]; NaN becomes 0.
func saturated(x, low, high float64) uint64 {
	switch x = math.Trunc(x); {
	case x != x:
		return 0
	case x < 0:
		return uint64(int64(max(x, low)))
	case x >= high && high == math.MaxUint64:
		return math.MaxUint64
	}
	return uint64(min(x, high))
}

// bf16 rounds to nearest, ties to even; NaN becomes 0x7fff.
func bf16(x float32) uint64 {
	u := math.Float32bits(x)
	if x != x {
		return 0x7fff
	}
	return uint64(u+0x7fff+u>>16&1) >> 16 & 0xffff
}

// compare returns setp's function for a comparison and type, or nil.
func compare(name, kind string) func(a, b uint64) bool {
	switch kind {
	case "s16":
		return ordered[int16](name)
	case "s32":
		return ordered[int32](name)
	case "s64":
		return ordered[int64](name)
	case "u16", "b16":
		return ordered[uint16](name)
	case "u32", "b32":
		return ordered[uint32](name)
	case "u64", "b64":
		return ordered[uint64](name)
	case "f32":
		return floating(name, f32)
	case "f64":
		return floating(name, f64)
	}
	return nil
}

func ordered[T integer](name string) func(a, b uint64) bool {
	return map[string]func(a, b uint64) bool{
		"eq": func(a, b uint64) bool { return T(a) == T(b) }, "ne": func(a, b uint64) bool { return T(a) != T(b) },
		"lt": func(a, b uint64) bool { return T(a) < T(b) }, "le": func(a, b uint64) bool { return T(a) <= T(b) },
		"gt": func(a, b uint64) bool { return T(a) > T(b) }, "ge": func(a, b uint64) bool { return T(a) >= T(b) },
	}[name]
}

// floating returns a comparison of floats; one whose name ends with u is also true if
// either is NaN.
func floating[T float32 | float64](name string, of func(uint64) T) func(a, b uint64) bool {
	f := map[string]func(x, y T) bool{
		"eq": func(x, y T) bool { return x == y }, "ne": func(x, y T) bool { return x < y || x > y },
		"lt": func(x, y T) bool { return x < y }, "le": func(x, y T) bool { return x <= y },
		"gt": func(x, y T) bool { return x > y }, "ge": func(x, y T) bool { return x >= y },
	}
	if g, ok := f[name]; ok {
		return func(a, b uint64) bool { return g(of(a), of(b)) }
	}
	if len(name) == 3 && name[2] == 'u' {
		if g, ok := f[name[:2]]; ok {
			return func(a, b uint64) bool {
				x, y := of(a), of(b)
				return x != x || y != y || g(x, y)
			}
		}
	}
	return map[string]func(a, b uint64) bool{
		"nan": func(a, b uint64) bool { return of(a) != of(a) || of(b) != of(b) },
		"num": func(a, b uint64) bool { return of(a) == of(a) && of(b) == of(b) },
	}[name]
}
