package ptx

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// warpgroup is a complete kernel with two products of ones: 64 x 16 and 16 x 8, in tiles of 8 rows of 16 bytes,
// downwards first. Then it overwrites the operands, and each thread writes one of its sums.
const warpgroup = `
	shl.b32 	%r2, %r1, 4;
	mov.u32 	%r3, dynamic;
	add.s32 	%r2, %r2, %r3;
	mov.u32 	%r4, 1065369472;
	mov.u64 	%rd2, 34363932676;
	mov.u64 	%rd3, 34360262788;
	mov.f32 	%f1, 0f3f800000;
	mov.f32 	%f2, %f1;
	mov.f32 	%f3, %f1;
	mov.f32 	%f4, %f1;
	setp.lt.u32 	%p1, %r1, 32;
	setp.lt.u32 	%p2, %r1, 1;
	setp.lt.u32 	%p3, %r1, 1000;
	st.shared.v4.b32 	[%r2], {%r4, %r4, %r4, %r4};
	st.shared.v4.b32 	[%r2+2048], {%r4, %r4, %r4, %r4};
	fence.proxy.async.shared::cta;
	bar.sync 	0; // written
	wgmma.fence.sync.aligned;
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd2, %rd3, %p3, 1, 1, 0, 0; // first
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd2, %rd3, %p3, 1, -1, 0, 0; // second
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;
	bar.sync 	0; // read
	st.shared.v4.b32 	[%r2], {%r1, %r1, %r1, %r1};
	mov.b32 	%r9, %f4;
` + put

// The first and second product, the fence, the wait and so on.
const (
	begin1 = "	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd2, %rd3, %p3, 1, 1, 0, 0; // first\n"
	begin2 = "	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd2, %rd3, %p3, 1, -1, 0, 0; // second\n"
	fence  = "	fence.proxy.async.shared::cta;\n"
	wait   = "	wgmma.wait_group.sync.aligned 0;\n"
	store  = "	st.shared.v4.b32 	[%r2], {%r4, %r4, %r4, %r4};\n"
	commit = "	wgmma.commit_group.sync.aligned;\n"
	bar1   = "	bar.sync 	0; // written\n"
	bar2   = "	bar.sync 	0; // read\n"
	order  = "	wgmma.fence.sync.aligned;\n"
	copies = "	cp.async.cg.shared.global 	[%r2], [%rd1], 16;\n	cp.async.commit_group;\n"
	landed = "	cp.async.wait_group 0;\n"
)

// edited returns the kernel with pairs of texts replaced.
func edited(t *testing.T, pairs ...string) string {
	t.Helper()
	body := warpgroup
	for i := 0; i < len(pairs); i += 2 {
		if strings.Count(body, pairs[i]) != 1 {
			t.Fatalf("%q is there %d times", pairs[i], strings.Count(body, pairs[i]))
		}
		body = strings.Replace(body, pairs[i], pairs[i+1], 1)
	}
	return body
}

// TestWarpgroup: products continue from existing sums, with either sign, whether the proxy fence is before or after
// the barrier.
func TestWarpgroup(t *testing.T) {
	for _, c := range []struct {
		want float32
		body string
	}{
		{1, warpgroup},
		{17, edited(t, begin2, "")},
		{-15, edited(t, begin1, "")},
		{-16, edited(t, begin1, "", "%p3, 1, -1", "%p4, 1, -1")},
		{17, edited(t, begin2, "", fence, "", bar1, bar1+fence)},
		{1, edited(t, begin2, "", store, copies+landed)},
		// 16 products of 1.5 / 2^28: the sum is 1 and three quarters of a unit in the last place, and is rounded
		// toward zero.
		{1, edited(t, begin2, "", "[%r2+2048], {%r4, %r4, %r4, %r4}", "[%r2+2048], {%r5, %r5, %r5, %r5}", "	mov.u32 	%r3, dynamic;\n", "	mov.u32 	%r3, dynamic;\n	mov.u32 	%r5, 834679232;\n")},
		{33, edited(t, ", 1, -1, 0, 0", ", -1, -1, 0, 0", begin1, begin1+commit, wait, "	wgmma.wait_group.sync.aligned 1;\n"+wait)},
	} {
		for _, descending := range []bool{false, true} {
			memory, counts, err := runIn(c.body, 128, 8192, descending)
			if err != nil {
				t.Fatalf("%s\n%v", c.body, err)
			}
			for i, got := range memory[:128] {
				if got := math.Float32frombits(got); got != c.want {
					t.Fatalf("%s\nthread %d has %v, not %v", c.body, i, got, c.want)
				}
			}
			if n, want := counts.Instructions("wgmma.mma_async"), int64(4*strings.Count(c.body, "mma_async")); n != want {
				t.Errorf("%d products counted, not %d", n, want)
			}
		}
	}
}

// TestWarpgroupFaults: each wait, fence and barrier around products is required, whatever the order of warps, and the
// four warps must agree.
func TestWarpgroupFaults(t *testing.T) {
	touch := "	add.f32 	%f4, %f4, %f4;\n"
	overwrite := "	st.shared.v4.b32 	[%r2], {%r1, %r1, %r1, %r1};\n"
	for _, c := range []struct {
		want string // or one of two, if the first error depends on the order
		body string
	}{
		// The proxy fence: missing; before the write; in some threads only; after the barrier in some only; before
		// the copy has arrived.
		{"executed fence.proxy.async", edited(t, fence, "")},
		{"executed fence.proxy.async", edited(t, fence, "", store, fence+store)},
		{"executed fence.proxy.async", edited(t, fence, "	@%p1 fence.proxy.async;\n")},
		{"executed fence.proxy.async", edited(t, fence, "", bar1, bar1+"	@%p1 fence.proxy.async;\n")},
		{"executed fence.proxy.async", edited(t, fence, "", bar1, bar1+"	@!%p2 fence.proxy.async;\n")},
		{"executed fence.proxy.async", edited(t, store, copies, fence, fence+landed)},
		{"executed fence.proxy.async", edited(t, bar1, bar1+"	@%p2 "+store[1:]+"	bar.sync 	0;\n	@%p1 fence.proxy.async;\n")},
		// Operands: not separated from their writes; not written.
		{"wrote without a barrier|nobody has written", edited(t, bar1, "")},
		{"to which a copy of thread 0 is under way", edited(t, store, copies, wait, wait+landed)},
		{"nobody has written", edited(t, store, "")},
		// The end of a product: operands overwritten without a wait, or by others without a barrier.
		{"warp 0 did not wait for", edited(t, begin2, begin2+"	@%p2 st.shared.u32 	[%r2], %r1;\n")},
		{"did not wait for", edited(t, wait, "")},
		{"did not wait for", edited(t, commit, "")},
		{"did not wait for", edited(t, wait, "	wgmma.wait_group.sync.aligned 1;\n")},
		{"did not wait for", edited(t, begin2, begin2+copies)},
		{"has read since the last barrier|wrote without a barrier", edited(t, bar2, "")},
		{"has read since the last barrier|wrote without a barrier", edited(t, bar2, "	setp.ge.u32 	%p5, %r1, 96;\n", overwrite, "	@%p5 "+overwrite[1:])},
		{"does not wait for its products", edited(t, wait, "", overwrite, "", "	mov.b32 	%r9, %f4;\n", "")},
		// Registers: used in flight; used before, without a fence since; of another shape.
		{"%f4 belongs to a product that was not waited for", edited(t, wait, touch+wait)},
		{"%f4 belongs to a product that was not waited for", edited(t, wait, "	setp.gt.f32 	%p5, %f4, %f3;\n"+wait)},
		{"%f4 belongs to a product that was not waited for", edited(t, wait, "	shfl.sync.idx.b32 	%f4, %r1, 0, 31, -1;\n"+wait)},
		{"%f4 belongs to a product that was not waited for", edited(t, wait, "	wgmma.wait_group.sync.aligned 1;\n", overwrite, "", begin2, commit+begin2)},
		{"no wgmma.fence executed since", edited(t, order, "")},
		{"no wgmma.fence executed since", edited(t, order, order+touch)},
		{"no wgmma.fence executed since", edited(t, bar2, bar2+touch+begin2+commit+wait)},
		{"has another place in a product that was not waited for", edited(t, begin2, "	wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, %rd2, %rd3, %p3, 1, 1, 0, 0;\n")},
		{"has another place in a product that was not waited for", edited(t, begin2, "	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f2, %f1, %f3, %f4}, %rd2, %rd3, %p3, 1, 1, 0, 0;\n")},
		{"has another place in a product that was not waited for", edited(t, begin2, "	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f5, %f6, %f7, %f8}, {%f1, %f2, %f3, %f4}, %rd3, %p3, 1, 1, 0;\n")},
		{"no wgmma.fence executed since", edited(t, bar2, "	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f2, %f1, %f3, %f4}, %rd2, %rd3, %p3, 1, 1, 0, 0;\n")},
		{"%r8 belongs to a product that was not waited for", edited(t, begin2, "	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, {%r5, %r6, %r7, %r8}, %rd3, %p3, 1, 1, 0;\n	mov.u32 	%r8, 0;\n")},
		// The four warps: diverged; with different operands; not four; incomplete; one that exits.
		{"is not where the others", edited(t, begin2, "	@%p1 bra 	$over;\n"+begin2+"$over:\n")},
		{"is not where the others", edited(t, commit, "	@%p1 bra 	$over;\n"+commit+"$over:\n")},
		{"is not where the others", edited(t, begin2, "	@%p1 mov.u64 	%rd3, %rd2;\n"+begin2)},
		{"is not where the others", edited(t, begin2, "	@%p1 setp.gt.u32 	%p3, %r1, 1000;\n"+begin2)},
		{"instructions of its group, others after", edited(t, begin1, "	@%p1 ret;\n"+begin1)},
		{"lanes have different descriptors", edited(t, begin2, "	@%p2 mov.u64 	%rd3, %rd2;\n"+begin2)},
		{"lanes differ in whether they add", edited(t, "1000;", "5;")},
		{"only 31 lanes are there", edited(t, begin1, "	@%p2 ret;\n"+begin1)},
		{"only some of the lanes", edited(t, begin1, "	@%p2 "+begin1[1:])},
		// Descriptors: beyond shared memory; unused bits; a base offset; a truncated pattern; strides that do not
		// match the patterns.
		{"of 8256 of shared memory", edited(t, "34363932676", "34363933188")},
		{"bits that mean nothing", edited(t, "34363932676", "34363949060")},
		{"has a base offset", edited(t, "34363932676", "4612812193212137536")},
		{"in the first row of a swizzle's pattern", edited(t, "34363932676", "4611686293305294920")},
		{"in the first row of a swizzle's pattern", edited(t, "34363932676", "4611686293305294919")},
		{"do not lead from pattern to pattern", edited(t, "34363932676", "4611686052787126336")},
		{"do not lead from pattern to pattern", edited(t, "34363932676", "13835058124002164800", begin1, strings.Replace(begin1, "0, 0;", "1, 0;", 1))},
	} {
		for _, descending := range []bool{false, true} {
			_, _, err := runIn(c.body, 128, 8192, descending)
			told := func(want string) bool { return err != nil && strings.Contains(err.Error(), want) }
			if !slices.ContainsFunc(strings.Split(c.want, "|"), told) {
				t.Errorf("%s\nsays %v, not that %q", c.body, err, c.want)
			}
		}
	}
	if _, _, err := runIn(warpgroup, 96, 8192, false); err == nil || !strings.Contains(err.Error(), "is not in a group of four") {
		t.Errorf("three warps say %v", err)
	}
	for _, arch := range []string{"sm_90", "sm_100a", "sm_120"} {
		if _, err := Parse(strings.Replace(text(warpgroup), "sm_90a", arch, 1)); err == nil || !strings.Contains(err.Error(), "an instruction of sm_90a") {
			t.Errorf("%s says %v", arch, err)
		}
	}
}
