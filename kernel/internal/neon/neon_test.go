package neon

import (
	"fmt"
	"strings"
	"testing"
)

// assembled are instructions as GNU's assembler encodes them: each form with two random choices of numbers.
const assembled = `
4e30d6d0 fadd v16.4s, v22.4s, v16.4s
4e21d5e1 fadd v1.4s, v15.4s, v1.4s
4eb0d41f fsub v31.4s, v0.4s, v16.4s
4ebfd410 fsub v16.4s, v0.4s, v31.4s
6e21dc01 fmul v1.4s, v0.4s, v1.4s
6e21dc2f fmul v15.4s, v1.4s, v1.4s
6e21fdef fdiv v15.4s, v15.4s, v1.4s
6e3ffde0 fdiv v0.4s, v15.4s, v31.4s
4e3ecdef fmla v15.4s, v15.4s, v30.4s
4e20cfd0 fmla v16.4s, v30.4s, v0.4s
4ebfce01 fmls v1.4s, v16.4s, v31.4s
4ea2ce10 fmls v16.4s, v16.4s, v2.4s
4f8119e0 fmla v0.4s, v15.4s, v1.s[2]
4faf11f1 fmla v17.4s, v15.4s, v15.s[1]
4e23f430 fmax v16.4s, v1.4s, v3.4s
4e28f42f fmax v15.4s, v1.4s, v8.4s
4ea0f5e1 fmin v1.4s, v15.4s, v0.4s
4ebff7e1 fmin v1.4s, v31.4s, v31.4s
4e30e60f fcmeq v15.4s, v16.4s, v16.4s
4e30e7f5 fcmeq v21.4s, v31.4s, v16.4s
6ebfe7ef fcmgt v15.4s, v31.4s, v31.4s
6ea5e5ef fcmgt v15.4s, v15.4s, v5.4s
6ea1fa0f fsqrt v15.4s, v16.4s
6ea1f9f0 fsqrt v16.4s, v15.4s
4e21883f frintn v31.4s, v1.4s
4e2189ef frintn v15.4s, v15.4s
4e21a807 fcvtns v7.4s, v0.4s
4e21abef fcvtns v15.4s, v31.4s
4e7fd61e fadd v30.2d, v16.2d, v31.2d
4e6fd610 fadd v16.2d, v16.2d, v15.2d
4e70cc01 fmla v1.2d, v0.2d, v16.2d
4e7fcde9 fmla v9.2d, v15.2d, v31.2d
0e617aef fcvtl v15.2d, v23.2s
0e617be0 fcvtl v0.2d, v31.2s
4eaf9c1f mul v31.4s, v0.4s, v15.4s
4ea09de4 mul v4.4s, v15.4s, v0.4s
6ebf3400 cmhi v0.4s, v0.4s, v31.4s
6ebf342f cmhi v15.4s, v1.4s, v31.4s
4f375425 shl v5.4s, v1.4s, #23
4f3e55ef shl v15.4s, v15.4s, #30
6f2b0430 ushr v16.4s, v1.4s, #21
6f2d05f2 ushr v18.4s, v15.4s, #19
4f3c060d sshr v13.4s, v16.4s, #4
4f3e0420 sshr v0.4s, v1.4s, #2
2e613810 shll v16.4s, v0.4h, #16
2e6139ef shll v15.4s, v15.4h, #16
6e613820 shll2 v0.4s, v1.8h, #16
6e613a0f shll2 v15.4s, v16.8h, #16
0e612820 xtn v0.4h, v1.4s
0e612800 xtn v0.4h, v0.4s
0f1085f0 shrn v16.4h, v15.4s, #16
0f1087e1 shrn v1.4h, v31.4s, #16
4f10873f shrn2 v31.8h, v25.4s, #16
4f1085e1 shrn2 v1.8h, v15.4s, #16
4ea08721 add v1.4s, v25.4s, v0.4s
4ea087ef add v15.4s, v31.4s, v0.4s
6ea08410 sub v16.4s, v0.4s, v0.4s
6ebf8420 sub v0.4s, v1.4s, v31.4s
4e2f1c00 and v0.16b, v0.16b, v15.16b
4e3f1fe1 and v1.16b, v31.16b, v31.16b
4ebf1de0 orr v0.16b, v15.16b, v31.16b
4eb01fff orr v31.16b, v31.16b, v16.16b
6e2f1fef eor v15.16b, v31.16b, v15.16b
6e201d61 eor v1.16b, v11.16b, v0.16b
6eaf1dff bit v31.16b, v15.16b, v15.16b
6ea11c20 bit v0.16b, v1.16b, v1.16b
6eff1c50 bif v16.16b, v2.16b, v31.16b
6eff1fef bif v15.16b, v31.16b, v31.16b
6e7e1de0 bsl v0.16b, v15.16b, v30.16b
6e6f1e60 bsl v0.16b, v19.16b, v15.16b
4e0f3818 zip1 v24.16b, v0.16b, v15.16b
4e013a1f zip1 v31.16b, v16.16b, v1.16b
4e107a01 zip2 v1.16b, v16.16b, v16.16b
4e017a01 zip2 v1.16b, v16.16b, v1.16b
4e4f3a3f zip1 v31.8h, v17.8h, v15.8h
4e413801 zip1 v1.8h, v0.8h, v1.8h
4e5f780e zip2 v14.8h, v0.8h, v31.8h
4e50780f zip2 v15.8h, v0.8h, v16.8h
4e90383f zip1 v31.4s, v1.4s, v16.4s
4e903a10 zip1 v16.4s, v16.4s, v16.4s
4e907800 zip2 v0.4s, v0.4s, v16.4s
4e807be0 zip2 v0.4s, v31.4s, v0.4s
4e0f03ff tbl v31.16b, {v31.16b}, v15.16b
4e0103e0 tbl v0.16b, {v31.16b}, v1.16b
6e001a0f ext v15.16b, v16.16b, v0.16b, #3
6e006210 ext v16.16b, v16.16b, v0.16b, #12
6f0c06a0 ushr v0.16b, v21.16b, #4
6f0f07f0 ushr v16.16b, v31.16b, #1
4e040421 dup v1.4s, v1.s[0]
4e1c067f dup v31.4s, v19.s[3]
`

// TestEncode compares each form with another assembler.
func TestEncode(t *testing.T) {
	tested := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(assembled), "\n") {
		want, text, _ := strings.Cut(line, " ")
		word, err := encode(text)
		if got := fmt.Sprintf("%08x", word); err != nil || got != want {
			t.Errorf("%s is %s (%v), want %s", text, got, err, want)
		}
		tested[operand.ReplaceAllString(text, "$1")]++
	}
	for form := range instructions {
		if tested[form] < 2 {
			t.Errorf("%q is tested %d times, want 2", form, tested[form])
		}
	}
}

// TestLanes: all four indices have the bits that Arm's manual gives them, H and L.
func TestLanes(t *testing.T) {
	for i, want := range []uint32{0x4f801000, 0x4fa01000, 0x4f801800, 0x4fa01800} {
		if got, err := encode(fmt.Sprintf("fmla v0.4s, v0.4s, v0.s[%d]", i)); err != nil || got != want {
			t.Errorf("index %d is %08x (%v), want %08x", i, got, err, want)
		}
	}
}

func TestUnknown(t *testing.T) {
	for _, text := range []string{
		"", "fmla", "fmla v0.4s, v1.4s", "fmla v0.4s, v1.4s, v32.4s", "fmla v0.4s, v1.4s, v2.s[4]", "fmla v0.4s, v1.4s, v2.4s[0]",
		"shl v0.4s, v1.4s, #32", "ushr v0.4s, v1.4s, #0", "ushr v0.4s, v1.4s, #33", "shll v0.4s, v1.4h, #15",
		"shl v0.4s, v1.4s, #99999999999999999999", "fadd v0.4s, v1.4s, v2.4s ",
	} {
		if word, err := encode(text); err == nil {
			t.Errorf("%q is encoded as %08x", text, word)
		}
	}
}

func TestLine(t *testing.T) {
	if got, want := Line("fmla v%d.4s, v1.4s, v2.s[%d]", 0, 3), "WORD $0x4fa21820 // fmla v0.4s, v1.4s, v2.s[3]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
