// Package run carries a training run from its configuration to its checkpoints. It
// is the only package that combines all the others; package cmd/athanor adds flags
// and printing.
//
//	Config --Prepare--> Setup                    text, tokenizer, model, graph
//	Config --FindMachine--> Machine              measured rates, capacities
//	Machine.Plan(graph, config) --> plan.Result  the fastest plan that fits
//	Machine.Programs --> Prove                   one program per rank, verified
//	NewTrainer(setup, plan, programs, machine) --> Trainer.Run
//
// Ownership. A Setup owns the memory-mapped tokens. A Machine owns no devices: it
// is a description with limits, and Machine.Open opens devices for given programs.
// A Session runs several steps (training, evaluation) in one set of arenas on the
// devices of all ranks; the first step owns the parameters. It does not close the
// devices. A Trainer owns the session, the devices, the metrics log and the lock on
// the run's folder. Between steps, the only copy of weights and moments is in the
// arenas; Session.Read and Write move them by parameter.
//
// Resumption. A checkpoint holds weights and moments in fp32, the step, the data
// cursor and the identity of the run. Everything else that affects a result is a
// function of these and the configuration: the learning rate of the step number,
// random rounding of seed, step, parameter and element. Frozen weights that the
// arenas hold in bf16 are copied from their source. So a resumed run continues bit
// for bit under the same plan, and under any other that keeps the order of sums.
// Plan and memory limits are therefore not part of the identity (identity.go), and
// a resumed run may be planned anew. Checkpoints that are not whole are skipped,
// and lines of metrics.jsonl after the checkpoint's step are dropped.
//
// Where to look:
//
//	setup.go, tokenizer.go               what is trained, on which text
//	machine.go, devices.go, described.go what it runs on
//	pins*.go, policies.go, policy.go     what constrains and seeds the search
//	prove.go, agree.go, session.go       verified programs, all ranks in step
//	train.go, metrics.go, trace.go       the loop; validation between steps
//	save.go, identity.go, out.go         checkpoints, resumption, refusals
//	folder.go, evaluate.go               losses and gradients of a model folder
//	generate.go, sample.go               decoding: cache, prompt, sampling
//	bench*.go, turns.go                  operators, steps, budgets, plans in turn
//	whatif.go, longest.go, ablation.go   planning for other machines and lengths
package run
