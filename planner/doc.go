// Package planner turns a job and a machine into a plan.
//
//	Task{machine, graph, spec}.Plan --> search.Result    the fastest plan that fits
//	Task.PlanAny, PlanBy                  in any format of the optimizer's state; by another system's policy
//	Task.WhatIfs, Remedies, MaxSequence   the same search with other numbers
//	Inference(device, graph)              programs of a model that is not trained
//
// Invariants. The machine at hand is measured and runs trials, so its plans may depend on timing; for a described or
// supposed one nothing is measured, and its plans are a function of graph, configuration and description. Whatever a
// configuration says about a plan is checked here and refused with its key and a hint.
//
// Where to look:
//
//	request.go, pins.go, pinpipeline.go, storage.go   what a configuration asks for
//	plan.go, policy.go                                the search and its rivals
//	measure.go, turns.go                              operators timed, and plans tried, on the machine at hand
//	whatif.go, longest.go, levers.go                  other machines, other lengths, other keys
//	inference.go                                      models that are not trained
package planner
