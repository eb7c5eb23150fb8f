package verify

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/program"
)

// One defect per check of Verify and Equivalent, each made by replacing a
// piece of a small valid program's text, with the error that names it. The
// mutation tests show that nothing slips through all checks together; these
// show that each of them does its part, and what error people get to read.

// tinyText: a weight goes to the device through a slot that is used twice; y
// and z are computed, z goes to the host, then z is computed again.
const tinyText = `athanor-program 1
name "tiny"
rank 0
plan_hash ""
row_unit 2
batch_row 0
capacity 512 640 0
height 512 608 0
bound 448 448 0
buffer x device inputs f32 4x4 unit=2 size=64 align=64 addr=0 persistent init=x
buffer wh host weights f32 1x40 cuts=16,32 size=160 align=64 addr=0 persistent init=p:a,p:b,
buffer s1 device weights f32 1x16 size=64 align=64 addr=64
buffer s2 device weights f32 1x16 size=128 align=64 addr=64
buffer s3 device weights f32 1x16 size=64 align=64 addr=128
buffer y device activations f32 4x4 unit=2 size=64 align=64 addr=192
buffer z device activations f32 4x4 unit=2 cuts=2 size=64 align=64 addr=256
buffer st device activations f32 4x2 unit=2 size=32 align=32 addr=320
buffer h device activations bf16 4x4 unit=2 size=32 align=32 addr=352
buffer zh host reductions f32 4x4 unit=2 cuts=2 size=64 align=64 addr=192 persistent init=zh
buffer ah host weights f32 1x16 size=64 align=64 addr=256 persistent init=p:a
buffer ad device weights f32 1x16 size=64 align=64 addr=384 persistent init=p:a
buffer hh host weights bf16 1x16 size=32 align=32 addr=320 persistent init=p16:a
buffer sc host inputs f32 1x6 size=24 align=16 addr=352 persistent init=sc
buffer cl host inputs f32 1x2 size=8 align=8 addr=376 persistent init=cl
buffer gh host reductions f32 1x16 size=64 align=64 addr=384 persistent init=gh
buffer th host weights f32 1x40 cuts=16,32 size=160 align=64 addr=448
buffer s4 device weights f32 1x16 size=64 align=64 addr=448
home 0 p wh[1x16]
home 0 p ad replica
home 0 p ah replica
home 0 p16 hh replica
home 1 p wh[1x16@16]
i0 copy(s1, wh[1x16]) h2d key=-,-,-,copy
i1 linear(y, x, s1[4x4], -, -) compute key=-,-,-,fwd wait=i0
i2 copy(s2, wh[1x16@16]) h2d key=-,-,-,copy wait=i1
i3 linear(z, y, s2[4x4], -, -) compute key=-,-,-,fwd wait=i2
i4 copy(zh, z) d2h key=-,-,-,copy wait=i3
i5 swiglu(z[4x2], y) compute key=-,-,-,fwd wait=i4
i6 cast(h, y) compute key=-,-,-,fwd
end
`

func TestDefects(t *testing.T) {
	reference, err := program.Parse(tinyText)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(reference, reference); err != nil {
		t.Fatal(err)
	}
	adamw := "i6 adamw(wh[1x16], ah, gh, wh[1x16@16], cl, sc, hh) host key=-,-,-,opt wait=i2 eps=1e-08\nend"
	for _, c := range []struct{ from, to, want string }{
		// Order.
		{"fwd wait=i0", "fwd", "i1 (linear on compute): operand w (buffer s1) is read while it may still be written by i0 (copy on h2d); hint: let it wait for i0"},
		{"copy wait=i1", "copy", "i2 (copy on h2d): operand dst (buffer s2) takes bytes that i1 (linear on compute) may still be using for another buffer"},
		{"copy wait=i3", "copy wait=i2", "i4 (copy on d2h): operand src (buffer z) is read while it may still be written by i3"},
		{"fwd wait=i4", "fwd", "i5 (swiglu on compute): operand y (buffer z) is written while it may still be read by i4"},
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 copy(y, zh) h2d key=-,-,-,copy wait=i4\n", "cut at other places"},
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 copy(z, zh) h2d key=-,-,-,copy wait=i4\n", "i6 (copy on h2d): operand dst (buffer z) is written while it may still be written by i5"},
		{"i6 cast(h, y) compute", "i6 copy(s3, s2) compute", "i6 (copy on compute): operand src (buffer s2) was overwritten by buffer s3 from i6 on"},
		{"i5 swiglu(z[4x2], y)", "i5 linear(z, y, s1[4x4], -, -)", "operand w (buffer s1) was overwritten by buffer s2 from i2 on"},
		// The slot's second half still belongs to s2 when its first is taken.
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 copy(s3, wh[1x16]) h2d key=-,-,-,copy\n", "i6 (copy on h2d): operand dst (buffer s3) takes bytes that i3"},
		// i6 is later than i5, but does not wait for it.
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 copy(s4, wh[1x16]) h2d key=-,-,-,copy\ni7 copy(zh, z) d2h key=-,-,-,copy wait=i6\n",
			"i7 (copy on d2h): operand src (buffer z) is read while it may still be written by i5"},
		// Content.
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 copy(th[1x16], wh[1x16]) host key=-,-,-,copy wait=i2\ni7 copy(wh, th) host key=-,-,-,copy\n",
			`persistent buffer wh ends without its content "p:b"`},
		{"linear(y, x, s1[4x4]", "linear(y, z, s1[4x4]", "i1 (linear on compute): operand x (buffer z) is read before it is written"},
		{"copy(s2, wh[1x16@16])", "copy(s2[1x8], wh[1x8@32])", "is not made of whole atoms"},
		{"copy(zh, z) d2h key=-,-,-,copy wait=i3", "copy(sc, cl) host key=-,-,-,copy", "has 2 columns, want 6"},
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 copy(ah, wh[1x16@16]) host key=-,-,-,copy\n", `buffers wh and ah both hold "p:a", but end with different content`},
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 cast(hh, gh) host key=-,-,-,copy\n", `buffer hh ends with a "p16:a" that is not the cast of "p:a"`},
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 copy(th[1x16], ah) host key=-,-,-,copy\ni7 cast(hh, th[1x16]) host key=-,-,-,copy\n", ""},
		{"i6 cast(h, y) compute key=-,-,-,fwd\n", "i6 act(x, y) compute key=-,-,-,fwd\n", `buffer x holds the input "x", but the step changes it`},
		{"home 0 p ad replica", "home 0 p gh replica", `the home of p of parameter 0, elements 0 to 16 is called "gh" here and "p:a" elsewhere`},
		{"home 0 p ad replica", "home 0 p wh[1x8@32] replica", `the home of p of parameter 0, elements 0 to 8 is called "" here`},
		{"home 0 p ad replica", "home 0 p ad at=1 replica", `"p:a" is both the home of p of parameter 0, elements 0 to 16 and the home of p of parameter 0, elements 1 to 17`},
		{"home 0 p16 hh replica", "home 1 p16 hh replica", `"p:a" is both the home of p of parameter 0, elements 0 to 16 and the home of p of parameter 1, elements 0 to 16`},
		{"home 0 p ad replica", "home 0 m ad", `"p:a" is both the home of p of parameter 0, elements 0 to 16 and the home of m of`},
		{"home 0 p ad replica", "home 3 p gh replica", "there is a replica of the home of p of parameter 3, elements 0 to 16, but no original"},
		{"home 1 p wh[1x16@16]\n", "", `i2 (copy on h2d): operand src (buffer wh) holds "p:b", which nothing fills`},
		{"buffer cl host", "buffer sc host", "two persistent buffers are called sc"},
		{"buffer s4 device", "buffer sc device", "a persistent buffer and a temporary one are both called sc"},
		{"persistent init=x", "persistent init=y", `i1 (linear on compute): operand x (buffer x) holds "y", which nothing fills`},
		{"persistent init=zh", "persistent", ""},
		{"persistent init=gh", "persistent", "persistent buffer gh is not completely written by the end"},
		{"i2 copy(s2, wh[1x16@16]) h2d", "i2 copy(s2, zh) h2d", "has 4 rows, want 1"},
		// Places.
		{"bf16 4x4 unit=2 size=32 align=32 addr=352", "bf16 4x4 unit=2 size=32 align=32 addr=336", "buffer h (32 bytes on device): address 336 is not aligned to 32"},
		{"align=32 addr=352\nbuffer zh", "align=1 addr=352\nbuffer zh", "alignment 1 is not a multiple of the element size 2"},
		{"size=64 align=64 addr=192\nbuffer z ", "size=64 align=64 addr=512\nbuffer z ", "buffer y (64 bytes on device): address 512 is past the end of the arena of 512 bytes"},
		{"addr=192\nbuffer z ", "addr=-1\nbuffer z ", "i1 (linear on compute): operand y (buffer y) has no address"},
		{"addr=384 persistent init=p:a", "addr=-1 persistent init=p:a", "buffer ad (64 bytes on device): it has no address"},
		{"height 512", "height 576", "tier device: height is 576 bytes, but buffers end at 512"},
		{"addr=256 persistent init=p:a", "addr=192 persistent init=p:a", "persistent buffers zh and ah overlap"},
		{"addr=192\nbuffer z ", "addr=0\nbuffer z ", "i1 (linear on compute): operand y (buffer y) overlaps persistent buffer x"},
		{"capacity 512", "capacity 511", "tier device: the program needs 512 bytes, but the capacity is 511"},
		{"height 512 608 0\nbound 448 448 0\n", "height 512 608 64\nbound 448 448 0\nbuffer spill disk weights f32 1x16 size=64 align=64 addr=0 persistent init=spill\n",
			"tier disk: the program needs 64 bytes, but the capacity is 0"},
		{"bound 448", "bound 513", "lower bound 513 is not between 0 and the height 512"},
		// Structure of buffers.
		{"4x4 unit=2 size=64 align=64 addr=0", "4x4 unit=2 size=63 align=64 addr=0", "buffer x: 63 bytes cannot hold 4x4 elements of f32"},
		{"cuts=2 size=64 align=64 addr=256", "cuts=2 size=55 align=64 addr=256", "buffer z: 55 bytes cannot hold 4x4 elements of f32"}, // but for the last band
		{"cuts=2 size=64 align=64 addr=256", "cuts=2 size=60 align=64 addr=256", "operand y (buffer z) ends at element 16, the buffer has 60 bytes; hint: make the buffer larger"},
		{"x device inputs f32 4x4 unit=2", "x device inputs f32 4x4 unit=4", "buffer x: row unit 4, but the program's is 2"},
		{"x device inputs f32 4x4 unit=2", "x device inputs f32 4x4", "buffer x: flat, but has 4 rows"},
		{"x device inputs f32 4x4", "x device inputs f32 3x4", "buffer x: 3 rows are not a multiple"},
		{"cuts=16,32", "cuts=32,16", "buffer wh: cut 16 is not ascending inside (0, 40)"},
		{"init=p:a,p:b,", "init=p:a,p:b", "buffer wh: 2 names of content, want 3"},
		{"addr=64\nbuffer s2", "addr=64 init=s\nbuffer s2", "buffer s1: it names its content, but is not persistent"},
		{"home 0 p wh[1x16]", "home 0 p wh[1x17]", "home 0 (p of parameter 0): is not made of whole atoms"},
		{"home 0 p wh[1x16]", "home 0 p s1", "buffer s1 is not persistent"},
		{"home 0 p wh[1x16]", "home 0 p wh[1x16] at=16", `is both the home of p of parameter 0, elements 16 to 32 and the home of p of parameter 0, elements 0 to 16`},
		{"home 0 p wh[1x16]", "home 0 p x", "buffer x is not flat"},
		{"home 0 p wh[1x16]", "home 0 p wh[1x16]\nhome 0 p ad", "rank 0 has the home of p of parameter 0, elements 0 to 16 twice"},
		{"home 0 p wh[1x16]", "home 0 p -", "it has no region"},
		// Structure of instructions.
		{"i6 cast(h, y)", "i6 none(h, y)", "unknown operator none"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 cast(h, y) compute key=-,-,-,fwd acc", "acc is set, but the operator adds to nothing"},
		{"i6 cast(h, y)", "i6 cast(h)", "operand src is missing"},
		{"i6 cast(h, y)", "i6 cast(h, y, x)", "has 3 operands, but takes at most 2"},
		{"wait=i3", "wait=i4", "it waits for i4"},
		{"wait=i3", "wait=i9", "it waits for i9"},
		{"fwd wait=i2", "fwd wait=i1", "it waits for i1 on its own stream"},
		{"i6 cast(h, y) compute", "i6 cast(h, y) send", "this stream is for [send] only"},
		{"i6 cast(h, y) compute", "i6 recv(y) compute", "this stream is for one rank"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 cast(h, y) compute key=-,-,-,fwd peers=0", "it names ranks [0]"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 cast(h, y) compute key=-,-,-,fwd tag=1", "it has tag 1"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 send(y) send key=-,-,-,copy wait=i1", "it names ranks [] on rank 0"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 send(y) send key=-,-,-,copy wait=i1 peers=0", "it names ranks [0] on rank 0"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 all_gather(ad, ad) collective key=-,-,-,copy peers=0,0", "it names ranks [0 0]"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 all_gather(ad, ad) collective key=-,-,-,copy peers=1,2", "it names ranks [1 2] on rank 0"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 all_reduce(y) collective key=-,-,-,copy wait=i1 peers=0,1", "it meets rank 1, whose program is not given"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 reduce_scatter(ad, ad) collective key=-,-,-,copy peers=0,1 acc", "overlaps operand src"},
		{"batch_row 0", "batch_row 3", "begins at row 3 of the batch"},
		{"i6 cast(h, y) compute", "i6 cast(h, y) d2h", "this stream is for [copy] only"},
		{"i6 cast(h, y) compute", "i6 act(h, y) host", "this stream is for [norm_part norm_all attention_at embed embed_at " + "adamw lion sgd" + " cast add copy] only"},
		{"i6 cast(h, y) compute", "i6 cast(h, y) host", "operand dst (buffer h) is on device, this stream works on host"},
		{"copy(s1, wh[1x16])", "copy(s1, ad)", "operand src (buffer ad) is on device, this stream works on host"},
		{"linear(y, x, s1[4x4]", "linear(y, x, s1[2x8]", "operand w (buffer s1) has 2 rows, want 4"},
		{"linear(y, x, s1[4x4]", "linear(y, x, s1[4x3]", "is not made of whole atoms: rows 0:1, columns 0:12"},
		{"linear(y, x, s1[4x4]", "linear(y, x, s1[4x8]", "ends outside its buffer: 4x8 at element 0 of 1x16"},
		{"linear(y, x, s1[4x4]", "linear(y, x[3x4], s1[4x4]", "operand x (buffer x) is not made of whole atoms: rows 0:3"},
		{"linear(y, x, s1[4x4]", "linear(y, x[4x4@8], s1[4x4]", "operand x (buffer x) ends outside"},
		{"linear(y, x, s1[4x4]", "linear(y, x[4x4/5], s1[4x4]", "operand x (buffer x) has stride 5, want 4"},
		{"linear(y, x, s1[4x4]", "linear(y, x[2x4], s1[4x4]", "operand x (buffer x) has 2 rows, want 4"},
		{"linear(y, x, s1[4x4]", "linear(y, s1, s1[4x4]", "operand x (buffer s1) is flat"},
		{"linear(y, x, s1[4x4]", "linear(y, y, s1[4x4]", "operand y (buffer y) overlaps operand x"},
		{"-, -) compute key=-,-,-,fwd wait=i0", "-, -) compute key=-,-,-,fwd wait=i0 nf4", "operand w (buffer s1) has 4 columns, want 9"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 cast(h, y) compute key=-,-,-,fwd nf4", "nf4 is set, but the operator takes no weights in NF4"},
		{"swiglu(z[4x2], y)", "swiglu(z[4x2@2], z)", "operand y (buffer z) overlaps operand gu"},
		{"i6 cast(h, y)", "i6 copy(h, y)", "src is f32, the destination is bf16"},
		{"i6 cast(h, y)", "i6 layernorm(z, h[4x4], y, ad, ad)", "has elements of type bf16"},
		{"i6 cast(h, y)", "i6 layernorm(z, y, x, ad, ad)", "operand stats (buffer y) has 4 columns, want 2"},
		{"i6 cast(h, y)", "i6 cast(h, z)", "operand src (buffer z) is cut at other places than operand dst"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 attention(y, st, x, x) compute key=-,-,-,fwd", "seq is missing"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 attention(y, st, x, x) compute key=-,-,-,fwd seq=4 heads=3 kv_heads=2 head_dim=1", "impossible heads"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 attention(y, st, x, x) compute key=-,-,-,fwd seq=4 heads=2 kv_heads=2 head_dim=2", "operand kv (buffer x) has 4 columns, want 8"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 attention(y, z, x, x) compute key=-,-,-,fwd seq=3 heads=4 kv_heads=2 head_dim=1", "sequences of 3 rows with row unit 2"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 attention(y, z, x, x[2x4]) compute key=-,-,-,fwd seq=4 heads=4 kv_heads=2 head_dim=1", "4 queries with keys of 2 rows"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 attention(y[2x4], z[2x4], x[2x4@8], x) compute key=-,-,-,fwd seq=2 heads=4 kv_heads=2 head_dim=1", "2 queries and 4 keys with sequences of 2 rows"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 rmsnorm(y, st, x, ad) compute key=-,-,-,fwd heads=2", "4 columns are not 2 groups of 16"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 rmsnorm(y, st, x, ad) compute key=-,-,-,fwd", "operand stats (buffer st) has 2 columns, want 1"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 rmsnorm_dx(y, y, x, ad, st) compute key=-,-,-,fwd acc heads=2", "operand dx (buffer y) overlaps operand dy"},
		{"i6 cast(h, y) compute key=-,-,-,fwd", "i6 rope(y, ad[4x4]) compute key=-,-,-,fwd seq=4 heads=2 kv_heads=1 head_dim=1", "a rotary table of 4 columns does not fit heads of size 1"},
		// Meaning.
		{"copy(s2, wh[1x16@16])", "copy(s2, wh[1x16])", "i3 (linear on compute): operand y (buffer z) gets a value that the reference never computes, so result zh from row 0 on differs"},
		{"copy(zh, z)", "copy(zh[4x2], z[4x2])", "result zh from row 0 on differs from the reference"},
		{"home 0 p wh[1x16]\n", "home 0 p wh[1x16]\nhome 2 p gh\n", "program has home of p of parameter 2, elements 0 to 16, the reference does not"},
		{"home 1 p wh[1x16@16]", "home 1 p wh[1x16@16] at=16", "program does not have home of p of parameter 1, elements 0 to 16"},
		{"row_unit 2", "row_unit 3", "row unit 2, but the program's is 3"},
		{"i6 cast(h, y) compute key=-,-,-,fwd\nend", adamw, "buffers wh and ah both hold"},
	} {
		bad := strings.Replace(tinyText, c.from, c.to, 1)
		if bad == tinyText {
			t.Fatalf("%q does not occur", c.from)
		}
		p, err := program.Parse(bad)
		if err != nil {
			t.Errorf("%q: %v", c.to, err)
			continue
		}
		err = check(p, reference)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%q for %q: %v", c.to, c.from, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hint: ")):
			t.Errorf("%q for %q:\n got %v\nwant %s", c.to, c.from, err, c.want)
		}
	}
}

// TestFurtherResults: a program may not leave a result where the reference leaves
// everything as it was.
func TestFurtherResults(t *testing.T) {
	further := strings.NewReplacer("x device inputs", "x device activations", "i6 cast(h, y)", "i6 act(x, y)").Replace(tinyText)
	p, err := program.Parse(further)
	if err != nil {
		t.Fatal(err)
	}
	reference, err := program.Parse(tinyText)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(p, reference); err == nil || !strings.Contains(err.Error(), "program has result x from row 0 on, the reference does not") {
		t.Error(err)
	}
}

// meaningText has an input for every kind of operand, eight tokens in two
// sequences, and results of some shapes.
const meaningText = `athanor-program 1
name "meaning"
rank 0
plan_hash ""
row_unit 2
batch_row 0
capacity 0 0 0
height 0 0 0
bound 0 0 0
buffer x device inputs f32 8x4 unit=2 size=128 align=4 addr=-1 persistent init=x
buffer y device inputs f32 8x4 unit=2 size=128 align=4 addr=-1 persistent init=y
buffer x1 device inputs f32 8x1 unit=2 size=32 align=4 addr=-1 persistent init=x1
buffer x2 device inputs f32 8x2 unit=2 size=64 align=4 addr=-1 persistent init=x2
buffer tok device inputs i32 8x1 unit=2 size=32 align=4 addr=-1 persistent init=tok
buffer w device inputs f32 1x16 size=64 align=4 addr=-1 persistent init=w
buffer u device inputs f32 1x16 size=64 align=4 addr=-1 persistent init=u
buffer g device inputs f32 1x131072 cuts=65536 size=524288 align=4 addr=-1 persistent init=ga,gb
buffer p device inputs i32 1x1 size=4 align=4 addr=-1 persistent init=p
buffer clip device inputs f32 1x2 size=8 align=4 addr=-1 persistent init=clip
buffer sc device inputs f32 1x6 size=24 align=4 addr=-1 persistent init=scalars
buffer t device activations f32 8x4 unit=2 size=128 align=4 addr=-1
buffer s device activations f32 8x8 unit=2 cuts=4 size=256 align=4 addr=-1
buffer b1 device activations f32 8x10 unit=2 cuts=4,8 size=320 align=4 addr=-1
buffer b2 device activations f32 8x10 unit=2 cuts=2 size=320 align=4 addr=-1
buffer w20 device inputs f32 1x20 size=80 align=4 addr=-1 persistent init=w20
buffer wb device weights bf16 1x16 size=32 align=4 addr=-1
buffer r device reductions f32 8x4 unit=2 size=128 align=4 addr=-1 persistent init=r
buffer v device reductions f32 1x16 size=64 align=4 addr=-1 persistent init=v
buffer v1 device reductions f32 1x16 size=64 align=4 addr=-1 persistent init=v1
buffer v2 device reductions f32 1x16 size=64 align=4 addr=-1 persistent init=v2
buffer vb device reductions bf16 1x16 size=32 align=4 addr=-1 persistent init=vb
buffer d device reductions f32 1x4 size=16 align=4 addr=-1 persistent init=d
buffer e device reductions f32 1x4 size=16 align=4 addr=-1 persistent init=e
buffer n device reductions f64 1x2 cuts=1 size=16 align=8 addr=-1 persistent init=n1,n2
`

// meaning of the program of one rank, or of those of all ranks in order.
func meaning(ps ...*program.Program) (summary, error) {
	rs, err := newRanks(ps)
	if err != nil {
		return nil, err
	}
	return rs.meaning(false)
}

func meaningOf(t *testing.T, body string) summary {
	t.Helper()
	return meaningWith(t, meaningText, body)
}

// meaningWith is the meaning of instructions on the buffers of a text.
func meaningWith(t *testing.T, text, body string) summary {
	t.Helper()
	sum, err := meaning(programWith(t, text, body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return sum
}

func programWith(t *testing.T, text, body string) *program.Program {
	t.Helper()
	for i, line := range strings.Split(body, "; ") {
		op, attr, _ := strings.Cut(line, ") ")
		text += strings.TrimRight(fmt.Sprintf("i%d %s) compute key=-,-,-,fwd %s", i, strings.TrimSuffix(op, ")"), attr), " ") + "\n"
	}
	p, err := program.Parse(text + "end\n")
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return p
}

// TestReordered: what Equivalent says of sums in another order.
func TestReordered(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want Equality
	}{
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x[2x4], y[2x4]); linear_dw(v[4x4], x[6x4@8], y[6x4@8]) acc", Exact},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x[6x4@8], y[6x4@8]); linear_dw(v[4x4], x[2x4], y[2x4]) acc", Reordered},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x[6x4@8], y[6x4@8])", Different},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x, y); linear_dw(v[4x4], x[2x4], y[2x4]) acc", Different},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], y, x)", Different},
		{"linear_dw(v[4x4], x, y) acc", "linear_dw(v[4x4], x, y)", Different},
		{"linear_dw(v[4x4], x, y) acc; copy(v1, v)", "linear_dw(v1[4x4], x, y); add(v, v1); copy(v1, v)", Reordered},
		{"linear_dx(r, x, w[4x4]); linear_dx(r, y, w[4x4]) acc", "linear_dx(r, y, w[4x4]); linear_dx(r, x, w[4x4]) acc", Reordered},
		{"linear_dx(r, x, w[4x4]); linear_dx(r, y, w[4x4]) acc", "linear_dx(r, y, w[4x4]); linear_dx(r, y, w[4x4]) acc", Different},
		{"linear_dx(r, x, w[4x4]); linear_dx(r, y, w[4x4]) acc", "linear_dx(r, x, w[4x4]); linear_dx(r, y, u[4x4]) acc", Different},
		{"add(r, x); add(r, y)", "add(r, y); add(r, x)", Reordered},
		{"add(r, x); add(r, y)", "add(r, y); add(r, x); add(r, x)", Different},
		{"linear(r, x, w[4x4], -, -); linear(r, y, w[4x4], -, r)", "linear(r, y, w[4x4], -, -); linear(r, x, w[4x4], -, r)", Different},
		{"norm_part(n, g)", "norm_part(n[1x1], g[1x65536@65536]); norm_part(n[1x1@1], g[1x65536])", Different},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			got, err := Equivalent([]*program.Program{programWith(t, meaningText, pair[0])}, []*program.Program{programWith(t, meaningText, pair[1])})
			if got != c.want || (err == nil) != (got != Different) {
				t.Errorf("%s\n%s\n%v, want %v: %v", pair[0], pair[1], got, c.want, err)
			}
		}
	}
}

// TestMeaning: what does and what does not change a program's results.
func TestMeaning(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		// Rows are independent, in any order, through any copies.
		{"linear(r, x, w[4x4], -, -)", "linear(r[2x4@24], x[2x4@24], w[4x4], -, -); linear(r[6x4], x[6x4], w[4x4], -, -)", true},
		{"linear(r, x, w[4x4], -, -)", "linear(t, x, w[4x4], -, -); copy(r, t)", true},
		{"linear(r, x, w[4x4], -, -)", "linear(r, y, w[4x4], -, -)", false},
		{"linear(r, x, w[4x4], -, -)", "linear(r, x, w[4x4], -, y)", false},
		{"linear(r, x, w[4x4], -, -)", "linear(r, x, w[4x4], -, -) wt", false},
		{"linear(r, x, w[4x4], -, -)", "linear(r[4x4], x[4x4@16], w[4x4], -, -); linear(r[4x4@16], x[4x4], w[4x4], -, -)", false},
		{"linear_dx(r, x, w[4x4])", "linear_dx(r, x, w[4x4]) acc", false},
		{"linear_dx(r, x, w[4x4])", "linear_dx(r, y, w[4x4]); linear_dx(r, x, w[4x4])", true},
		{"act(r, x) act=gelu", "act(r, x) act=relu", false},
		{"act_bwd(r, x, y)", "act_bwd(r, y, x)", false},
		{"rmsnorm_dx(r, x, y, clip, x2) heads=2", "rmsnorm_dx(r[2x4@24], x[2x4@24], y[2x4@24], clip, x2[2x2@12]) heads=2; rmsnorm_dx(r[6x4], x[6x4], y[6x4], clip, x2[6x2]) heads=2", true},
		{"rmsnorm_dx(r, x, y, clip, x2) heads=2", "copy(r, x); rmsnorm_dx(r, r, y, clip, x2) heads=2", true},
		{"rmsnorm_dx(r, x, y, clip, x2) heads=2", "rmsnorm_dx(r, x, y, clip, x2) heads=2 unit_offset", false},
		{"embed(r, tok, w[4x4], -) seq=4 scale=2", "embed(r, tok, w[4x4], -) seq=4", false},
		{"add(r, x); add(r, y)", "add(r, y); add(r, x)", false},
		{"cast(v, w)", "copy(v, w)", false},
		// Sums over tokens: one order, however they are cut.
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x[2x4], y[2x4]); linear_dw(v[4x4], x[6x4@8], y[6x4@8]) acc", true},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x[6x4@8], y[6x4@8]); linear_dw(v[4x4], x[2x4], y[2x4]) acc", false},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x[2x4], y[2x4]); linear_dw(v[4x4], x[6x4@8], y[6x4@8])", false},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], x, y) acc", false},
		{"linear_dw(v[4x4], x, y)", "linear_dw(v[4x4], y, x)", false},
		// A sum written to rows of a matrix is written to all of them.
		{"linear(s, x2, w[2x8], -, -); linear_dw(r, s, y); copy(r[6x4@8], x[6x4@8])", "linear(s, x2, w[2x8], -, -); copy(r, x); linear_dw(r, s, y)", false},
		{"linear(s, x2, w[2x8], -, -); linear_dw(r, s, y)", "linear(s, x2, w[2x8], -, -); linear_dw(t, s, y); copy(r[2x4], t[2x4@8]); copy(r[6x4@8], t[6x4@8])", false},
		{"layernorm_dw(d, e, x, y, x2)", "layernorm_dw(e, d, x, y, x2)", false},
		// Extents: the same numbers, arranged differently, are something else.
		{"embed(t, tok, w[4x4], -) seq=4; copy(r, t)", "embed(s, tok, w[2x8], -) seq=4; copy(r, s[8x4])", false},
		{"linear(b1, x2, w20[2x10], -, -); linear_dw(v[4x4], b1[8x4], b1[8x4@4])",
			"linear(b2, x2, w20[2x10], -, -); linear_dw(v[2x8], b2[8x2], b2[8x8@2])", false},
		{"embed_at(t[2x4], tok[2x1], w[4x4], -, p); copy(r[2x4], t[2x4])", "embed_at(s[2x8], tok[2x1], w[2x8], -, p); copy(r[2x4], s[2x4])", false},
		{"embed(r, tok, w[4x4], -) seq=4", "embed(r, tok, w[4x4]) seq=4", true},
		// Positions.
		{"embed(r, tok, w[4x4], w[4x4]) seq=4", "embed(r[4x4@16], tok[4x1@4], w[4x4], w[4x4]) seq=4; embed(r[4x4], tok[4x1], w[4x4], w[4x4]) seq=4", true},
		{"embed(r, tok, w[4x4], w[4x4]) seq=4", "embed(r[6x4], tok[6x1], w[4x4], w[4x4]) seq=4; embed(r[2x4@24], tok[2x1@6], w[4x4], w[4x4]) seq=4 row0=2", true},
		{"embed(r, tok, w[4x4], w[4x4]) seq=4", "embed(r[6x4], tok[6x1], w[4x4], w[4x4]) seq=4; embed(r[2x4@24], tok[2x1@6], w[4x4], w[4x4]) seq=4", false},
		{"pos_bwd(v[4x4], x) seq=4", "pos_bwd(v[4x4], x) seq=4 row0=2", false},
		// The optimizer.
		{"copy(v, w); adamw(v, v1, v2, w, clip, sc, vb)", "copy(v, w); adamw(v, v1, v2, w, clip, sc, wb); cast(vb, v)", true},
		{"adamw(v, v1, v2, w, clip, sc, -)", "adamw(v, v2, v1, w, clip, sc, -)", false},
		{"adamw(v, v1, v2, w, clip, sc, -) eps=1e-08", "adamw(v, v1, v2, w, clip, sc, -) eps=1e-06", false},
		{"adamw(v, v1, v2, w, clip, sc, -)", "copy(v1, v2); adamw(v, v1, v2, w, clip, sc, -)", false},
		{"cast(wb, w); cast(v, wb); adamw(v1, v2, v, w, clip, sc, -)", "cast(wb, w); cast(v, wb); cast(wb, v1); adamw(v1, v2, v, w, clip, sc, -)", true},
		{"adamw(v, v1, v2, w, clip, sc, -)", "adamw(v, v1, v2, u, clip, sc, -)", false},
		{"norm_part(n, g)", "norm_part(n[1x1@1], g[1x65536@65536]); norm_part(n[1x1], g[1x65536])", true},
		{"norm_part(n, g)", "norm_part(n[1x1@1], g[1x65536]); norm_part(n[1x1], g[1x65536@65536])", false},
	} {
		if same := maps.Equal(meaningOf(t, c.a), meaningOf(t, c.b)); same != c.same {
			t.Errorf("same meaning is %v, want %v:\n%s\n%s", same, c.same, c.a, c.b)
		}
	}
}

// TestWidths: matrices of the same name but different widths are not the same.
func TestWidths(t *testing.T) {
	other := strings.NewReplacer("x device inputs f32 8x4 unit=2 size=128", "x device inputs f32 8x2 unit=2 size=64",
		"y device inputs f32 8x4 unit=2 size=128", "y device inputs f32 8x8 unit=2 size=256").Replace(meaningText)
	if maps.Equal(meaningOf(t, "linear_dw(v[4x4], x, y)"), meaningWith(t, other, "linear_dw(v[2x8], x, y)")) {
		t.Error("a sum over tokens means the same as one of other extents")
	}
}

// sumProgram sums up a gradient over seven tokens, in calls that end at cuts.
func sumProgram(dt graph.DType, cut int, cuts ...int) *program.Program {
	const tokens = 7
	s := &smallBuilder{Program: &program.Program{Name: "sums", RowUnit: 1}}
	mat := func(name string, cols int) int {
		b := s.matrix(name, program.ClassInputs, dt, tokens, cols)
		s.Buffers[b].RowUnit, s.Buffers[b].Persistent, s.Buffers[b].Init = 1, true, []string{name}
		return b
	}
	x, y := mat("x", 2), mat("y", 3)
	dw := s.flat("dw", device.DeviceTier, program.ClassReductions, graph.F32, 6, nil, "dw.before")
	row := 0
	for _, end := range append(slices.Clone(cuts), tokens) {
		s.op(device.Compute, graph.LinearDW, graph.Attr{Acc: row > 0, Cut: cut}, program.Region{Buf: dw, Rows: 2, Cols: 3, Stride: 3}, s.rows(x, row, end-row), s.rows(y, row, end-row))
		row = end
	}
	placeApart(s.Program)
	return s.Program
}

// TestPairs: sums over tokens in bf16 add up pairs of tokens (see package gemm), or as many
// at a time as the call says, so they may only be cut at multiples of that; sums in fp32 may
// be cut anywhere. The oracle, which goes by the tokens of each call, agrees.
func TestPairs(t *testing.T) {
	for _, c := range []struct {
		dt   graph.DType
		cut  int // the attribute
		unit int
	}{{graph.F32, 0, 1}, {graph.F32, 4, 1}, {graph.BF16, 0, 2}, {graph.BF16, 4, 4}} {
		dt := c.dt
		summed := func(cuts ...int) *program.Program { return sumProgram(dt, c.cut, cuts...) }
		whole, rng := summed(), rand.New(rand.NewPCG(1, 2))
		for _, cuts := range [][]int{{2}, {4}, {2, 6}, {1}, {3}, {2, 3}, {1, 2}, {3, 4, 5}} {
			odd := slices.ContainsFunc(cuts, func(cut int) bool { return cut%c.unit != 0 })
			p := summed(cuts...)
			if err := Verify(p); err != nil {
				t.Fatal(err)
			}
			want := Exact
			if odd {
				want = Reordered
			}
			if eq, err := Equivalent([]*program.Program{p}, []*program.Program{whole}); eq != want {
				t.Errorf("%v in %d, cut at %v: %v, want %v: %v", dt, c.unit, cuts, eq, want, err)
			}
			if why := harmless(p, whole, rng); (why == "") != (want == Exact) {
				t.Errorf("%v in %d, cut at %v: the oracle finds %q", dt, c.unit, cuts, why)
			}
		}
	}
}

// TestCut: the calls of a sum say where it may be cut, other operators do not, and the number
// is even. Absurd numbers are rejected or believed: what no call reaches cuts nothing.
func TestCut(t *testing.T) {
	for _, cut := range []int{-1, -32, 1, 3, 33, program.MaxCount + 2, math.MaxInt, math.MinInt} {
		if err := Verify(sumProgram(graph.BF16, cut, 3, 6)); err == nil || !strings.Contains(err.Error(), "cut is ") || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("cut=%d: %v", cut, err)
		}
	}
	whole := sumProgram(graph.BF16, program.MaxCount)
	for _, cuts := range [][]int{nil, {4}} {
		p := sumProgram(graph.BF16, program.MaxCount, cuts...)
		if eq, err := Equivalent([]*program.Program{p}, []*program.Program{whole}); (eq == Exact) != (cuts == nil) {
			t.Errorf("cut at %v of %d: %v: %v", cuts, program.MaxCount, eq, err)
		}
	}
	p := smallPrograms()[0]
	for i := range p.Instrs {
		in := &p.Instrs[i]
		if in.Attr.Cut = 2; in.Op == graph.LinearDW {
			continue
		}
		if err := Verify(p); err == nil || !strings.Contains(err.Error(), "no sum to cut") {
			t.Errorf("%v with a cut: %v", in.Op, err)
		}
		in.Attr.Cut = 0
	}
}

// TestCutMutants: calls of one sum that are cut differently, or that say they are.
func TestCutMutants(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	rng, rejected := rand.New(rand.NewPCG(seed, 2)), map[string]int{}
	for _, c := range []struct {
		dt  graph.DType
		cut int
	}{{graph.F32, 0}, {graph.BF16, 0}, {graph.BF16, 2}, {graph.BF16, 4}} {
		for _, cuts := range [][]int{{4}, {2, 6}} {
			testMutants(t, sumProgram(c.dt, c.cut, cuts...), testkit.Count(0, 100, 300), rng, rejected)
		}
	}
	for _, name := range []string{"another cut", "move a boundary"} {
		if rejected[name] == 0 {
			t.Errorf("no mutant was rejected by: %s", name)
		}
	}
}
