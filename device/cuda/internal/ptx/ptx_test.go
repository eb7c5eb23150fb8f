package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// text returns a kernel k(p) with the given body; p, the address of its memory, is in %rd1, and the
// thread in %r1.
func text(body string) string {
	return `.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(
	.param .align 8 .b8 k_param_0[8]
)
.maxntid 128, 1, 1
{
	.reg .pred 	%p<9>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;
	.shared .align 4 .b8 fixed[64];
	ld.param.u64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
` + body + "\n}\n"
}

// run runs a body with the given number of threads on a memory of 1024 words.
func run(body string, threads int) ([]uint32, Counts, error) {
	return runIn(body, threads, 2048, false)
}

// runIn is run with the given bytes of shared memory and order of warps.
func runIn(body string, threads, shared int, descending bool) ([]uint32, Counts, error) {
	m, err := Parse(text(body))
	if err != nil {
		return nil, Counts{}, err
	}
	memory := make([]uint32, 1024)
	at := uintptr(unsafe.Pointer(&memory[0]))
	c, err := m.Run("k", Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{uint32(threads), 1, 1}, Shared: uint32(shared), Descending: descending,
		Args: binary.LittleEndian.AppendUint64(nil, uint64(at)), Memory: []Span{{at, 4096}}, Traffic: true})
	return memory, c, err
}

// of is the operation's result in one lane, provided that a run on all lanes and one on that lane
// agree.
func (o op) of(a, b, c uint64) uint64 {
	const lane = 17
	var d, e, x, y, z [32]uint64
	x[lane], y[lane], z[lane] = a, b, c
	e[lane-1] = 1
	o.run(&d, &x, &y, &z, whole)
	o.run(&e, &x, &y, &z, 1<<lane)
	if d[lane] != e[lane] || e[lane-1] != 1 {
		panic("a lane by itself has another result, or others have one, too")
	}
	return d[lane]
}

// put writes %r9 to the thread's word.
const put = `
	mul.wide.u32 	%rd8, %r1, 4;
	add.s64 	%rd9, %rd1, %rd8;
	st.global.u32 	[%rd9], %r9;
	ret;`

// TestFaults: errors that a card would not report are reported.
func TestFaults(t *testing.T) {
	own := "\tshl.b32 \t%r2, %r1, 2;\n" // the thread's word of shared memory
	for want, body := range map[string]string{
		"outside of all allocations": "ld.global.u32 %r9, [%rd1+4096]; ret;",
		"is not on 4 bytes":          "ld.global.u32 %r9, [%rd1+2]; ret;",
		"of shared memory":           "st.shared.u32 [fixed+2112], %r1; ret;",
		"nobody has written":         own + "ld.shared.u32 %r9, [%r2]; ret;",
		"without a barrier between":  own + "st.shared.u32 [%r2], %r1; xor.b32 %r3, %r2, 4; ld.shared.u32 %r9, [%r3]; ret;",
		"write byte 0":               "st.shared.u32 [fixed], %r1; ret;",
		"which others have read":     own + "st.shared.u32 [%r2], %r1; bar.sync 0; xor.b32 %r3, %r2, 256; setp.lt.u32 %p1, %r1, 64; @%p1 ld.shared.u32 %r9, [%r3]; @!%p1 st.shared.u32 [%r2], %r1; ret;",
		// A barrier of one warp does not order another warp.
		"reads byte": own + "st.shared.u32 [%r2], %r1; bar.warp.sync -1; xor.b32 %r3, %r2, 256; ld.shared.u32 %r9, [%r3]; ret;",
		"copy of thread 0 is under way": "setp.ne.s32 %p1, %r1, 0; @%p1 bra $L; cp.async.ca.shared.global [fixed], [%rd1], 4, 4; cp.async.commit_group; " +
			"ld.shared.u32 %r9, [fixed]; $L: ret;",
		"does not wait for its copies":   "shl.b32 %r2, %r1, 2; cp.async.ca.shared.global [%r2], [%rd1], 4, 4; ret;",
		"other lanes wait for the warp":  "setp.lt.s32 %p1, %r1, 4; @%p1 bra $L; bar.warp.sync -1; ret; $L: bar.warp.sync -1; ret;",
		"wait for lanes that wait at a":  "setp.lt.s32 %p1, %r1, 4; @%p1 bra $L; bar.sync 0; ret; $L: bar.warp.sync -1; ret;",
		"which is not there":             "setp.ge.s32 %p1, %r1, 4; @%p1 bra $L; shfl.sync.idx.b32 %r9|%p2, %r1, 9, 31, 15; $L: ret;",
		"are meant":                      "setp.ge.s32 %p1, %r1, 4; @%p1 bra $L; bar.warp.sync 3; $L: ret;",
		"divide by zero":                 "mov.u32 %r2, 0; div.u32 %r9, %r1, %r2; ret;",
		"only 4 lanes are there":         "setp.ge.s32 %p1, %r1, 4; @%p1 bra $L; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2,%r3,%r4,%r5}, [%r1]; $L: ret;",
		"the code ends without a return": "mov.u32 %r2, 0;",
		"vote at a barrier":              "setp.lt.s32 %p1, %r1, 4; @%p1 bra $L; bar.sync 0; ret; $L: bar.red.or.pred %p2, 0, %p1; ret;",
		"only some of the lanes":         "setp.lt.s32 %p1, %r1, 4; @%p1 bar.sync 0; ret;",
		"published without a barrier":    "st.global.u32 [%rd1], %r1; fence.acq_rel.gpu; st.release.gpu.global.u32 [%rd1+4], %r1; ret;",
		"none is left to run":            "$L: nanosleep.u32 100; bra $L;",
		"argument at byte 8":             "ld.param.u64 %rd2, [k_param_0+8]; ret;",
	} {
		lines := strings.ReplaceAll(strings.ReplaceAll(body, "; ", ";\n"), ": ", ":\n")
		_, _, err := run(lines, 128)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nsays %v, not that %q", lines, err, want)
		}
	}
}

// TestTurns: blocks that wait for others get what those publish, in whatever order blocks run.
func TestTurns(t *testing.T) {
	m, err := Parse(text(`
	mov.u32 	%r2, %ctaid.x;
	mul.wide.u32 	%rd2, %r2, 4;
	add.s64 	%rd3, %rd1, %rd2;
	setp.eq.u32 	%p1, %r2, 0;
	mov.u32 	%r3, 1;
	@%p1 bra 	$go;
$again:
	ld.acquire.gpu.global.u32 	%r3, [%rd3+-4];
	setp.ne.u32 	%p1, %r3, 0;
	@%p1 bra 	$go;
	nanosleep.u32 	100;
	bra 	$again;
$go:
	mul.lo.u32 	%r3, %r3, 3;
	st.release.gpu.global.u32 	[%rd3], %r3;
	ret;`))
	if err != nil {
		t.Fatal(err)
	}
	for _, descending := range []bool{false, true} {
		memory := make([]uint32, 4)
		at := uintptr(unsafe.Pointer(&memory[0]))
		_, err := m.Run("k", Launch{Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{1, 1, 1}, Descending: descending,
			Args: binary.LittleEndian.AppendUint64(nil, uint64(at)), Memory: []Span{{at, 16}}})
		if err != nil || !slices.Equal(memory, []uint32{3, 9, 27, 81}) {
			t.Errorf("descending %v: %v, %v", descending, memory, err)
		}
	}
}

// TestOrder: correctly synchronised accesses are no errors.
func TestOrder(t *testing.T) {
	for _, body := range []string{
		"st.shared.u32 [%r2], %r1; bar.sync 0; xor.b32 %r3, %r2, 256; ld.shared.u32 %r9, [%r3]; bar.sync 0; st.shared.u32 [%r2], %r9;",
		"st.shared.u32 [%r2], %r1; bar.warp.sync -1; xor.b32 %r3, %r2, 4; ld.shared.u32 %r9, [%r3]; bar.warp.sync -1; st.shared.u32 [%r2], %r9;",
		"cp.async.ca.shared.global [%r2], [%rd1], 4, 4; cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 %r9, [%r2]; bar.sync 0; ld.shared.u32 %r8, [fixed];",
		// An awaited group has arrived, the next one has not.
		"add.s32 %r3, %r2, 512; cp.async.ca.shared.global [%r2], [%rd1], 4, 4; cp.async.commit_group; cp.async.ca.shared.global [%r3], [%rd1], 4, 4; cp.async.commit_group; " +
			"cp.async.wait_group 1; ld.shared.u32 %r9, [%r2]; cp.async.wait_group 0;",
	} {
		if _, _, err := run("shl.b32 %r2, %r1, 2;\n"+strings.ReplaceAll(body, "; ", ";\n")+"\nret;", 128); err != nil {
			t.Errorf("%s\n%v", body, err)
		}
	}
}

// TestDivergence: lanes that diverge reconverge, whatever the order of the code, and a loop runs the
// right number of times for each.
func TestDivergence(t *testing.T) {
	memory, _, err := run(`
	mov.u32 	%r9, 0;
	mov.u32 	%r2, 0;
	bra.uni 	$start;
$body:
	add.s32 	%r9, %r9, %r2;
	add.s32 	%r2, %r2, 1;
$start:
	setp.lt.u32 	%p1, %r2, %r1;
	@%p1 bra 	$body;
	and.b32 	%r3, %r1, 1;
	setp.eq.s32 	%p2, %r3, 0;
	@!%p2 bra 	$odd;
	add.s32 	%r9, %r9, 1000;
	bra.uni 	$both;
$odd:
	add.s32 	%r9, %r9, 2000;
$both:
	shfl.sync.bfly.b32 	%r9|%p3, %r9, 1, 31, -1;`+put, 64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(64) {
		other := i ^ 1
		if want := other*(other-1)/2 + 1000*(1+other%2); other != 0 && memory[i] != want || other == 0 && memory[i] != 1000 {
			t.Errorf("thread %d has %d, not %d", i, memory[i], want)
		}
	}
}

// TestBlocks: names declared in a block of inline assembly are local to it, whether it has one line or
// several.
func TestBlocks(t *testing.T) {
	memory, _, err := run(`
	setp.lt.u32 	%p1, %r1, 5;
	mov.u32 	%r2, 7;
	{
	.reg .pred 	%p1;
	setp.ge.u32 	%p1, %r1, 5;
	selp.u32 	%r9, 1, 0, %p1;
	}
	{ .reg .b32 %r2; mov.b64 {%r2, %r3}, %rd1; }
	@%p1 mov.u32 	%r9, %r2;`+put, 32)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range memory[:32] {
		if want := uint32(1 + 6*((36-i)/32)); got != want {
			t.Errorf("thread %d has %d, not %d", i, got, want)
		}
	}
}

// TestBanks: rows of 32 words that all begin in one bank take 32 cycles, rows of 33 one.
func TestBanks(t *testing.T) {
	for pitch, want := range map[int]int64{4: 1, 8: 2, 64: 16, 68: 1, 0: 1} {
		at := fmt.Sprintf("mul.lo.s32 %%r2, %%r1, %d;\nmov.u32 %%r3, fixed;\nadd.s32 %%r2, %%r2, %%r3;\n", max(pitch, 4))
		access := "st.shared.u32 [%r2], %r1;"
		if pitch == 0 { // one word for all is one cycle
			at, access = "", "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $L;\nst.shared.u32 [fixed], %r1;\n$L:\nbar.sync 0;\nld.shared.u32 %r9, [fixed];"
			want++ // the write
		}
		_, c, err := run(at+access+"\nret;", 32)
		if err != nil || c.Shared.Units != want {
			t.Errorf("%d bytes apart: %d cycles, not %d; %v", pitch, c.Shared.Units, want, err)
		}
	}
}

// TestArithmetic compares with exact numbers.
func TestArithmetic(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	float := func() float32 {
		x := math.Float32frombits(r.Uint32())
		if r.IntN(2) == 0 || x != x || math.IsInf(float64(x), 0) {
			return float32(r.NormFloat64())
		}
		return x
	}
	exact := func(a, b, c float32) *big.Float {
		p := new(big.Float).SetPrec(600).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		return p.Add(p, big.NewFloat(float64(c)))
	}
	for range 200000 {
		a, b, c := float(), float(), float()
		if r.IntN(2) == 0 { // sums near the midpoint of two floats
			c = float32(math.Ldexp(float64(a*b), 24-r.IntN(48)))
		}
		if c != c || math.IsInf(float64(c), 0) {
			continue
		}
		x := exact(a, b, c)
		if x.Sign() == 0 {
			continue
		}
		if want, _ := x.Float32(); fma(a, b, c) != want {
			t.Fatalf("fma(%v, %v, %v) = %v, not %v", a, b, c, fma(a, b, c), want)
		}
		down := fmaDown(a, b, c)
		if want, acc := x.Float32(); !math.IsInf(float64(want), 0) {
			if acc == big.Above {
				want = math.Nextafter32(want, float32(math.Inf(-1)))
			}
			if down != want {
				t.Fatalf("fma(%v, %v, %v) downwards = %v, not %v", a, b, c, down, want)
			}
		}
		u, v := int64(r.Uint64()), int64(r.Uint64())
		hi := new(big.Int).Rsh(new(big.Int).Mul(big.NewInt(u), big.NewInt(v)), 64).Int64()
		if got := int64(arithmetic["mul.hi.s64"].of(uint64(u), uint64(v), 0)); got != hi {
			t.Fatalf("mul.hi.s64 %d %d = %d, not %d", u, v, got, hi)
		}
	}
	for range 100000 { // bit fields, bit by bit
		a, at, n := r.Uint32(), r.IntN(40), r.IntN(40)
		var unsigned, signed uint32
		for i := range min(n, 32) {
			if at+i < 32 {
				unsigned |= a >> (at + i) & 1 << i
			}
			signed |= a >> min(at+i, 31) & 1 << i
		}
		if n > 0 && n < 32 && signed>>(n-1)&1 != 0 {
			signed |= ^uint32(0) << n
		}
		for name, want := range map[string]uint32{"bfe.u32": unsigned, "bfe.s32": signed} {
			if got := uint32(arithmetic[name].of(uint64(a), uint64(at), uint64(n))); got != want {
				t.Fatalf("%s %#x %d %d = %#x, not %#x", name, a, at, n, got, want)
			}
		}
	}
	for range 10000 { // chosen bytes
		var from, want [8]byte
		var choice uint32
		binary.LittleEndian.PutUint64(from[:], r.Uint64())
		for i := range 4 {
			k := r.IntN(16)
			choice |= uint32(k) << (4 * i)
			if want[i] = from[k%8]; k >= 8 {
				want[i] = byte(int8(want[i]) >> 7)
			}
		}
		a, b := binary.LittleEndian.Uint32(from[:]), binary.LittleEndian.Uint32(from[4:])
		if got := arithmetic["prmt.b32"].of(uint64(a), uint64(b), uint64(choice)); got != uint64(binary.LittleEndian.Uint32(want[:])) {
			t.Fatalf("prmt.b32 of %x by %x = %#x, not %x", from, choice, got, want[:4])
		}
	}
	for _, c := range []struct {
		x    float32
		want uint64
	}{{1, 0x3f80}, {math.Float32frombits(0x3f808000), 0x3f80}, {math.Float32frombits(0x3f818000), 0x3f82}, {math.MaxFloat32, 0x7f80}, {float32(math.NaN()), 0x7fff}, {float32(math.Inf(-1)), 0xff80}} {
		if got := bf16(c.x); got != c.want {
			t.Errorf("bf16(%v) = %#x, not %#x", c.x, got, c.want)
		}
	}
}

// TestProduct: mma on fragments that ldmatrix loaded from rows in shared memory gives the matrix
// product, also with .trans. So the two definitions of a lane's elements agree.
func TestProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var a [16][16]float64
	var b [16][8]float64
	var fill strings.Builder // thread 0 writes a, 16 rows of 32 bytes, and from 512 on b, 16 rows of 16 bytes
	word := func(at int, x, y float64) {
		fmt.Fprintf(&fill, "mov.u32 %%r2, %d;\nst.shared.u32 [fixed+%d], %%r2;\n", bf16(float32(x))|bf16(float32(y))<<16, at)
	}
	for i := range 16 {
		for j := range 16 {
			a[i][j] = float64(r.IntN(17) - 8)
		}
		for j := range 8 {
			b[i][j] = float64(r.IntN(17) - 8)
		}
		for j := 0; j < 16; j += 2 {
			word(64+32*i+2*j, a[i][j], a[i][j+1])
		}
		for j := 0; j < 8; j += 2 {
			word(64+512+16*i+2*j, b[i][j], b[i][j+1])
		}
	}
	memory, c, err := run(`
	setp.ne.s32 	%p1, %r1, 0;
	@%p1 bra 	$there;
`+fill.String()+`
$there:
	bar.sync 	0;
	and.b32 	%r2, %r1, 15;
	shl.b32 	%r2, %r2, 5;
	and.b32 	%r3, %r1, 16;
	add.s32 	%r2, %r2, %r3;
	mov.u32 	%r4, fixed;
	add.s32 	%r2, %r2, %r4;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 	{%r10,%r11,%r12,%r13}, [%r2+64];
	and.b32 	%r2, %r1, 15;
	shl.b32 	%r2, %r2, 4;
	add.s32 	%r2, %r2, %r4;
	ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 	{%r20,%r21,%r22,%r23}, [%r2+576];
	mov.f32 	%f1, 0f00000000;
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 	{%f2,%f3,%f4,%f5}, {%r10,%r11,%r12,%r13}, {%r20,%r21}, {%f1,%f1,%f1,%f1};
	mul.wide.u32 	%rd8, %r1, 16;
	add.s64 	%rd9, %rd1, %rd8;
	st.global.v4.f32 	[%rd9], {%f2, %f3, %f4, %f5};
	ret;`, 32)
	if err != nil {
		t.Fatal(err)
	}
	for l := range 32 {
		for e := range 4 {
			row, col := l/4+e/2*8, l%4*2+e%2
			var want float64
			for k := range 16 {
				want += a[row][k] * b[k][col]
			}
			if got := math.Float32frombits(memory[4*l+e]); float64(got) != want {
				t.Fatalf("(%d,%d) is %v, not %v", row, col, got, want)
			}
		}
	}
	if n := c.Instructions("mma"); n != 1 {
		t.Errorf("%d products counted", n)
	}
}

// TestUnknown: unknown text is an error that names the line; it is not skipped.
func TestUnknown(t *testing.T) {
	for _, body := range []string{
		"wgmma.fence;", "wgmma.fence.sync.aligned", "fence.acq_rel.cta;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p1, 1, 1, 0, 0;",
		"wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4, %f5, %f6}, %rd1, %rd1, %p1, 1, 1, 0, 0;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3}, %rd1, %rd1, %p1, 1, 1, 0, 0;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f3}, %rd1, %rd1, %p1, 1, 1, 0, 0;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p1, 1, 2, 0, 0;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p1, 1, 1, 0, 2;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p1, 1, 1, 0;", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p1, 1, 1, 0, 0, 0;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, {%r1, %r2}, %rd1, %p1, 1, 1, 0;",
		"add.f16 %r2, %r2, %r2;", "ld.local.u32 %r2, [%rd1];", "mov.u32 %r2, %nosuch.x; ret;", "bra $nowhere;", "add.s32 %r2;",
		"atom.global.add.u32 %r2, [%rd1], 1;", "setp.eq.and.s32 %p1, %r1, %r2, %p2;", "ld.global.u32 %r2, %rd1;", "mov.u32 %r2, 12ab;", ".local .b8 x[4];", "shl.b32 %r2, %r2, 1", "@%r1 bra $L;",
		"cp.async.cg.shared.global [%r2], [%rd1], 4, 4;", "selp.b32 %r2, %r2, %r2, %r2;", "st.param.u32 [k_param_0], %r1;",
	} {
		if _, _, err := run(strings.ReplaceAll(body, "; ", ";\n")+"\nret;", 32); err == nil || strings.Contains(err.Error(), "not in a group") {
			t.Errorf("%s is taken", body)
		}
	}
	for _, bad := range []string{"", "garbage", text("ret;")[:200], strings.Replace(text("ret;"), "\n{", "", 1)} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%.60q... is taken", bad)
		}
	}
}
