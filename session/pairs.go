package session

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/program"
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
		if err := s.ranks[r].write(i, "ratios", p.reference); err != nil {
			return err
		}
	}
	copy(p.reference, reference)
	for r := range s.ranks {
		if err := s.ranks[r].write(i, "batch.reference", p.reference); err != nil {
			return err
		}
	}
	return nil
}

// write fills a buffer of step i, if the rank has it, with the rank's rows of a batch.
func (k *rank) write(i int, buffer string, all []float32) error {
	e := k.engines[i]
	n := e.BufferLen(buffer)
	if n == 0 {
		return nil
	}
	rows, err := rowsOfRank(k.progs[i], buffer, all, n, &k.floats)
	if err != nil {
		return err
	}
	return e.WriteFloats(buffer, rows)
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
		if err := p.add(s.ranks[r].engines[i], s.ranks[r].progs[i]); err != nil {
			return nil, err
		}
	}
	return p.ratios, nil
}

// add adds a rank's ratios, which belong to its rows of the batch.
func (p *pairs) add(e *exec.Engine, prog *program.Program) error {
	n := e.BufferLen("ratios")
	if n == 0 {
		return nil
	}
	p.read = slices.Grow(p.read[:0], n)[:n]
	if err := e.ReadBuffer("ratios", p.read); err != nil {
		return err
	}
	for k, x := range p.read {
		p.ratios[prog.GlobalRow(k)] += float32(x)
	}
	return nil
}
