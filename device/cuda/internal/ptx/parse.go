package ptx

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Module is a parsed PTX text: its kernels.
type Module struct{ kernels map[string]*kernel }

// kernel is one entry, ready to run. Every operand is a register: constants, addresses of
// variables and special registers have registers too, which are set before the first
// instruction.
type kernel struct {
	name      string
	private   map[string]string // local names of the block of inline assembly being read
	params    int               // bytes of arguments
	threads   int               // most threads per block; 0: any number
	static    int               // bytes of shared variables, which precede dynamic shared memory
	names     map[string]int
	registers int
	flags     int // number of predicates: a bit per lane each
	constants map[int]uint64
	specials  map[int]string
	fragments map[int]string // registers of warpgroups' products, with their names
	arch      string         // what the text is for
	named     []int          // registers that the current instruction names
	code      []instruction
}

// instruction is one PTX instruction. Plain ones only have run, which gets the lanes that
// execute it.
type instruction struct {
	text   string
	opcode string
	kind   kind
	guard  int // a flag, or -1 if unconditional
	unless bool
	run    func(w *warp, lanes uint32)
	label  string
	target int
	// vote: each thread passes a flag to a barrier and gets whether any was set; nil for a
	// plain barrier.
	vote *vote
	// fragments are the registers of warpgroups' products that this instruction uses.
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

// Parse parses PTX as written by NVRTC and LLVM: one statement per line. Anything unknown
// is an error that names the line.
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

// statements returns the statements of a line: one, or those of a block in braces.
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

// reader is the state of the parser.
type reader struct {
	module  *Module
	outside map[string]bool // names of dynamic shared memory
	kernel  *kernel         // being read
	labels  map[string]int  // of the kernel
	arch    string          // what the text is for
	depth   int             // number of open braces
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
	case register.MatchString(line): // registers are created on first use
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
		if len(k.code) == 0 { // all static variables are known; dynamic ones begin after them
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

// close handles a closing brace: the end of a block of inline assembly or of the kernel.
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

// link resolves branch targets, and finds which instructions use registers of products.
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

// variable assigns an address to a shared variable.
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

// argument assigns an offset to an argument.
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

// sizeOf returns a type's size in bytes, or 0 if kind is no type.
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

// constant assigns a register with a constant value to a name.
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

// register returns the register number of an operand: a register, a variable or a
// constant.
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
	if strings.HasPrefix(s, "%") || s == "_" { // _ discards a result
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

// number parses a constant: an integer, or the bits of a float after 0f or 0d.
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

// flag returns the number of a predicate.
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

// address is a register plus an offset.
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

// instruction parses one: [@[!]%p] opcode operands;
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

// builder resolves one instruction's operands to register numbers and keeps the first
// error.
type builder struct {
	k        *kernel
	opcode   string
	parts    []string // of the opcode, split at its dots
	operands []string
	err      error
}

func (b *builder) fail(err error) {
	if b.err == nil && err != nil {
		b.err = err
	}
}

// operand returns the text of the i-th operand.
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

// list returns the registers of operand i: {a, b, ...} or a single one.
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

// literal returns the value of a constant operand.
func (b *builder) literal(i int) int {
	n, err := number(b.operand(i))
	b.fail(err)
	return int(n)
}

// has reports whether the opcode has the given part.
func (b *builder) has(part string) bool {
	for _, p := range b.parts {
		if p == part {
			return true
		}
	}
	return false
}

// last returns the opcode's last part: the type.
func (b *builder) last() string { return b.parts[len(b.parts)-1] }

func f32(x uint64) float32    { return math.Float32frombits(uint32(x)) }
func f64(x uint64) float64    { return math.Float64frombits(x) }
func bits32(x float32) uint64 { return uint64(math.Float32bits(x)) }
func bits64(x float64) uint64 { return math.Float64bits(x) }
