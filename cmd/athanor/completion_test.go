package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/athanor-llm/athanor/internal/cli"
)

// TestCompletion: what shells ask for completes verbs, flags, their values and keys, and nothing that does not begin as
// the word does; each script is for this program, and bash can read its.
func TestCompletion(t *testing.T) {
	for words, want := range map[string]string{
		"pla":                "plan",
		"plan x limits.disk": "limits.disk= limits.disk_path= limits.disk_endurance=",
		"plan x --pol":       "--policy",
		"draw x --view d":    "device disk",
		"plan --policy ":     "",
		"plan x ":            "",
		"bench bud":          "budgets",
	} {
		got := call(append([]string{"completion", "words", "--"}, strings.Split(words, " ")...)...).must(t, 0).stdout
		if strings.Join(strings.Fields(got), " ") != want {
			t.Errorf("%q is completed to %q", words, got)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		script := call("completion", shell).must(t, 0).stdout
		if !strings.Contains(script, "athanor completion "+shell) || strings.Contains(script, "PROGRAM") || strings.Contains(script, "====") {
			t.Errorf("the script for %s is\n%s", shell, script)
		}
		if _, err := exec.LookPath(shell); err != nil || shell == "powershell" {
			continue
		}
		read := exec.Command(shell, "-n")
		read.Stdin = strings.NewReader(script)
		if out, err := read.CombinedOutput(); err != nil {
			t.Errorf("%s cannot read its script: %v\n%s", shell, err, out)
		}
	}
	call("completion", "tcsh").must(t, 2, "bash")
}

// TestManual: the manual page has each verb and each flag.
func TestManual(t *testing.T) {
	page := call("man").must(t, 0).stdout
	k, err := command().Parser(&cli.Flags{})
	check(t, err)
	has := func(text string) {
		if !strings.Contains(page, strings.ReplaceAll(text, "-", `\-`)) {
			t.Errorf("the page does not name %s", text)
		}
	}
	check(t, kong.Visit(k.Model, func(n kong.Visitable, next kong.Next) error {
		switch n := n.(type) {
		case *kong.Node:
			if n.Hidden {
				return nil // with all that is in it
			}
			has(n.Name)
		case *kong.Flag:
			has("--" + n.Name)
		}
		return next(nil)
	}))
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "'") {
			t.Errorf("a line of text is a command: %s", line)
		}
	}
}
