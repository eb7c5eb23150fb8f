package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/suggest"
)

type keysCmd struct {
	Name string `arg:"" optional:"" help:"Only this key, or the keys of this section." placeholder:"KEY"`
}

func (v *keysCmd) Run(c *cli.Context) error {
	var list []config.Key
	var names []string
	for _, k := range config.Keys() {
		names = append(names, k.Name)
		if v.Name == "" || k.Name == v.Name || strings.HasPrefix(k.Name, v.Name+".") {
			list = append(list, k)
		}
	}
	if len(list) == 0 {
		return cli.UsageError(fmt.Sprintf("keys: there is no %q%s", v.Name, cmp.Or(suggest.Hint(v.Name, names), "; hint: athanor keys lists all")))
	}
	if c.JSON {
		return c.Print(struct {
			Keys []config.Key `json:"keys"`
		}{list})
	}
	const usual = 120 // columns
	if v.Name == "" {
		for _, line := range wrap("All keys with their defaults. An empty value means required, derived from others, none or 0. A run needs "+config.Required+".", cmp.Or(c.Columns, usual)-len("# ")) {
			fmt.Fprintln(c.Stdout, "#", line)
		}
		fmt.Fprintln(c.Stdout)
	}
	for _, k := range list {
		fmt.Fprint(c.Stdout, keyLines(k, cmp.Or(c.Columns, usual)))
	}
	return nil
}

// keyLines returns a key as YAML, with its description as a comment in a separate column, so many columns wide in all.
func keyLines(k config.Key, columns int) string {
	const column, least = 34, 30
	width := max(columns-column-len(" # "), least)
	line := strings.Repeat("  ", strings.Count(k.Name, ".")) + k.Name[strings.LastIndex(k.Name, ".")+1:] + ":"
	if k.Default != "" {
		line += " " + k.Default
	}
	var lines strings.Builder
	for _, said := range wrap(k.Help, width) {
		fmt.Fprintf(&lines, "%-*s # %s\n", column, line, said)
		line = ""
	}
	if k.Help == "" {
		lines.WriteString(line + "\n")
	}
	return lines.String()
}

// wrap divides a text into lines between words.
func wrap(text string, width int) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if n := len(lines); n > 0 && len(lines[n-1])+1+len(word) <= width {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
