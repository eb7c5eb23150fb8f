// Package cli is what the commands of this repository have in common: how a command line
// becomes a verb, where its results and its progress go, how files are written, and which
// exit code an error has. What the verbs are and do is the commands' own.
//
// Results go to standard output, progress and logs to standard error. With --json, standard
// output is one JSON object. Exit codes are in exit.go.
package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/internal/sysmem"
)

// Context is passed to every verb.
type Context struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Terminal       bool // Stdout is a terminal
	Columns        int  // of that terminal, or as COLUMNS says; 0: there is no width
	JSON           bool
	Exit           func(code int) // ends the process; a verb may replace it
}

// Text prints lines of text. A terminal, which would cut them anywhere, gets them cut between words; so does whoever sets COLUMNS.
func (c *Context) Text(text string) { writeLines(c.Stdout, text, c.Columns) }

// Textf formats lines of text and prints them.
func (c *Context) Textf(format string, args ...any) { c.Text(fmt.Sprintf(format, args...)) }

// Tellf formats lines of text and prints them on standard error.
func (c *Context) Tellf(format string, args ...any) { tellf(c.Stderr, format, args...) }

// Note tells the user what is worth knowing.
func (c *Context) Note(text string) { c.Tellf("note: %s\n", text) }

// tellf formats lines of text and prints them, on a terminal cut between words.
func tellf(w io.Writer, format string, args ...any) {
	writeLines(w, fmt.Sprintf(format, args...), widthOf(w))
}

// writeLines writes lines of text, cut between words to a width; 0: there is none.
func writeLines(w io.Writer, text string, width int) {
	for line := range strings.Lines(text) {
		for _, part := range wrapped(strings.TrimSuffix(line, "\n"), width) {
			fmt.Fprintln(w, part)
		}
	}
}

// Rows returns the writer for tables that grow as things are measured: standard
// output, or standard error with --json, whose only output is one object at the
// end.
func (c *Context) Rows() io.Writer {
	if c.JSON {
		return c.Stderr
	}
	return c.Stdout
}

// Print writes v as the verb's JSON object.
func (c *Context) Print(v any) error {
	e := json.NewEncoder(c.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Program is a command.
type Program struct {
	Name, Description string
	Verbs             any       // pointer to a struct with a field per verb
	Vars              kong.Vars // substituted into help texts
	Codes             []ExitRow // of errors that only this program has
	Elsewhere         Elsewhere

	exit func(code int) // ends the process
}

// Elsewhere names verbs that another program has.
type Elsewhere struct {
	Program string
	Verbs   []string // "scale", "bench sweep"
}

// Flags are those of all programs and verbs.
type Flags struct {
	JSON bool `name:"json" help:"Print one JSON object on standard output and nothing else there."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

// Main runs the program as the process that it is in.
func (p *Program) Main() {
	if cuda.ServeProbe() {
		return
	}
	obeyQuota()
	limitGarbage()
	p.exit = os.Exit
	code := p.Execute(os.Args[1:], os.Stdout, os.Stderr)
	p.exit(code)
}

// Execute runs a command line and returns the exit code. It is Main without the
// process.
func (p *Program) Execute(args []string, stdout, stderr io.Writer) int {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // the heap is small, since arenas are outside it, and a search allocates and drops many programs
	}
	var f Flags
	exited, code := false, 0
	parser, err := p.Parser(&f, kong.Writers(stdout, stderr), kong.Exit(func(n int) { exited, code = true, n }))
	if err != nil {
		panic(err) // the struct of verbs is invalid, which a test would show
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help": // as in other programs
		args = slices.Concat(args[1:], []string{"--help"})
	}
	if err := p.Elsewhere.find(args); err != nil {
		tellf(stderr, "%s: %v\n", p.Name, err)
		return p.ExitCode(err)
	}
	parsed, err := parser.Parse(FlagsFirst(parser, args))
	if exited {
		return code
	}
	if err != nil {
		tellf(stderr, "%s: %v\nhint: %s%s --help\n", p.Name, err, p.Name, verbOf(err))
		return ExitUsage
	}
	out := &results{w: stdout}
	c := &Context{Stdin: os.Stdin, Stdout: out, Stderr: stderr, JSON: f.JSON, Exit: p.exit}
	defer func() { p.exit = c.Exit }()
	c.Terminal, c.Columns = asTerminal(stdout) != nil, widthOf(stdout)
	if err := runVerb(parsed, c, out); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = suggest.Add(err, "free some space on that disk, or write to another disk")
		}
		tellf(stderr, "%s: %v\n", p.Name, err)
		return p.ExitCode(err)
	}
	return 0
}

// runVerb returns a verb's error, or that of its output.
func runVerb(parsed *kong.Context, c *Context, out *results) error {
	if err := sysmem.EnoughAddresses(); err != nil {
		return err
	}
	return cmp.Or(parsed.Run(c), out.err)
}

// Parser returns the parser of the program's command lines, which sets f.
func (p *Program) Parser(f *Flags, more ...kong.Option) (*kong.Kong, error) {
	return kong.New(f, append(more, kong.Embed(p.Verbs), kong.Name(p.Name), kong.Description(p.Description),
		kong.Vars{"version": Version(p.Name)}, p.Vars, kong.ConfigureHelp(kong.HelpOptions{Compact: true}))...)
}

// find returns an error if a command line asks for a verb of the other program.
func (e *Elsewhere) find(args []string) error {
	var words []string
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			words = append(words, a)
		}
	}
	for _, verb := range e.Verbs {
		if own := strings.Fields(verb); len(words) >= len(own) && slices.Equal(words[:len(own)], own) {
			return UsageError(fmt.Sprintf("%s is a verb of %s; hint: %s %s", verb, e.Program, e.Program, verb))
		}
	}
	return nil
}

// FlagsFirst moves a verb's flags before its arguments, so that overrides may appear
// anywhere: the parser requires a list of arguments to be contiguous.
func FlagsFirst(k *kong.Kong, args []string) []string {
	var verbs, flags, rest []string
	node := k.Model.Node
	for i := 0; i < len(args); i++ {
		arg := args[i]
		verb := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == arg })
		switch {
		case arg == "--":
			return slices.Concat(verbs, flags, rest, args[i:])
		case len(arg) > 1 && arg[0] == '-':
			flags = append(flags, arg)
			if takesValue(node, arg) && i+1 < len(args) {
				i++
				flags = append(flags, args[i])
			}
		case verb >= 0 && len(rest) == 0:
			node, verbs = node.Children[verb], append(verbs, arg)
		default:
			rest = append(rest, arg)
		}
	}
	return slices.Concat(verbs, flags, rest)
}

// takesValue reports whether arg is a flag whose value is the next argument, of a
// verb or of its default subcommand.
func takesValue(verb *kong.Node, arg string) bool {
	for ; verb != nil; verb = verb.DefaultCmd {
		for _, f := range slices.Concat(verb.AllFlags(false)...) {
			if arg == "--"+f.Name || f.Short != 0 && arg == "-"+string(f.Short) {
				return !f.IsBool()
			}
		}
	}
	return false
}

// results wraps standard output and remembers a write error, which would otherwise
// be missed on a full disk.
type results struct {
	w   io.Writer
	err error
}

func (r *results) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	r.err = cmp.Or(r.err, err)
	return n, err
}

// verbOf returns the verb that a command-line error is about, with a space before
// it, or "".
func verbOf(err error) string {
	var e *kong.ParseError
	if errors.As(err, &e) && e.Context.Selected() != nil {
		return " " + e.Context.Selected().Path()
	}
	return ""
}
