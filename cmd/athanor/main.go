// Command athanor trains large language models on the local GPUs or CPU. Each verb
// is a file of this package that holds its flags and printing; the work is done in
// the packages below.
//
// Results go to standard output, progress and logs to standard error. With --json,
// standard output is one JSON object. Exit codes are in exit.go.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// context is passed to every verb.
type context struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool // stdout is a terminal
	json           bool
}

// rows returns the writer for tables that grow as things are measured: standard
// output, or standard error with --json, whose only output is one object at the
// end.
func (c *context) rows() io.Writer {
	if c.json {
		return c.stderr
	}
	return c.stdout
}

// cli declares the verbs.
type cli struct {
	JSON bool `name:"json" help:"Print one JSON object on standard output and nothing else there."`

	Version kong.VersionFlag `help:"Print the version and exit."`

	Train    trainCmd    `cmd:"" help:"Train: probe, plan, prove, run."`
	Plan     planCmd     `cmd:"" help:"Find the fastest plan that fits, with its memory and time."`
	Keys     keysCmd     `cmd:"" help:"List the keys of a configuration, with defaults and meanings."`
	Simulate simulateCmd `cmd:"" help:"Show the predicted timeline of a step."`
	Draw     drawCmd     `cmd:"" help:"Draw the predicted timeline and memory."`
	Probe    probeCmd    `cmd:"" help:"Measure this machine."`
	Data     dataCmd     `cmd:"" help:"Tokenise and show a corpus."`
	Serve    serveCmd    `cmd:"" help:"Let runs led by other hosts compute on this machine."`
	Doctor   doctorCmd   `cmd:"" help:"Check this machine: what is there, what is missing, what to do."`
	Eval     evalCmd     `cmd:"" help:"Compute loss and perplexity of a model folder; logits and gradients for comparison."`
	Generate generateCmd `cmd:"" help:"Generate text with a model folder."`
	Chat     chatCmd     `cmd:"" help:"Chat with a model folder, by its chat template."`
	Merge    mergeCmd    `cmd:"" help:"Merge an adapter and its model into a new model folder."`
	Export   exportCmd   `cmd:"" help:"Write a model folder with weights only, in bf16 or fp32, for other software."`
	Bench    benchCmd    `cmd:"" help:"Measure operators, training steps and predictions."`
	Pack     packCmd     `cmd:"" help:"Run the allocator on its own: static addresses for buffers with known lifetimes."`
	Schedule scheduleCmd `cmd:"" help:"Show, check, compare or search a pipeline schedule."`
	Scale    scaleCmd    `cmd:"" help:"Find the shortest time in which a model can be trained, and what limits it."`
}

func main() {
	if cuda.ServeProbe() {
		return
	}
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs a command line and returns the exit code. It is main without the
// process.
func execute(args []string, stdout, stderr io.Writer) int {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // the heap is small, since arenas are outside it, and a search allocates and drops many programs
	}
	var c cli
	exited, code := false, 0
	parser, err := kong.New(&c,
		kong.Name("athanor"),
		kong.Description("Trains large language models on the GPUs or the CPU that you have."),
		kong.Vars{"version": version()},
		kong.Writers(stdout, stderr),
		kong.Exit(func(n int) { exited, code = true, n }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		policyNames,
	)
	if err != nil {
		panic(err) // the cli struct is invalid, which a test would show
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help": // as in other programs
		args = slices.Concat(args[1:], []string{"--help"})
	}
	parsed, err := parser.Parse(together(parser, args))
	if exited {
		return code
	}
	if err != nil {
		fmt.Fprintf(stderr, "athanor: %v\nhint: athanor%s --help\n", err, verbOf(err))
		return 2
	}
	out := &results{w: stdout}
	ctx := &context{stdin: os.Stdin, stdout: out, stderr: stderr, terminal: asTerminal(stdout) != nil, json: c.JSON}
	if err := cmp.Or(parsed.Run(ctx), out.err); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = suggest.Add(err, "free some space on that disk, or write to another disk")
		}
		fmt.Fprintf(stderr, "athanor: %v\n", err)
		return exitCode(err)
	}
	return 0
}

// together moves a verb's flags before its arguments, so that overrides may appear
// anywhere: the parser requires a list of arguments to be contiguous.
func together(k *kong.Kong, args []string) []string {
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

// print writes v as the verb's JSON object.
func (c *context) print(v any) error {
	e := json.NewEncoder(c.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
