// Package clitest has laws that every command obeys, for the commands' tests.
package clitest

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/athanor-llm/athanor/internal/cli"
)

func parser(t *testing.T, p *cli.Program) *kong.Kong {
	t.Helper()
	k, err := p.Parser(&cli.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Help: without arguments and with --help a command names its verbs but hidden ones, and each verb its
// flags. command makes the command anew.
func Help(t *testing.T, command func() *cli.Program) {
	help := func(args ...string) string {
		var out, log bytes.Buffer
		if code := command().Execute(args, &out, &log); code != 0 || log.Len() > 0 {
			t.Fatalf("%v: exit code %d, %s", args, code, log.String())
		}
		return out.String()
	}
	k := parser(t, command())
	for _, args := range [][]string{{}, {"--help"}, {"help"}} {
		text := help(args...)
		for _, verb := range k.Model.Children {
			if !verb.Hidden && !strings.Contains(text, verb.Name) {
				t.Errorf("%v does not name %s:\n%s", args, verb.Name, text)
			}
		}
	}
	for _, verb := range k.Model.Children {
		text := help(verb.Name, "--help")
		if asked := help("help", verb.Name); asked != text {
			t.Errorf("help %s is not %s --help:\n%s", verb.Name, verb.Name, asked)
		}
		for _, f := range verb.Flags {
			if !strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s --help does not name --%s:\n%s", verb.Name, f.Name, text)
			}
		}
	}
}

// FlagsKeepValues: no flag of any verb, by its long name or its short one, loses
// the value that follows it, and none without a value takes an argument for one.
func FlagsKeepValues(t *testing.T, command func() *cli.Program) {
	k, short := parser(t, command()), 0
	for _, leaf := range k.Model.Leaves(false) {
		var verbs []string
		for n := leaf; n.Parent != nil; n = n.Parent {
			verbs = slices.Insert(verbs, 0, n.Name)
		}
		for _, f := range slices.Concat(leaf.AllFlags(false)...) {
			names := []string{"--" + f.Name}
			if f.Short != 0 {
				names = append(names, "-"+string(f.Short))
				short++
			}
			for _, name := range names {
				got := cli.FlagsFirst(k, slices.Concat(verbs, []string{"first", name, "4", "last"}))
				want := slices.Concat(verbs, []string{name, "4", "first", "last"})
				if f.IsBool() {
					want = slices.Concat(verbs, []string{name, "first", "4", "last"})
				}
				if !slices.Equal(got, want) {
					t.Errorf("%v: %v, want %v", verbs, got, want)
				}
				if leaf.Parent.DefaultCmd == leaf && !slices.Equal(cli.FlagsFirst(k, slices.Concat(verbs[:1], got[2:])), slices.Concat(verbs[:1], want[2:])) {
					t.Errorf("%v, the last left out, loses the value of %s", verbs, name)
				}
			}
		}
	}
	if short == 0 {
		t.Error("no flag with a short name was found")
	}
}
