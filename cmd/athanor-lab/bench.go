package main

type benchCmd struct {
	Sweep    benchSweepCmd    `cmd:"" help:"Run the chosen plan and its rivals with several numbers of ranks, links and budgets."`
	Swap     benchSwapCmd     `cmd:"" help:"Compare ways to keep, swap and recompute activations, at several lengths and budgets."`
	Policies benchPoliciesCmd `cmd:"" help:"Compare the search's plans with those of other systems, simulated."`
}
