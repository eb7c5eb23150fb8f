package model

import "fmt"

// Mup has constants by which a model multiplies what its matrices make, as its hyperparameters came from a smaller one (muP,
// 2203.03466): Falcon-H1. 0: not at all. They are applied to what matrices without biases make, whose inputs or results a family's
// code may multiply instead: that is the same but for rounding.
type Mup struct {
	Embedding float64
	Head      float64    // of logits
	Attention float64    // of what attention reads
	Keys      float64    // of keys, besides
	Mixed     float64    // of what attention adds to the residual stream
	Gates     float64    // of the feed-forward's
	Down      float64    // of what the feed-forward adds to the stream
	Scan      float64    // of what a scan reads
	Scans     [5]float64 // of z, x, b, c and time steps, besides
	Scanned   float64    // of what a scan adds to the stream
}

// Some reports whether there are any.
func (x *Mup) Some() bool { return *x != Mup{} }

// check returns what is wrong with the constants.
func (x *Mup) check(m *Model) error {
	all := append([]float64{x.Embedding, x.Head, x.Attention, x.Keys, x.Mixed, x.Gates, x.Down, x.Scan, x.Scanned}, x.Scans[:]...)
	for _, f := range all {
		if x.Some() && !(f > 1e-6 && f < 1e6) {
			return fmt.Errorf("the multipliers %+v are out of range; hint: use positive numbers below 1e6", *x)
		}
	}
	if x.Some() && (m.QKVBias || m.OutBias || m.MLPBias || m.Mamba.Bias || m.FusedQKV() || m.FusedGate()) {
		return fmt.Errorf("%s multiplies what its matrices make, which is not built beside biases; hint: use models without biases", m.Family)
	}
	return nil
}
