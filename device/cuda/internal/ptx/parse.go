package ptx

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Module is the kernels of a text.
type Module struct{ kernels map[string]*kernel }

// kernel is one entry, ready to run. Every operand is a register: constants,
// addresses of variables and what a thread knows about itself have registers too,
// which are filled before the first instruction.
type kernel struct {
	name      string
	private   map[string]string // names that a block of inline assembly has for itself, while it is read
	params    int               // bytes of arguments
	threads   int               // that a block may have at most; 0: any number
	static    int               // bytes of shared variables, which lie before what a launch asks for
	names     map[string]int
	registers int
	flags     int // predicates: a bit per lane
	constants map[int]uint64
	specials  map[int]string
	fragments map[int]string // registers that products of warpgroups have, with their names
	arch      string         // what the text is for
	named     []int          // registers that the instruction names that is being read
	code      []instruction
}

// instruction: plain ones have only run, which gets the lanes that execute it.
type instruction struct {
	text   string
	opcode string
	kind   kind
	guard  int // a flag, or -1
	unless bool
	run    func(w *warp, lanes uint32)
	label  string
	target int
	// vote: each thread brings a flag to a barrier and gets whether any was
	// set; nil where they only wait.
	vote *vote
	// fragments are the registers of products of warpgroups that another instruction uses.
	fragments []int
}

type vote struct{ from, to int }

type kind int

const (
	plain    kind = iota
	branch        // to target
	together      // all lanes of a warp at once
	barrier       // all threads of a block
	exit
)

// memory spaces.
type space int

const (
	global space = iota
	shared
	param
)

var (
	header   = regexp.MustCompile(`^\.(?:visible )?\.?entry (\w+)\($`)
	argument = regexp.MustCompile(`^\.param (?:\.align (\d+) )?\.(\w+) (?:\.ptr \.global \.align \d+ )?(\w+)(?:\[(\d+)\])?,?$`)
	register = regexp.MustCompile(`^\.reg \.\w+ %\w+<\d+>;$`)
	own      = regexp.MustCompile(`^\.reg \.\w+ (%?\w+);$`)
	variable = regexp.MustCompile(`^(\.extern )?\.shared \.align (\d+) \.(\w+) ([\w$]+)(?:\[(\d*)\])?;$`)
	threads  = regexp.MustCompile(`^\.(?:maxntid|reqntid) (\d+)(?:, 1, 1)?$`)
	label    = regexp.MustCompile(`^(\$\w+):$`)
	ignored  = regexp.MustCompile(`^(\.version |\.address_size |\.pragma |\.minnctapersm |[()]$)`)
)

// Parse reads a text as NVRTC and LLVM write it: one statement a line. What it does not
// know is an error that names the line.
func Parse(text string) (*Module, error) {
	r := reader{module: &Module{kernels: map[string]*kernel{}}, outside: map[string]bool{}}
	for n, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "//")
		line = strings.Join(strings.Fields(line), " ")
		if line == "" || ignored.MatchString(line) {
			continue
		}
		if arch, ok := strings.CutPrefix(line, ".target "); ok {
			r.arch = arch
			continue
		}
		for _, statement := range statements(line) {
			if err := r.statement(statement, n+1); err != nil {
				return nil, fmt.Errorf("PTX line %d, %q: %w", n+1, line, err)
			}
		}
	}
	if len(r.module.kernels) == 0 || r.kernel != nil {
		return nil, fmt.Errorf("a PTX text without kernels, or with half of one")
	}
	return r.module, nil
}

// statements are those of a line: one, or a block in braces.
func statements(line string) []string {
	inner, block := strings.CutPrefix(line, "{ ")
	inner, end := strings.CutSuffix(inner, "}")
	if !block || !end {
		return []string{line}
	}
	list := []string{"{"}
	for _, s := range strings.SplitAfter(inner, ";") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return append(list, "}")
}

// reader is what is known of a text so far.
type reader struct {
	module  *Module
	outside map[string]bool // shared memory of the size that the launch asks for
	kernel  *kernel         // whose text this is
	labels  map[string]int  // of the kernel
	arch    string          // what the text is for
	depth   int             // of braces that are open
}

func (r *reader) statement(line string, n int) error {
	k := r.kernel
	switch {
	case header.MatchString(line):
		name := header.FindStringSubmatch(line)[1]
		r.kernel = &kernel{name: name, names: map[string]int{}, private: map[string]string{}, constants: map[int]uint64{}, specials: map[int]string{}, fragments: map[int]string{}, arch: r.arch}
		r.labels, r.depth = map[string]int{}, 0
	case variable.MatchString(line):
		return k.variable(variable.FindStringSubmatch(line), r.outside)
	case k == nil:
		return fmt.Errorf("unknown outside of a kernel")
	case argument.MatchString(line):
		return k.argument(argument.FindStringSubmatch(line))
	case threads.MatchString(line):
		k.threads, _ = strconv.Atoi(threads.FindStringSubmatch(line)[1])
	case register.MatchString(line): // registers come into being where they are named
	case own.MatchString(line) && r.depth == 2:
		name := own.FindStringSubmatch(line)[1]
		k.private[name] = fmt.Sprintf("%%%s of line %d", strings.TrimPrefix(name, "%"), n)
	case label.MatchString(line):
		r.labels[label.FindStringSubmatch(line)[1]] = len(k.code)
	case line == "{":
		r.depth++
	case line == "}":
		return r.close()
	default:
		if len(k.code) == 0 { // all of the kernel's own variables are known; others begin behind them
			for name := range r.outside {
				k.constant(name, uint64(k.static+15)&^15)
			}
		}
		in, err := k.instruction(line)
		k.code = append(k.code, in)
		return err
	}
	return nil
}

// close ends a block of inline assembly, or the kernel.
func (r *reader) close() error {
	k := r.kernel
	clear(k.private)
	if r.depth--; r.depth > 0 {
		return nil
	}
	if r.depth < 0 {
		return fmt.Errorf("a brace that was not opened")
	}
	r.module.kernels[k.name], r.kernel = k, nil
	return k.link(r.labels)
}

// link finds where branches go, and which instructions use registers of products.
func (k *kernel) link(labels map[string]int) error {
	for i := range k.code {
		in := &k.code[i]
		in.fragments = slices.DeleteFunc(in.fragments, func(r int) bool { return k.fragments[r] == "" })
		if in.kind == branch {
			to, ok := labels[in.label]
			if !ok {
				return fmt.Errorf("no label %s", in.label)
			}
			in.target = to
		}
	}
	return nil
}

// variable gives a shared variable its place.
func (k *kernel) variable(p []string, outside map[string]bool) error {
	if p[1] != "" {
		outside[p[4]] = true
		return nil
	}
	size, count := sizeOf(p[3]), 1
	if p[5] != "" {
		count, _ = strconv.Atoi(p[5])
	}
	align, _ := strconv.Atoi(p[2])
	if k == nil || size == 0 || align == 0 || len(k.code) > 0 {
		return fmt.Errorf("a variable that is not understood")
	}
	k.static = (k.static + align - 1) / align * align
	k.constant(p[4], uint64(k.static))
	k.static += size * count
	return nil
}

// argument gives an argument its place.
func (k *kernel) argument(p []string) error {
	size, count := sizeOf(p[2]), 1
	align := size
	if p[4] != "" {
		count, _ = strconv.Atoi(p[4])
		align, _ = strconv.Atoi(p[1])
	}
	if size == 0 || align == 0 {
		return fmt.Errorf("an argument that is not understood")
	}
	k.params = (k.params + align - 1) / align * align
	k.constant(p[3], uint64(k.params))
	k.params += size * count
	return nil
}

// sizeOf is a type's size in bytes; 0 if it is none.
func sizeOf(kind string) int {
	if len(kind) < 2 || !strings.Contains("busf", kind[:1]) {
		return 0
	}
	bits, err := strconv.Atoi(kind[1:])
	if err != nil {
		return 0
	}
	return bits / 8
}

// constant gives a name a register with a value.
func (k *kernel) constant(name string, v uint64) int {
	r, ok := k.names[name]
	if !ok {
		r = k.registers
		k.registers++
		k.names[name] = r
	}
	k.constants[r] = v
	return r
}

// register is the number of an operand: a register, a variable, a constant.
func (k *kernel) register(s string) (int, error) {
	if name, ok := k.private[s]; ok {
		s = name
	}
	if r, ok := k.names[s]; ok {
		k.named = append(k.named, r)
		return r, nil
	}
	if strings.HasPrefix(s, "%p") {
		return 0, fmt.Errorf("%s is a predicate", s)
	}
	if strings.HasPrefix(s, "%") || s == "_" { // that is for what nobody wants
		r := k.registers
		k.registers++
		k.names[s] = r
		k.named = append(k.named, r)
		if strings.Contains(s, ".") || s == "%laneid" || s == "%warpid" {
			k.specials[r] = s
		}
		return r, nil
	}
	v, err := number(s)
	if err != nil {
		return 0, err
	}
	return k.constant(s, v), nil
}

// number reads a constant: an integer, or the bits of a float behind 0f or 0d.
func number(s string) (uint64, error) {
	if hex, ok := strings.CutPrefix(s, "0f"); ok {
		return strconv.ParseUint(hex, 16, 32)
	}
	if hex, ok := strings.CutPrefix(s, "0d"); ok {
		return strconv.ParseUint(hex, 16, 64)
	}
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		return uint64(v), nil
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("operand %q is not understood", s)
	}
	return v, nil
}

// flag is the number of a predicate.
func (k *kernel) flag(s string) (int, error) {
	if name, ok := k.private[s]; ok {
		s = name
	} else if !strings.HasPrefix(s, "%p") {
		v, err := number(s)
		if err != nil {
			return 0, fmt.Errorf("%q is no predicate", s)
		}
		if v != 0 {
			s = "true"
		} else {
			s = "false"
		}
	}
	if r, ok := k.names[s]; ok {
		return r, nil
	}
	k.names[s] = k.flags
	k.flags++
	return k.names[s], nil
}

// address is a register and what is added to it.
type address struct {
	base   int
	offset uint64
}

func (k *kernel) address(s string) (address, error) {
	inner, ok := strings.CutPrefix(s, "[")
	inner, ok2 := strings.CutSuffix(inner, "]")
	if !ok || !ok2 {
		return address{}, fmt.Errorf("%q is no address", s)
	}
	name, plus, _ := strings.Cut(inner, "+")
	base, err := k.register(strings.TrimSpace(name))
	if err != nil || plus == "" {
		return address{base: base}, err
	}
	v, err := strconv.ParseInt(strings.TrimSpace(plus), 10, 64)
	return address{base, uint64(v)}, err
}

// instruction reads one: [@[!]%p] opcode operands;
func (k *kernel) instruction(line string) (instruction, error) {
	in := instruction{text: line, guard: -1}
	body, ok := strings.CutSuffix(line, ";")
	if !ok {
		return in, fmt.Errorf("no statement")
	}
	if rest, ok := strings.CutPrefix(body, "@"); ok {
		name, after, _ := strings.Cut(rest, " ")
		name, in.unless = strings.CutPrefix(name, "!")
		var err error
		if in.guard, err = k.flag(name); err != nil {
			return in, err
		}
		body = after
	}
	opcode, rest, _ := strings.Cut(body, " ")
	in.opcode = opcode
	b := builder{k: k, opcode: opcode, parts: strings.Split(opcode, "."), operands: operands(rest)}
	build, ok := builders[b.parts[0]]
	if !ok {
		return in, fmt.Errorf("unknown instruction %s", opcode)
	}
	k.named = nil
	build(&b, &in)
	if b.parts[0] != "wgmma" {
		in.fragments = k.named
	}
	return in, b.err
}

// operands splits at commas outside of braces and brackets.
func operands(s string) (list []string) {
	depth, start := 0, 0
	for i, c := range s {
		switch {
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',' && depth == 0:
			list = append(list, strings.TrimSpace(s[start:i]))
			start = i + 1
		}
	}
	if last := strings.TrimSpace(s[start:]); last != "" {
		list = append(list, last)
	}
	return list
}

// builder turns one instruction's operands into numbers of registers; what goes
// wrong first is kept.
type builder struct {
	k        *kernel
	opcode   string
	parts    []string // of the opcode, at its points
	operands []string
	err      error
}

func (b *builder) fail(err error) {
	if b.err == nil && err != nil {
		b.err = err
	}
}

// operand is the i-th one's text.
func (b *builder) operand(i int) string {
	if i >= len(b.operands) {
		b.fail(fmt.Errorf("%s has %d operands", b.opcode, len(b.operands)))
		return "0"
	}
	return b.operands[i]
}

func (b *builder) register(i int) int {
	r, err := b.k.register(b.operand(i))
	b.fail(err)
	return r
}

func (b *builder) flag(i int) int {
	r, err := b.k.flag(b.operand(i))
	b.fail(err)
	return r
}

func (b *builder) address(i int) address {
	a, err := b.k.address(b.operand(i))
	b.fail(err)
	return a
}

// list is the registers of {a, b, ...}, or of a single one.
func (b *builder) list(i int) (list []int) {
	s := b.operand(i)
	if inner, ok := strings.CutPrefix(s, "{"); ok {
		for _, name := range strings.Split(strings.TrimSuffix(inner, "}"), ",") {
			r, err := b.k.register(strings.TrimSpace(name))
			b.fail(err)
			list = append(list, r)
		}
		return list
	}
	return []int{b.register(i)}
}

// literal is an operand that is a constant.
func (b *builder) literal(i int) int {
	n, err := number(b.operand(i))
	b.fail(err)
	return int(n)
}

// has reports whether the opcode has a part.
func (b *builder) has(part string) bool {
	for _, p := range b.parts {
		if p == part {
			return true
		}
	}
	return false
}

// last is the opcode's last part: the type.
func (b *builder) last() string { return b.parts[len(b.parts)-1] }

func f32(x uint64) float32    { return math.Float32frombits(uint32(x)) }
func f64(x uint64) float64    { return math.Float64frombits(x) }
func bits32(x float32) uint64 { return uint64(math.Float32bits(x)) }
func bits64(x float64) uint64 { return math.Float64bits(x) }
