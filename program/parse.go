package program

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// Parse reads what WriteTo prints. With it, tests show that nothing is missing from
// the text (L5), and write programs by hand. It is strict: unknown or missing lines and
// fields, fields out of order, numbers out of range and references to nothing are
// errors that name the line. Whether the program makes sense is for Verify to say.
func Parse(text string) (*Program, error) {
	ps := parser{p: &Program{}, byName: map[string]int{}}
	for line := range strings.Lines(text) {
		ps.line++
		if err := ps.parseLine(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("program text, line %d: %w", ps.line, err)
		}
	}
	if !ps.ended {
		want := textEnd
		if ps.line < len(headerLines) {
			want = headerLines[ps.line]
		}
		return nil, fmt.Errorf("program text ends at line %d, before %q; hint: the file is cut short", ps.line, want)
	}
	return ps.p, nil
}

var headerLines = [...]string{textMagic, "name", "rank", "plan_hash", "row_unit", "batch_row", "capacity", "height", "bound"}

type parser struct {
	p      *Program
	line   int            // 1-based
	byName map[string]int // -1: ambiguous
	ended  bool
}

func (ps *parser) parseLine(s string) error {
	if ps.line <= len(headerLines) {
		return ps.header(s)
	}
	word, rest, _ := strings.Cut(s, " ")
	switch {
	case ps.ended:
		return fmt.Errorf("%.40q after the end", s)
	case s == textEnd:
		ps.ended = true
		return nil
	case word == "buffer":
		if len(ps.p.Homes)+len(ps.p.Instrs) > 0 {
			return errors.New("buffer after homes or instructions; hint: buffers come first")
		}
		return ps.buffer(rest)
	case word == "home":
		if len(ps.p.Instrs) > 0 {
			return errors.New("home after instructions; hint: homes come before them")
		}
		return ps.home(rest)
	case strings.HasPrefix(word, "i"):
		return ps.instr(word, rest)
	}
	return fmt.Errorf("unknown line %.40q; hint: buffer, home or an instruction such as i0", s)
}

func (ps *parser) header(s string) error {
	want := headerLines[ps.line-1]
	if ps.line == 1 {
		if s != want {
			return fmt.Errorf("%.40q is not the first line of a program; hint: it reads %q", s, want)
		}
		return nil
	}
	word, rest, _ := strings.Cut(s, " ")
	if word != want {
		return fmt.Errorf("found %.40q where %q belongs", s, want)
	}
	var err error
	switch p := ps.p; want {
	case "name":
		p.Name, err = quoted(want, rest)
	case "plan_hash":
		p.PlanHash, err = quoted(want, rest)
	case "rank":
		p.Rank, err = count(rest)
	case "row_unit":
		p.RowUnit, err = count(rest)
	case "batch_row":
		err = ps.batchRow(rest)
	default:
		bytes := p.perTier()[ps.line-7].bytes
		f := strings.Split(rest, " ")
		if len(f) != int(device.NumTiers) {
			return fmt.Errorf("%s has %d numbers, want one per tier: %d", want, len(f), device.NumTiers)
		}
		for t := range bytes {
			if want == "capacity" && f[t] == unlimited {
				bytes[t] = Unlimited
				continue
			}
			if bytes[t], err = number(f[t], 0, MaxBytes); err != nil {
				return err
			}
		}
	}
	return err
}

// batchRow parses the first row of the batch that a rank has and, if ranks share sequences, its runs of each.
func (ps *parser) batchRow(s string) (err error) {
	p := ps.p
	first, runs, shared := strings.Cut(s, " of ")
	if p.BatchRow, err = count(first); err != nil || !shared {
		return err
	}
	f := strings.Split(runs, " ")
	if p.Sequence, err = count(f[0]); err != nil {
		return err
	}
	if len(f) == 1 {
		return fmt.Errorf("a rank that shares sequences has no run of tokens, such as 0+8")
	}
	for _, text := range f[1:] {
		at, rows, _ := strings.Cut(text, "+")
		var r graph.Run
		if r.At, err = count(at); err != nil {
			return err
		}
		if r.Rows, err = count(rows); err != nil {
			return err
		}
		p.Runs = append(p.Runs, r)
	}
	return nil
}

// quoted parses what a line says in quotes.
func quoted(line, s string) (string, error) {
	text, err := strconv.Unquote(s)
	if err != nil || s[0] != '"' {
		return "", fmt.Errorf("%s %.40q is not a quoted string", line, s)
	}
	return text, nil
}

// number parses a canonical decimal (no sign but -, no leading zeros).
func number(s string, low, high int64) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(v, 10) != s {
		return 0, fmt.Errorf("%.40q is not a whole number", s)
	}
	if v < low || v > high {
		return 0, fmt.Errorf("%d is out of range [%d, %d]", v, low, high)
	}
	return v, nil
}

func count(s string) (int, error) {
	v, err := number(s, 0, MaxCount)
	return int(v), err
}

// extent parses ROWSxCOLS, both at least 1.
func extent(s string) (rows, cols int, err error) {
	a, b, ok := strings.Cut(s, "x")
	if !ok {
		return 0, 0, fmt.Errorf("%.40q is not ROWSxCOLS", s)
	}
	r, err := number(a, 1, MaxCount)
	if err != nil {
		return 0, 0, err
	}
	c, err := number(b, 1, MaxCount)
	if err != nil {
		return 0, 0, err
	}
	if r > MaxBytes/c {
		return 0, 0, fmt.Errorf("%s has too many elements", s)
	}
	return int(r), int(c), nil
}

// fields walks over "name" and "name=value" words in their printed order.
type fields struct{ words []string }

// take removes the next word if it is name or name=value.
func (f *fields) take(name string) (value string, ok bool) {
	if len(f.words) == 0 {
		return "", false
	}
	word, value, _ := strings.Cut(f.words[0], "=")
	if word != name {
		return "", false
	}
	f.words = f.words[1:]
	return value, true
}

func (f *fields) flag(name string) bool {
	if len(f.words) == 0 || f.words[0] != name {
		return false
	}
	f.words = f.words[1:]
	return true
}

func (f *fields) end() error {
	if len(f.words) > 0 {
		return fmt.Errorf("field %.40q is unknown here, out of order or repeated", f.words[0])
	}
	return nil
}

func (f *fields) number(name string, low, high int64) (int64, error) {
	s, ok := f.take(name)
	if !ok {
		return 0, fmt.Errorf("field %s is missing", name)
	}
	v, err := number(s, low, high)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// optional parses a whole number, at least low, if the field is there.
func (f *fields) optional(name string, low int64) (int, error) {
	s, ok := f.take(name)
	if !ok {
		return 0, nil
	}
	v, err := number(s, low, MaxCount)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return int(v), nil
}

func (ps *parser) buffer(s string) error {
	words := strings.Split(s, " ")
	if len(words) < 5 {
		return errors.New("buffer line has too few fields; hint: buffer NAME TIER CLASS DTYPE ROWSxCOLS KEY=VALUE")
	}
	var b Buffer
	var err error
	if b.Name, err = unescape(words[0]); err != nil {
		return err
	}
	if b.Tier, err = device.ParseTier(words[1]); err != nil {
		return err
	}
	if b.Class, err = parseClass(words[2]); err != nil {
		return err
	}
	if b.DType, err = dtypeNamed(words[3]); err != nil {
		return err
	}
	if b.Rows, b.Cols, err = extent(words[4]); err != nil {
		return err
	}
	f := fields{words[5:]}
	if b.RowUnit, err = f.optional("unit", 1); err != nil {
		return err
	}
	if v, ok := f.take("cuts"); ok {
		for _, c := range strings.Split(v, ",") {
			n, err := number(c, 1, MaxCount)
			if err != nil {
				return fmt.Errorf("cuts: %w", err)
			}
			b.Cuts = append(b.Cuts, int(n))
		}
	}
	if b.Size, err = f.number("size", 0, MaxBytes); err != nil {
		return err
	}
	if b.Align, err = f.number("align", 0, MaxBytes); err != nil {
		return err
	}
	if b.Addr, err = f.number("addr", -1, MaxBytes); err != nil {
		return err
	}
	b.Persistent = f.flag("persistent")
	if v, ok := f.take("init"); ok {
		if b.Init, err = parseInit(v); err != nil {
			return err
		}
	}
	if _, twice := ps.byName[b.Name]; twice {
		ps.byName[b.Name] = -1
	} else {
		ps.byName[b.Name] = len(ps.p.Buffers)
	}
	ps.p.Buffers = append(ps.p.Buffers, b)
	return f.end()
}

func parseInit(s string) ([]string, error) {
	names := strings.Split(s, ",")
	for i, name := range names {
		if name == "" {
			continue
		}
		var err error
		if names[i], err = unescape(name); err != nil {
			return nil, err
		}
		if names[i] == "" {
			return nil, errors.New("init: padding is an empty entry, not %")
		}
	}
	return names, nil
}

func parseClass(s string) (Class, error) {
	for c := Class(0); c < NumClasses; c++ {
		if ClassName(c) == s {
			return c, nil
		}
	}
	return 0, fmt.Errorf("unknown class %.40q", s)
}

func dtypeNamed(s string) (graph.DType, error) {
	for d := range graph.NumDTypes {
		if d.String() == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown element type %.40q", s)
}

func opNamed(s string) (graph.Op, error) {
	for op := range graph.NumOps {
		if op.String() == s {
			return op, nil
		}
	}
	return 0, fmt.Errorf("unknown operator %.40q", s)
}

func (ps *parser) home(s string) error {
	words := strings.Split(s, " ")
	if len(words) < 3 {
		return errors.New("home line has too few fields; hint: home PARAM KIND REGION [slab=NUMBER] [at=ELEMENT] [of=ELEMENTS] [replica]")
	}
	var h Home
	var err error
	if h.Param, err = count(words[0]); err != nil {
		return err
	}
	if h.Kind, err = optimizer.KindNamed(words[1]); err != nil {
		return err
	}
	if h.Region, err = ps.region(words[2]); err != nil {
		return err
	}
	f := fields{words[3:]}
	if h.Slab, err = f.optional("slab", 0); err != nil {
		return err
	}
	if h.At, err = f.optional("at", 0); err != nil {
		return err
	}
	if h.Of, err = f.optional("of", 0); err != nil {
		return err
	}
	h.Replica = f.flag("replica")
	ps.p.Homes = append(ps.p.Homes, h)
	return f.end()
}

// region parses an operand: -, NAME, or NAME[ROWSxCOLS@OFF/STRIDE].
func (ps *parser) region(s string) (Region, error) {
	if s == "-" {
		return Region{}, nil
	}
	name, box, boxed := strings.Cut(s, "[")
	buf, err := ps.lookup(name)
	if err != nil {
		return Region{}, err
	}
	b := &ps.p.Buffers[buf]
	if !boxed {
		return Region{Buf: buf, Rows: b.Rows, Cols: b.Cols, Stride: b.Cols}, nil
	}
	box, closed := strings.CutSuffix(box, "]")
	if !closed {
		return Region{}, fmt.Errorf("operand %.60q lacks ]", s)
	}
	r := Region{Buf: buf}
	box, stride, hasStride := strings.Cut(box, "/")
	box, off, hasOff := strings.Cut(box, "@")
	if r.Rows, r.Cols, err = extent(box); err != nil {
		return Region{}, err
	}
	r.Stride = DefaultStride(b, r.Cols)
	if hasStride {
		if r.Stride, err = count(stride); err != nil {
			return Region{}, err
		}
	}
	if hasOff {
		v, err := number(off, 1, MaxBytes)
		if err != nil {
			return Region{}, err
		}
		r.Off = int(v)
	}
	return r, nil
}

func (ps *parser) lookup(name string) (int, error) {
	if num, ok := strings.CutPrefix(name, "#"); ok {
		v, err := number(num, 0, int64(len(ps.p.Buffers))-1)
		return int(v), err
	}
	plain, err := unescape(name)
	if err != nil {
		return 0, err
	}
	buf, ok := ps.byName[plain]
	if !ok {
		return 0, fmt.Errorf("unknown buffer %.60q", plain)
	}
	if buf < 0 {
		return 0, fmt.Errorf("several buffers are called %.60q; hint: refer to one by its number, as #12", plain)
	}
	return buf, nil
}

func (ps *parser) instr(word, s string) error {
	if want := "i" + strconv.Itoa(len(ps.p.Instrs)); word != want {
		return fmt.Errorf("instruction %.20q where %s belongs", word, want)
	}
	name, rest, ok := strings.Cut(s, "(")
	inside, rest, ok2 := strings.Cut(rest, ") ")
	if !ok || !ok2 {
		return errors.New("instruction has no operand list; hint: i0 OP(OPERAND, ...) STREAM KEY=VALUE")
	}
	var in Instr
	var err error
	if in.Op, err = opNamed(name); err != nil {
		return err
	}
	if inside != "" {
		for _, a := range strings.Split(inside, ", ") {
			r, err := ps.region(a)
			if err != nil {
				return err
			}
			in.Args = append(in.Args, r)
		}
	}
	f := fields{strings.Split(rest, " ")}
	if in.Stream, err = device.ParseStream(f.words[0]); err != nil {
		return err
	}
	f.words = f.words[1:]
	if in.Key, err = parseKey(&f); err != nil {
		return err
	}
	if v, ok := f.take("wait"); ok {
		for _, w := range strings.Split(v, ",") {
			num, ok := strings.CutPrefix(w, "i")
			if !ok {
				return fmt.Errorf("wait %.20q is not an instruction", w)
			}
			n, err := count(num)
			if err != nil {
				return fmt.Errorf("wait: %w", err)
			}
			in.Waits = append(in.Waits, n)
		}
	}
	if v, ok := f.take("peers"); ok {
		for _, r := range strings.Split(v, ",") {
			n, err := count(r)
			if err != nil {
				return fmt.Errorf("peers: %w", err)
			}
			in.Peers = append(in.Peers, n)
		}
	}
	if in.Tag, err = f.optional("tag", 1); err != nil {
		return err
	}
	if err := parseAttr(&f, &in.Attr); err != nil {
		return err
	}
	ps.p.Instrs = append(ps.p.Instrs, in)
	return f.end()
}

func parseKey(f *fields) (Key, error) {
	s, _ := f.take("key")
	part := strings.Split(s, ",")
	if len(part) != 4 {
		return Key{}, errors.New("key is missing or not SEGMENT,MICRO,CHUNK,DIRECTION")
	}
	var k Key
	for i, dst := range [...]*int{&k.Segment, &k.Micro, &k.Chunk} {
		if part[i] == "-" {
			*dst = -1
			continue
		}
		var err error
		if *dst, err = count(part[i]); err != nil {
			return Key{}, fmt.Errorf("key: %w", err)
		}
	}
	d := slices.Index(directions[:], part[3])
	if d < 0 {
		return Key{}, fmt.Errorf("key: unknown direction %.20q", part[3])
	}
	k.Dir = Direction(d)
	return k, nil
}

func parseAttr(f *fields, a *graph.Attr) error {
	for _, field := range graph.AttrFields {
		switch v := field.Ptr(a).(type) {
		case *bool:
			*v = f.flag(field.Name)
		case *int:
			s, ok := f.take(field.Name)
			if !ok {
				continue
			}
			n, err := number(s, -MaxCount, MaxCount)
			if err != nil {
				return fmt.Errorf("%s: %w", field.Name, err)
			}
			*v = int(n)
		case *float64:
			s, ok := f.take(field.Name)
			if !ok {
				continue
			}
			x, err := strconv.ParseFloat(s, 64)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("%s: %.40q is not a finite number", field.Name, s)
			}
			*v = x
		case *model.Activation:
			s, ok := f.take(field.Name)
			if !ok {
				continue
			}
			if *v, ok = model.ParseActivation(s); !ok {
				return fmt.Errorf("%s: unknown activation %.40q", field.Name, s)
			}
		}
	}
	return nil
}

// unescape undoes escape.
func unescape(s string) (string, error) {
	if s == "%" {
		return "", nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if plainByte(s[i]) {
			out = append(out, s[i])
			continue
		}
		if s[i] != '%' || i+2 >= len(s) {
			return "", fmt.Errorf("name %q: byte %q must be written %%%02X", s, s[i], s[i])
		}
		v, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("name %q: %q is not a hexadecimal byte", s, s[i:i+3])
		}
		out = append(out, byte(v))
		i += 2
	}
	if len(out) == 0 {
		return "", fmt.Errorf("empty name; hint: the empty name is written %%")
	}
	return string(out), nil
}
