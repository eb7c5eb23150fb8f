// Package compare measures plans beside each other: with plans that a user might set by
// hand, with other ways to treat activations, and with what other systems decide.
//
//	Sweep.Run      the chosen plan and its rivals, run, over ranks, links and budgets
//	Swaps.Run      activations kept, swapped or recomputed, run, over lengths and budgets
//	Contest.Hold   the policies of other systems, tuned, on described machines, simulated
//	Ablate         ways to treat a long sequence's activations, as programs, simulated
//
// Ownership. Runs open and close the devices themselves; while they run they change the
// machine's device limit, and restore it. Results are handed over one by one, as they come,
// and their JSON is stable.
//
// Invariants. Machines are shared and clocks vary, so whatever is compared is measured in
// turn: a plan with its rivals step by step, and a prediction with operators timed a few
// steps before.
package compare
