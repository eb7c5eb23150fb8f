// Package bench measures, for people: how close operators come to what a machine can do,
// and whether predictions hold.
//
//	NewOperators(cores) --> Operators.Run(Case) --> Rate   against measured peaks
//	Breakdown(program, step)       a measured step by operator, against the same peaks
//	Budgets.Run                    plans on the machine at hand, predicted and run
//
// Ownership. Budgets receives a machine and opens and closes its devices itself; while
// it runs it changes the machine's device limit, and restores it. Results are handed over
// one by one, as they come, and their JSON is stable.
//
// Invariants. Machines are shared and clocks vary, so whatever is compared is
// measured in turn: an operator with the peak that bounds it, and a prediction with
// operators timed before. Nothing here is used by training or planning, and package train
// is not used here.
//
// Where to look:
//
//	operators.go, cases.go   operators against peaks
//	step.go                  a step by operator
//	budgets.go               plans under budgets
package bench
