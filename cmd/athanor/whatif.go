package main

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/search"
)

// whatIfText describes what-ifs, a line each: how fast, and with what. fits says whether a plan fits now.
func whatIfText(list []search.WhatIf, fits bool) string {
	var b strings.Builder
	for _, x := range list {
		how, gain, rate := "-", "", ""
		if x.Seconds > 0 {
			how, gain = fmt.Sprintf("%.4g s", x.Seconds), fmt.Sprintf("%+.1f %%", 100*x.Gain)
			rate = stat.Number(x.TokenRate, 0) + " tokens/s"
		}
		if x.AtMost {
			how = "at most " + how
		}
		fmt.Fprintf(&b, "  %16s", how)
		if fits {
			fmt.Fprintf(&b, "  %8s", gain)
		}
		fmt.Fprintf(&b, "  %18s  %s\n", rate, supposed(&x))
	}
	return b.String()
}

// supposed says what is changed and what that brings; of a run with other results, what they cost.
func supposed(x *search.WhatIf) string {
	switch {
	case x.Price != "" && x.Seconds > 0:
		return x.Set + ": other results, " + x.Price
	case x.Price != "":
		return x.Set + ": " + x.Brings
	case x.Set != "":
		return fmt.Sprintf("%s (%s): %s", x.Change, x.Set, x.Brings)
	}
	return x.Change + ": " + x.Brings
}
