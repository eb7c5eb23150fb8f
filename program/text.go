package program

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

// A program as text: one line per fact, so that a person can read it and two programs
// can be diffed.
//
//	athanor-program 1
//	name "two layers, weights in the host tier"
//	rank 0
//	plan_hash "93ab0c5f1e22d470"
//	row_unit 16
//	batch_row 0
//	capacity 65536 0 0
//	height 49152 8192 0
//	bound 49152 8192 0
//	buffer h1 device activations f32 64x32 unit=16 cuts=8,24 size=8192 align=64 addr=4096
//	buffer w host weights f32 1x512 size=2048 align=64 addr=0 persistent init=p:w1,p:w2
//	home 0 p w[16x16]
//	i0 copy(slot[1x256], w[1x256]) h2d key=0,0,-,copy
//	i1 linear(h1[32x8@16], x, slot[16x8], -, -) compute key=0,0,-,fwd wait=i0 wt
//	i2 send(h1) send key=0,0,-,copy wait=i1 peers=1 tag=7
//	end
//
// An operand is the name of its buffer and, unless it is the whole buffer, [rows x cols
// @ offset / stride]; "-" is an absent operand. In names, bytes other than letters,
// digits and ._:/+-' are written %XX. A buffer without a unique name is referred to by
// its number, #12. Zero fields are omitted. A rank that has only the first 8 and the last 8 of the 64 tokens of each
// sequence has the line "batch_row 0 of 64 0+8 56+8". Floats print with enough digits to restore
// the same bits.
//
// Weakness: nothing is abbreviated, so a program of 100,000 instructions is a file of
// some 10 MB.

const (
	textMagic = "athanor-program 1"
	textEnd   = "end"
	// MaxCount bounds every number that is not a byte count, MaxBytes the byte counts.
	MaxCount = graph.MaxCount
	MaxBytes = 1 << 50
)

// ---- printing

// String prints the program.
func (p *Program) String() string {
	var b strings.Builder
	p.WriteTo(&b) // a strings.Builder does not fail
	return b.String()
}

// WriteTo prints the program to w.
func (p *Program) WriteTo(w io.Writer) (int64, error) {
	pr := printer{p: p, refs: p.references()}
	out := bufio.NewWriterSize(w, 1<<16)
	var total int64
	var line []byte // reused for every line
	emit := func(full []byte) {
		n, _ := out.Write(append(full, '\n')) // errors are sticky; Flush reports them
		total += int64(n)
		line = full[:0]
	}
	emit(p.appendHeader(line))
	for i := range p.Buffers {
		emit(appendBuffer(line, &p.Buffers[i]))
	}
	for i := range p.Homes {
		emit(pr.home(line, &p.Homes[i]))
	}
	for i := range p.Instrs {
		emit(pr.instr(line, i))
	}
	emit(append(line, textEnd...)) // so that a truncated file is noticed
	return total, out.Flush()
}

// Line returns instruction i as WriteTo prints it.
func (p *Program) Line(i int) string {
	pr := printer{p: p, refs: p.references()}
	return string(pr.instr(nil, i))
}

// appendHeader appends the lines before the buffers, the last one without its newline.
func (p *Program) appendHeader(b []byte) []byte {
	b = append(b, textMagic...)
	b = strconv.AppendQuoteToASCII(append(b, "\nname "...), p.Name)
	b = fmt.Appendf(b, "\nrank %d", p.Rank)
	b = strconv.AppendQuoteToASCII(append(b, "\nplan_hash "...), p.PlanHash)
	b = fmt.Appendf(b, "\nrow_unit %d\nbatch_row %d", p.RowUnit, p.BatchRow)
	if len(p.Runs) > 0 {
		b = fmt.Appendf(b, " of %d", p.Sequence)
	}
	for _, r := range p.Runs {
		b = fmt.Appendf(b, " %d+%d", r.At, r.Rows)
	}
	for _, h := range p.perTier() {
		b = append(append(b, '\n'), h.name...)
		for _, v := range h.bytes {
			if b = append(b, ' '); v == Unlimited {
				b = append(b, unlimited...)
			} else {
				b = strconv.AppendInt(b, v, 10)
			}
		}
	}
	return b
}

const unlimited = "unlimited" // a capacity that is Unlimited

type tierLine struct {
	name  string
	bytes *[device.NumTiers]int64
}

func (p *Program) perTier() []tierLine {
	return []tierLine{{"capacity", &p.Capacity}, {"height", &p.Height}, {"bound", &p.Bound}}
}

// references returns how operands refer to each buffer: by its name if unique, else by
// its number.
func (p *Program) references() []string {
	count := make(map[string]int, len(p.Buffers))
	for i := range p.Buffers {
		count[p.Buffers[i].Name]++
	}
	refs := make([]string, len(p.Buffers))
	for i := range p.Buffers {
		if name := p.Buffers[i].Name; count[name] == 1 {
			refs[i] = escape(name)
		} else {
			refs[i] = "#" + strconv.Itoa(i)
		}
	}
	return refs
}

func appendBuffer(line []byte, b *Buffer) []byte {
	line = fmt.Appendf(line, "buffer %s %s %s %s %dx%d", escape(b.Name), b.Tier, ClassName(b.Class), b.DType, b.Rows, b.Cols)
	if b.RowUnit != 0 {
		line = fmt.Appendf(line, " unit=%d", b.RowUnit)
	}
	for i, c := range b.Cuts {
		line = append(line, listSeparator(i, " cuts=")...)
		line = strconv.AppendInt(line, int64(c), 10)
	}
	line = fmt.Appendf(line, " size=%d align=%d addr=%d", b.Size, b.Align, b.Addr)
	if b.Persistent {
		line = append(line, " persistent"...)
	}
	for i, name := range b.Init {
		line = append(line, listSeparator(i, " init=")...)
		if name != "" { // padding is an empty entry
			line = append(line, escape(name)...)
		}
	}
	return line
}

func listSeparator(i int, first string) string {
	if i == 0 {
		return first
	}
	return ","
}

// className returns Class.String as one word, whatever the value.
func ClassName(c Class) string {
	if int(c) >= len(classes) {
		return fmt.Sprintf("class(%d)", uint8(c))
	}
	return strings.ReplaceAll(c.String(), " ", "_")
}

type printer struct {
	p    *Program
	refs []string // see references
}

func (pr printer) region(line []byte, r Region) []byte {
	switch {
	case r.Absent():
		return append(line, '-')
	case r.Buf < 0 || r.Buf >= len(pr.p.Buffers):
		line = fmt.Appendf(line, "#%d", r.Buf)
		return fmt.Appendf(line, "[%dx%d@%d/%d]", r.Rows, r.Cols, r.Off, r.Stride)
	}
	b := &pr.p.Buffers[r.Buf]
	line = append(line, pr.refs[r.Buf]...)
	if r == (Region{Buf: r.Buf, Rows: b.Rows, Cols: b.Cols, Stride: b.Cols}) {
		return line
	}
	line = fmt.Appendf(line, "[%dx%d", r.Rows, r.Cols)
	if r.Off != 0 {
		line = fmt.Appendf(line, "@%d", r.Off)
	}
	if r.Stride != DefaultStride(b, r.Cols) {
		line = fmt.Appendf(line, "/%d", r.Stride)
	}
	return append(line, ']')
}

// defaultStride returns the only stride that a region of b can have: matrices are
// addressed by rows, flat buffers hold packed parameters.
func DefaultStride(b *Buffer, cols int) int {
	if b.RowUnit > 0 {
		return b.Cols
	}
	return cols
}

func (pr printer) home(line []byte, h *Home) []byte {
	line = fmt.Appendf(line, "home %d %s ", h.Param, h.Kind)
	line = pr.region(line, h.Region)
	if h.Slab != 0 {
		line = fmt.Appendf(line, " slab=%d", h.Slab)
	}
	if h.At != 0 {
		line = fmt.Appendf(line, " at=%d", h.At)
	}
	if h.Of != 0 {
		line = fmt.Appendf(line, " of=%d", h.Of)
	}
	if h.Replica {
		line = append(line, " replica"...)
	}
	return line
}

func (pr printer) instr(line []byte, i int) []byte {
	in := &pr.p.Instrs[i]
	line = append(line, 'i')
	line = strconv.AppendInt(line, int64(i), 10)
	line = append(line, ' ')
	line = append(line, in.Op.String()...)
	line = append(line, '(')
	for j, r := range in.Args {
		if j > 0 {
			line = append(line, ", "...)
		}
		line = pr.region(line, r)
	}
	line = append(line, ") "...)
	line = append(line, in.Stream.String()...)
	line = append(line, " key="...)
	for _, v := range [...]int{in.Key.Segment, in.Key.Micro, in.Key.Chunk} {
		if v == -1 {
			line = append(line, '-')
		} else {
			line = strconv.AppendInt(line, int64(v), 10)
		}
		line = append(line, ',')
	}
	line = append(line, directionName(in.Key.Dir)...)
	for j, w := range in.Waits {
		line = append(line, listSeparator(j, " wait=")...)
		line = strconv.AppendInt(append(line, 'i'), int64(w), 10)
	}
	for j, r := range in.Peers {
		line = append(line, listSeparator(j, " peers=")...)
		line = strconv.AppendInt(line, int64(r), 10)
	}
	if in.Tag != 0 {
		line = fmt.Appendf(line, " tag=%d", in.Tag)
	}
	return appendAttr(line, &in.Attr)
}

func directionName(d Direction) string {
	if int(d) >= len(directions) {
		return fmt.Sprintf("dir(%d)", uint8(d))
	}
	return d.String()
}

func appendAttr(line []byte, a *graph.Attr) []byte {
	if *a == (graph.Attr{}) {
		return line
	}
	for _, f := range graph.AttrFields {
		switch v := f.Ptr(a).(type) {
		case *bool:
			if *v {
				line = append(append(line, ' '), f.Name...)
			}
		case *int:
			if *v != 0 {
				line = fmt.Appendf(line, " %s=%d", f.Name, *v)
			}
		case *float64:
			// -0 is not 0 in bits, so it prints.
			if math.Float64bits(*v) != 0 {
				line = fmt.Appendf(line, " %s=%s", f.Name, strconv.FormatFloat(*v, 'g', -1, 64))
			}
		case *model.Activation:
			if *v != 0 {
				line = fmt.Appendf(line, " %s=%s", f.Name, v)
			}
		}
	}
	return line
}

// escape writes a name without separators. The empty name is "%".
func escape(s string) string {
	switch s {
	case "":
		return "%"
	case "-":
		return "%2D"
	}
	for i := 0; i < len(s); i++ {
		if !plainByte(s[i]) {
			return escapeFrom(s, i)
		}
	}
	return s
}

func escapeFrom(s string, i int) string {
	out := []byte(s[:i])
	for ; i < len(s); i++ {
		if plainByte(s[i]) {
			out = append(out, s[i])
		} else {
			out = fmt.Appendf(out, "%%%02X", s[i])
		}
	}
	return string(out)
}

func plainByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '.' || c == '_' || c == ':' || c == '/' || c == '+' || c == '-' || c == '\''
}
