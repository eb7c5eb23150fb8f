// Package neon encodes arm64 vector instructions that Go's assembler does not know. The generators of assembly print
// them as words:
//
//	neon.Line("fmla v0.4s, v1.4s, v2.s[3]") == "WORD $0x4fa21820 // fmla v0.4s, v1.4s, v2.s[3]"
//
// Instructions are written as in Arm's manuals, destination first. The comment is what a disassembler prints.
package neon

import (
	"fmt"
	"regexp"
	"strconv"
)

// instruction is the encoding of one form with all its numbers 0.
type instruction struct {
	word uint32

	// number places an index or a shift; most forms have none.
	number func(n uint32) (bits uint32, ok bool)
}

// instructions are the known forms. Their registers are at bits 0, 5 and 16, in the order of the text.
var instructions = map[string]instruction{
	"fadd v.4s, v.4s, v.4s":      {word: 0x4e20d400},
	"fsub v.4s, v.4s, v.4s":      {word: 0x4ea0d400},
	"fmul v.4s, v.4s, v.4s":      {word: 0x6e20dc00},
	"fdiv v.4s, v.4s, v.4s":      {word: 0x6e20fc00},
	"fmla v.4s, v.4s, v.4s":      {word: 0x4e20cc00},
	"fmls v.4s, v.4s, v.4s":      {word: 0x4ea0cc00},
	"fmla v.4s, v.4s, v.s[]":     {0x4f801000, lane},
	"fmax v.4s, v.4s, v.4s":      {word: 0x4e20f400},
	"fmin v.4s, v.4s, v.4s":      {word: 0x4ea0f400},
	"fcmeq v.4s, v.4s, v.4s":     {word: 0x4e20e400},
	"fcmgt v.4s, v.4s, v.4s":     {word: 0x6ea0e400},
	"fsqrt v.4s, v.4s":           {word: 0x6ea1f800},
	"frintn v.4s, v.4s":          {word: 0x4e218800},
	"fcvtns v.4s, v.4s":          {word: 0x4e21a800},
	"fadd v.2d, v.2d, v.2d":      {word: 0x4e60d400},
	"fmla v.2d, v.2d, v.2d":      {word: 0x4e60cc00},
	"fcvtl v.2d, v.2s":           {word: 0x0e617800},
	"mul v.4s, v.4s, v.4s":       {word: 0x4ea09c00},
	"cmhi v.4s, v.4s, v.4s":      {word: 0x6ea03400},
	"shl v.4s, v.4s, #":          {0x4f005400, left},
	"ushr v.4s, v.4s, #":         {0x6f000400, right},
	"sshr v.4s, v.4s, #":         {0x4f000400, right},
	"shll v.4s, v.4h, #":         {0x2e613800, sixteen},
	"shll2 v.4s, v.8h, #":        {0x6e613800, sixteen},
	"xtn v.4h, v.4s":             {word: 0x0e612800},
	"shrn v.4h, v.4s, #":         {0x0f108400, sixteen},
	"shrn2 v.8h, v.4s, #":        {0x4f108400, sixteen},
	"add v.4s, v.4s, v.4s":       {word: 0x4ea08400},
	"sub v.4s, v.4s, v.4s":       {word: 0x6ea08400},
	"and v.16b, v.16b, v.16b":    {word: 0x4e201c00},
	"orr v.16b, v.16b, v.16b":    {word: 0x4ea01c00},
	"eor v.16b, v.16b, v.16b":    {word: 0x6e201c00},
	"bit v.16b, v.16b, v.16b":    {word: 0x6ea01c00},
	"bif v.16b, v.16b, v.16b":    {word: 0x6ee01c00},
	"bsl v.16b, v.16b, v.16b":    {word: 0x6e601c00},
	"tbl v.16b, {v.16b}, v.16b":  {word: 0x4e000000},
	"zip1 v.16b, v.16b, v.16b":   {word: 0x4e003800},
	"zip2 v.16b, v.16b, v.16b":   {word: 0x4e007800},
	"zip1 v.8h, v.8h, v.8h":      {word: 0x4e403800},
	"zip2 v.8h, v.8h, v.8h":      {word: 0x4e407800},
	"zip1 v.4s, v.4s, v.4s":      {word: 0x4e803800},
	"zip2 v.4s, v.4s, v.4s":      {word: 0x4e807800},
	"ext v.16b, v.16b, v.16b, #": {0x6e000000, bytes},
	"ushr v.16b, v.16b, #":       {0x6f080400, eighth},
	"dup v.4s, v.s[]":            {0x4e040400, element},
}

// lane places the index of one of four elements.
func lane(n uint32) (uint32, bool) { return n&1<<21 | n>>1<<11, n < 4 }

// left and right place the shift of elements of 32 bits.
func left(n uint32) (uint32, bool) { return (32 + n) << 16, n < 32 }

func right(n uint32) (uint32, bool) { return (64 - n) << 16, n >= 1 && n <= 32 }

// eighth places the shift to the right of elements of 8 bits.
func eighth(n uint32) (uint32, bool) { return (8 - n) << 16, n >= 1 && n <= 8 }

// bytes places the number of bytes by which a pair of vectors is shifted.
func bytes(n uint32) (uint32, bool) { return n << 11, n < 16 }

// element places the index of an element that is copied to all lanes.
func element(n uint32) (uint32, bool) { return n << 19, n < 4 }

// sixteen is the only shift of the forms that move between halves and wholes.
func sixteen(n uint32) (uint32, bool) { return 0, n == 16 }

var (
	operand  = regexp.MustCompile(`(\b[svd]|\[|#)\d+`)
	register = regexp.MustCompile(`\b[svd](\d+)`)
	number   = regexp.MustCompile(`[\[#](\d+)`)
)

// Line returns the line of Go's assembly for an instruction. It panics if the form is unknown or a number too large.
func Line(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	word, err := encode(text)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("WORD $0x%08x // %s", word, text)
}

// encode returns the word of an instruction.
func encode(text string) (uint32, error) {
	found, ok := instructions[operand.ReplaceAllString(text, "$1")]
	if !ok {
		return 0, fmt.Errorf("neon: %q is not in the table", text)
	}
	word := found.word
	for i, m := range register.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil || n > 31 {
			return 0, fmt.Errorf("neon: %q has no register %s", text, m[1])
		}
		word |= uint32(n) << [...]int{0, 5, 16}[i]
	}
	if found.number != nil {
		n, err := strconv.ParseUint(number.FindStringSubmatch(text)[1], 10, 32)
		bits, ok := found.number(uint32(n))
		if err != nil || !ok {
			return 0, fmt.Errorf("neon: %q has a number out of range", text)
		}
		word |= bits
	}
	return word, nil
}
