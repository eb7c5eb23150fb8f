// Command athanor trains large language models on the local GPUs or CPU. Each verb
// is a file of this package that holds its flags and printing; the work is done in
// the packages below. What all commands have in common is in internal/cli; what
// compares, and reproduces papers, is the command athanor-lab.
package main

import (
	"github.com/athanor-llm/athanor/internal/cli"
)

// verbs are those of this command.
type verbs struct {
	Train    trainCmd    `cmd:"" help:"Train: probe, plan, prove, run."`
	Plan     planCmd     `cmd:"" help:"Find the fastest plan that fits, with its memory and time."`
	Advise   adviseCmd   `cmd:"" help:"Find the best model that can be trained in a given time."`
	Keys     keysCmd     `cmd:"" help:"List the keys of a configuration, with defaults and meanings."`
	Watch    watchCmd    `cmd:"" help:"Show runs on a page, while they go on and afterwards."`
	Report   reportCmd   `cmd:"" help:"Compare runs on different machines as a table, or as a page to send."`
	Compare  compareCmd  `cmd:"" help:"Compare two configurations or plans on this machine, by steps in turn."`
	Roofline rooflineCmd `cmd:"" help:"Show what each kind of call is bound by, and what faster parts of the machine would bring."`
	Golden   goldenCmd   `cmd:"" help:"Keep what a plan needs of memory as a file, and check it later."`
	Share    shareCmd    `cmd:"" help:"Say how several jobs do on one card or on this machine's cores, and in which way best."`
	Simulate simulateCmd `cmd:"" help:"Show the predicted timeline of a step."`
	Draw     drawCmd     `cmd:"" help:"Draw the predicted timeline and memory."`
	Probe    probeCmd    `cmd:"" help:"Measure this machine."`
	Data     dataCmd     `cmd:"" help:"Tokenise and show a corpus."`
	Serve    serveCmd    `cmd:"" help:"Let runs led by other hosts compute on this machine."`
	Doctor   doctorCmd   `cmd:"" help:"Check this machine: what is there, what is missing, what to do."`
	Eval     evalCmd     `cmd:"" help:"Compute loss and perplexity of a model folder; logits and gradients for comparison."`
	Generate generateCmd `cmd:"" help:"Generate text with a model folder."`
	Chat     chatCmd     `cmd:"" help:"Chat with a model folder, by its chat template."`
	API      apiCmd      `cmd:"" name:"api" help:"Serve a model folder over HTTP, by OpenAI's API."`
	Merge    mergeCmd    `cmd:"" help:"Merge an adapter and its model into a new model folder."`
	Export   exportCmd   `cmd:"" help:"Write a model folder with weights only, in bf16 or fp32, for other software."`
	Prune    pruneCmd    `cmd:"" help:"Make a model folder with sparse weights, by SparseGPT on some text."`
	Bench    benchCmd    `cmd:"" help:"Measure operators, training steps and predictions."`
	Process  processCmd  `cmd:"" hidden:"" help:"Be a process of a run, for athanor serve."`

	Completion cli.Completion `cmd:"" help:"Print the script by which a shell completes verbs, flags and keys."`
	Man        cli.Manual     `cmd:"" help:"Print the manual page."`
}

// command is this command.
func command() *cli.Program {
	return &cli.Program{
		Name:        "athanor",
		Description: "Trains large language models on the GPUs or the CPU that you have.",
		Verbs:       &verbs{},
		Vars:        policyNames,
		Codes:       []cli.ExitRow{{Is: cli.Is(errStopped), Code: cli.ExitSaved}, {Is: cli.Is(errPaused), Code: cli.ExitSaved}},
		Elsewhere:   cli.Elsewhere{Program: "athanor-lab", Verbs: []string{"pack", "schedule", "scale", "bench sweep", "bench swap", "bench policies"}},
	}
}

func main() { command().Main() }
