package cli

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/athanor-llm/athanor/config"
)

// Completion is the verb that lets shells complete command lines. Their scripts ask the program for the words that may
// follow, so they know all verbs, flags and keys of whichever version is installed.
type Completion struct {
	Shell string   `arg:"" help:"bash, zsh, fish or powershell; or words, to which the following are completed." enum:"bash,zsh,fish,powershell,words"`
	Words []string `arg:"" optional:"" passthrough:"" help:"The words after the program's name; the last one is completed."`
}

//go:embed complete.txt
var scripts string

// Run prints a script, or what completes the words.
func (v *Completion) Run(c *Context, k *kong.Context) error {
	if v.Shell == "words" {
		words := v.Words
		if len(words) > 0 && words[0] == "--" {
			words = words[1:]
		}
		for _, word := range following(k.Model.Node, words) {
			fmt.Fprintln(c.Stdout, word)
		}
		return nil
	}
	for part := range strings.SplitSeq(scripts, "==== ") {
		shell, script, _ := strings.Cut(part, "\n")
		if shell == v.Shell {
			fmt.Fprint(c.Stdout, strings.ReplaceAll(strings.ReplaceAll(script, "PROGRAM", k.Model.Name), "FUNCTION", strings.ReplaceAll(k.Model.Name, "-", "_")))
		}
	}
	return nil
}

// following lists what the last of some words may become: a verb, a flag, a flag's value or a key with its =. Where
// none is listed, shells complete names of files.
func following(node *kong.Node, words []string) (list []string) {
	if len(words) == 0 {
		words = []string{""}
	}
	begun, before := words[len(words)-1], words[:len(words)-1]
	var flag *kong.Flag // whose value comes next
	for _, word := range before {
		flag = flagOf(node, word)
		if i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == word }); i >= 0 {
			node = node.Children[i]
		}
	}
	var all []string
	switch {
	case flag != nil && !flag.IsBool():
		all = slices.DeleteFunc(strings.Split(flag.Enum, ","), func(s string) bool { return s == "" })
	case strings.HasPrefix(begun, "-"):
		for _, f := range slices.Concat(node.AllFlags(true)...) {
			all = append(all, "--"+f.Name)
		}
	case len(node.Children) > 0:
		for _, n := range node.Children {
			all = append(all, n.Name)
		}
	case begun != "" && slices.ContainsFunc(node.Positional, func(p *kong.Positional) bool { return p.Name == "overrides" }):
		for _, key := range config.Keys() {
			if !key.Section {
				all = append(all, key.Name+"=")
			}
		}
	}
	for _, word := range all {
		if strings.HasPrefix(word, begun) {
			list = append(list, word)
		}
	}
	return list
}

// flagOf returns the flag of a node that a word is, or nil.
func flagOf(node *kong.Node, word string) *kong.Flag {
	for _, f := range slices.Concat(node.AllFlags(true)...) {
		if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}
