package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// Manual is the verb that prints the manual page, made from the verbs and flags that the program has.
type Manual struct{}

// Run prints the page in the language of man.
func (*Manual) Run(c *Context, k *kong.Context) error {
	name, about := k.Model.Name, k.Model.Help
	fmt.Fprintf(c.Stdout, ".TH %s 1\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), name, roff(about))
	fmt.Fprintf(c.Stdout, ".SH SYNOPSIS\n.B %s\n.I VERB\n[flags and arguments in any order]\n.SH VERBS\n", name)
	for _, verb := range k.Model.Leaves(true) {
		fmt.Fprintf(c.Stdout, ".SS %s\n%s\n", roff(strings.TrimPrefix(verb.FullPath(), name+" ")), roff(verb.Help))
		for _, p := range verb.Positional {
			option(c.Stdout, strings.ToUpper(p.Name), p.Help)
		}
		for _, f := range verb.Flags {
			option(c.Stdout, flagged(f), f.Help)
		}
	}
	fmt.Fprintln(c.Stdout, ".SH FLAGS OF ALL VERBS")
	for _, f := range k.Model.Flags {
		option(c.Stdout, flagged(f), f.Help)
	}
	fmt.Fprintln(c.Stdout, ".SH EXIT STATUS")
	for _, row := range exitMeanings {
		option(c.Stdout, fmt.Sprint(row.code), row.means)
	}
	_, err := fmt.Fprintf(c.Stdout, ".SH VERSION\n%s\n", roff(k.Model.Vars()["version"]))
	return err
}

// exitMeanings says what the exit codes mean.
var exitMeanings = []struct {
	code  int
	means string
}{
	{0, "Done."},
	{exitError, "An error."},
	{ExitUsage, "Wrong usage, or a faulty configuration."},
	{ExitMisfit, "It does not fit."},
	{exitLost, "A rank is lost."},
	{exitNumeric, "Numbers are not finite."},
	{ExitSaved, "Stopped on request, with everything saved: the same command continues."},
}

// flagged is a flag as it is written.
func flagged(f *kong.Flag) string {
	text := "--" + f.Name
	if f.Short != 0 {
		text = "-" + string(f.Short) + ", " + text
	}
	if !f.IsBool() {
		text += "=" + f.FormatPlaceHolder()
	}
	return text
}

// option writes a term and what it means.
func option(w io.Writer, term, means string) {
	fmt.Fprintf(w, ".TP\n.B %s\n%s\n", roff(term), roff(means))
}

// roff escapes what would be commands in the language of man.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}
