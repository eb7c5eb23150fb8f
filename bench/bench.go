// Package bench measures and compares, for people: how close operators come to what a
// machine can do, whether predictions hold, and how plans compare with others.
//
//	NewOperators(cores) --> Operators.Run(Case) --> Rate   against measured peaks
//	Breakdown(program, step)       a measured step by operator, against the same peaks
//	Budgets, Sweep, Swaps  .Run    plans on the machine at hand, predicted and run
//	Contest.Hold, Ablate           plans on described machines, simulated
//
// Ownership. Runs receive a machine and open and close its devices themselves; while
// they run they change its device limit, and restore it. Results are handed over one
// by one, as they come, and their JSON is stable.
//
// Invariants. Machines are shared and clocks vary, so whatever is compared is
// measured in turn: an operator with the peak that bounds it, a plan with its rivals
// step by step, and a prediction with operators timed a few steps before. Nothing
// here is used by training or planning, and package run is not used here.
//
// Where to look:
//
//	operators.go, cases.go          operators against peaks
//	step.go                         a step by operator
//	budgets.go, sweep.go, swap.go   plans under budgets, ranks, links and lengths
//	policies.go, ablation.go        other systems' decisions, compared with the search's
package bench
