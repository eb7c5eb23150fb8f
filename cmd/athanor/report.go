package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/watch"
)

type reportCmd struct {
	Runs []string `arg:"" help:"Folders of runs, or folders that hold some." placeholder:"RUN"`
	HTML string   `name:"html" help:"Also write a page with the table, curves, what differs and rooflines, which needs nothing else." placeholder:"FILE"`
}

// Help is what report --help says besides the flags.
func (reportCmd) Help() string {
	return "Runs on different machines, compared by MFU and by the share of their roof: of the rate that arithmetic and memory together allow at the step's intensity. The machine is what a run has in its folder, so a copy of that will do."
}

func (v *reportCmd) Run(c *cli.Context) error {
	if err := cli.CanWrite(nil, v.HTML); err != nil {
		return err
	}
	set, err := watch.Open(v.Runs)
	if err != nil {
		return err
	}
	rows := set.Rows()
	if len(rows) == 0 {
		return cli.UsageError("report: there is no run in these folders; hint: name the folder `out` of a run")
	}
	if v.HTML != "" {
		if err := cli.WriteTo(v.HTML, set.WritePage); err != nil {
			return err
		}
	}
	if c.JSON {
		return c.Print(map[string]any{"runs": rows})
	}
	return printRows(c, rows)
}

// printRows prints runs as a table, then their machines.
func printRows(c *cli.Context, rows []watch.Row) error {
	w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s\trun\t\n", strings.Join(watch.Columns(), "\t"))
	for i := range rows {
		fmt.Fprintf(w, "%s\t%s\t\n", strings.Join(rows[i].Cells(), "\t"), rows[i].Run)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.Stdout)
	for _, r := range rows {
		if r.Machine != "" {
			c.Textf("%s: %s\n", r.Run, r.Machine)
		}
	}
	return nil
}
