// Package run is the training run: steps, evaluations, checkpoints, metrics,
// signals.
package run
