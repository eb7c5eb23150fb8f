package pack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/alloc"
)

// The text form is MiniMalloc's: a header that names the columns, then a
// buffer a line, columns in any order. id, lower (or start), upper (or end)
// and size are required, alignment and offset optional. As input, an offset
// that is not empty fixes the buffer.

// column numbers, by name.
const (
	colID = iota
	colLower
	colUpper
	colSize
	colAlign
	colOffset
	columns
)

var columnOf = map[string]int{
	"id": colID, "buffer": colID, "buffer_id": colID,
	"lower": colLower, "start": colLower,
	"upper": colUpper, "end": colUpper,
	"size":      colSize,
	"alignment": colAlign, "align": colAlign,
	"offset": colOffset,
}

const (
	maxLine    = 1 << 16
	maxBuffers = 50_000_000
)

// ReadCSV parses the buffers of a problem; the caller sets the capacity.
// Every error names the line. A byte order mark, as spreadsheets write, is skipped.
func ReadCSV(r io.Reader) (alloc.Problem, error) {
	var p alloc.Problem
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	var layout []int // meaning of each field; nil before the header
	seen := make(map[string]int)
	number := 0
	for lines.Scan() {
		number++
		text := lines.Text()
		if number == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		fields := strings.Split(text, ",")
		if layout == nil {
			var err error
			if layout, err = parseHeader(fields); err != nil {
				return alloc.Problem{}, fmt.Errorf("line %d: %w", number, err)
			}
			continue
		}
		if len(p.Buffers) == maxBuffers {
			return alloc.Problem{}, fmt.Errorf("line %d: more than %d buffers\nhint: merge buffers of equal lifetime", number, maxBuffers)
		}
		b, err := parseBuffer(fields, layout)
		if err != nil {
			return alloc.Problem{}, fmt.Errorf("line %d: %w", number, err)
		}
		if first, ok := seen[b.ID]; ok {
			return alloc.Problem{}, fmt.Errorf("line %d: id %q is already on line %d\nhint: give each buffer its own id", number, b.ID, first)
		}
		seen[b.ID] = number
		p.Buffers = append(p.Buffers, b)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return alloc.Problem{}, fmt.Errorf("line %d: longer than %d bytes\nhint: check that this is a CSV file", number+1, maxLine)
		}
		return alloc.Problem{}, err
	}
	if layout == nil {
		return alloc.Problem{}, errors.New("no header\nhint: begin with the line id,lower,upper,size[,alignment][,offset]")
	}
	return p, p.Check()
}

func parseHeader(fields []string) ([]int, error) {
	layout := make([]int, len(fields))
	var have [columns]bool
	for i, name := range fields {
		name = strings.ToLower(strings.TrimSpace(name))
		col, ok := columnOf[name]
		if !ok {
			return nil, fmt.Errorf("unknown column %.40q\nhint: the columns are id, lower, upper, size, alignment, offset", name)
		}
		if have[col] {
			return nil, fmt.Errorf("column %q comes twice\nhint: name each column once", name)
		}
		have[col] = true
		layout[i] = col
	}
	for col, name := range []string{"id", "lower", "upper", "size"} {
		if !have[col] {
			return nil, fmt.Errorf("column %q is missing\nhint: begin with the line id,lower,upper,size[,alignment][,offset]", name)
		}
	}
	return layout, nil
}

func parseBuffer(fields []string, layout []int) (alloc.Buffer, error) {
	b := alloc.Buffer{Fixed: alloc.Free}
	if len(fields) != len(layout) {
		return b, fmt.Errorf("the line has %d fields, the header %d\nhint: check for an id with a comma in it", len(fields), len(layout))
	}
	for i, text := range fields {
		text = strings.TrimSpace(text)
		col := layout[i]
		if col == colID {
			if text == "" {
				return b, errors.New("empty id\nhint: give every buffer a name")
			}
			b.ID = text
			continue
		}
		if text == "" && col >= colAlign {
			continue
		}
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v == math.MinInt64 {
			return b, fmt.Errorf("%q is not a whole number that fits in 63 bits\nhint: give times in steps and sizes in bytes", text)
		}
		if v < 0 && col == colSize {
			return b, fmt.Errorf("size %d is negative\nhint: give sizes in bytes", v)
		}
		if v < 0 && col >= colAlign {
			return b, fmt.Errorf("%d is negative\nhint: leave an alignment or offset empty if there is none", v)
		}
		switch col {
		case colLower:
			b.Lower = v
		case colUpper:
			b.Upper = v
		case colSize:
			b.Size = v
		case colAlign:
			b.Align = v
		case colOffset:
			b.Fixed = v
		}
	}
	return b, nil
}

// WriteCSV writes the problem in the form that ReadCSV reads, with the offsets of
// s, or of fixed buffers if s is nil. Alignments are written if any buffer has one.
func WriteCSV(w io.Writer, p alloc.Problem, s *alloc.Solution) error {
	aligned, offsets := false, s != nil
	for i := range p.Buffers {
		aligned = aligned || p.Buffers[i].Align > 1
		offsets = offsets || p.Buffers[i].Fixed >= 0
	}
	out := bufio.NewWriter(w)
	out.WriteString("id,lower,upper,size")
	if aligned {
		out.WriteString(",alignment")
	}
	if offsets {
		out.WriteString(",offset")
	}
	out.WriteByte('\n')
	for i := range p.Buffers {
		b := &p.Buffers[i]
		fmt.Fprintf(out, "%s,%d,%d,%d", b.ID, b.Lower, b.Upper, b.Size)
		if aligned {
			fmt.Fprintf(out, ",%d", max(b.Align, 1))
		}
		switch {
		case s != nil:
			fmt.Fprintf(out, ",%d", s.Offsets[i])
		case b.Fixed >= 0:
			fmt.Fprintf(out, ",%d", b.Fixed)
		case offsets:
			out.WriteByte(',')
		}
		out.WriteByte('\n')
	}
	return out.Flush()
}
