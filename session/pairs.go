package session

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/exec"
)

// Pairs: the inputs and outputs that a step of preference optimisation has besides tokens. They are stored by token, with each
// document's number at its first token, see graph.Preference.

// pairs holds the buffers for these.
type pairs struct {
	reference []float32
	read      []float64 // a rank's ratios
	ratios    []float32
}

// feedPairs writes the reference's log-probabilities for the pairs of a batch of tokens, and clears their ratios, because
// in a bidirectional pipeline each rank writes only the ratios of its own sequences.
func (s *Session) feedPairs(i, tokens int, reference []float32) error {
	p := &s.pairs
	if reference != nil && len(reference) != tokens {
		return fmt.Errorf("%d log-probabilities of the reference are given for a batch of %d tokens", len(reference), tokens)
	}
	p.reference = slices.Grow(p.reference[:0], tokens)[:tokens]
	clear(p.reference)
	for r := range s.ranks {
		if err := s.ranks[r].write(i, "ratios", 0, p.reference); err != nil {
			return err
		}
	}
	copy(p.reference, reference)
	for r := range s.ranks {
		k := &s.ranks[r]
		if err := k.write(i, "batch.reference", k.progs[i].BatchRow, p.reference); err != nil {
			return err
		}
	}
	return nil
}

// write fills a buffer of step i, if the rank has it, with the rows of a batch from row first on.
func (k *rank) write(i int, buffer string, first int, all []float32) error {
	n := k.engines[i].BufferLen(buffer)
	if n == 0 {
		return nil
	}
	if first+n > len(all) {
		return fmt.Errorf("%s: rank %d needs rows %d to %d, but there are only %d", buffer, k.progs[i].Rank, first, first+n, len(all))
	}
	return k.engines[i].WriteFloats(buffer, all[first:first+n])
}

// ratios collects the ratios of the latest step i, if it is a step on pairs.
func (s *Session) ratios(i int) ([]float32, error) {
	if s.Graph.Preference() == 0 {
		return nil, nil
	}
	p := &s.pairs
	n := len(p.reference)
	p.ratios = slices.Grow(p.ratios[:0], n)[:n]
	clear(p.ratios)
	for r := range s.ranks {
		if err := p.add(s.ranks[r].engines[i], s.ranks[r].progs[i].BatchRow); err != nil {
			return nil, err
		}
	}
	return p.ratios, nil
}

// add adds a rank's ratios, which belong to the rows of the batch from row first on.
func (p *pairs) add(e *exec.Engine, first int) error {
	n := e.BufferLen("ratios")
	if n == 0 {
		return nil
	}
	p.read = slices.Grow(p.read[:0], n)[:n]
	if err := e.ReadBuffer("ratios", p.read); err != nil {
		return err
	}
	for k, x := range p.read {
		p.ratios[first+k] += float32(x)
	}
	return nil
}
