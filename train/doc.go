// Package train carries a training run from its job to its checkpoints. What
// it leaves, folders of models and adapters, is for package folder to open.
//
//	Prepare(spec) --> Setup                      text, tokenizer, model, graph
//	planner.Task.Plan, Programs                  for a machine
//	Open(setup, plan, programs, machine) --> Run.Train
//
// Ownership. A Setup owns the memory-mapped tokens. A Run owns the session, the
// devices, the metrics log and the lock on the run's folder. Between steps, the only
// copy of weights and moments is in the session's arenas.
//
// Resumption. A checkpoint holds weights and moments as the run does, in fp32 or in
// bf16 (state.go), the step, the data cursor, the gradient norms of the latest steps
// and the identity of the run. Everything else that affects a result is a function of
// these and the configuration: the learning rate depends on the step number, random rounding
// on seed, update, parameter and element. Frozen weights that the arenas hold rounded are
// copied from their source. So a resumed run continues bit for bit under the same plan,
// and under any other that keeps the order of sums. Plan and memory limits are
// therefore not part of the identity (identity.go), and a resumed run may be planned
// anew. Checkpoints that are not whole are skipped, and lines of metrics.jsonl after
// the checkpoint's step are dropped.
//
// Where to look:
//
//	setup.go, tokenizer.go                  what is trained, on which text
//	train.go                                the loop; validation between steps
//	guard.go, numeric.go                    steps that are skipped; what made numbers not finite
//	metrics.go, tensorboard.go, trace.go    what a run reports
//	save.go, identity.go, out.go            checkpoints, resumption, refusals
//	state.go                                weights and moments as tensors of files
//	preference.go, rewards.go               pairs: the reference's log-probabilities, rewards
//	unpaired.go                             single answers: their verdicts, the estimate of the KL
//	labels.go                               texts with labels: the head, how many are guessed
package train
