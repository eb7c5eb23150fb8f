package session

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Pairs: the inputs and outputs that a step of preference optimisation has besides tokens. They are stored by token, with each
// document's number at its first token, see graph.Preference.

// pairs holds the buffers for these.
type pairs struct {
	given  []float32 // what is written at a time
	read   []float64 // a rank's ratios
	ratios []float32
}

// feedPairs writes the reference's log-probabilities for the documents of a batch of tokens, and their verdicts, and clears their ratios,
// because in a bidirectional pipeline each rank writes only the ratios of its own sequences.
func (s *Session) feedPairs(i, tokens int, sc Scalars) error {
	for _, in := range []struct {
		buffer string
		all    []float32
	}{{"ratios", nil}, {"batch.reference", sc.Reference}, {"batch.verdicts", sc.Verdicts}} {
		if err := feedNumbers(s, i, tokens, in.buffer, in.all); err != nil {
			return err
		}
	}
	return nil
}

// feedNumbers writes a number for each of a batch's tokens, 0 if none are given, to a buffer of the ranks that have it.
func feedNumbers(s *Session, i, tokens int, buffer string, all []float32) error {
	if all != nil && len(all) != tokens {
		return fmt.Errorf("%s: %d numbers are given for a batch of %d tokens", buffer, len(all), tokens)
	}
	p := &s.pairs
	p.given = slices.Grow(p.given[:0], tokens)[:tokens]
	clear(p.given)
	copy(p.given, all)
	for r := range s.ranks {
		if err := s.ranks[r].write(i, buffer, p.given); err != nil {
			return s.lost(r, err)
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
	rows, err := rowsOfRank(k.progs[i], buffer, all, n, 1, &k.floats)
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
	n := len(p.given)
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

// clearLogits clears the logits of step i, because in a bidirectional pipeline each rank writes only those of its own sequences.
func clearLogits(s *Session, i int) error {
	p := &s.pairs
	for r := range s.ranks {
		e := s.ranks[r].engines[i]
		n := e.BufferLen("logits")
		if n == 0 {
			continue
		}
		p.given = slices.Grow(p.given[:0], n)[:n]
		clear(p.given)
		if err := e.WriteFloats("logits", p.given); err != nil {
			return s.lost(r, err)
		}
	}
	return nil
}

// Logits returns the logits of the latest step i of a model that chooses among labels, a row for each token of its batch.
func Logits(s *Session, i int) ([]float32, error) {
	cols := graph.ColumnsOf(s.Graph, s.Graph.Logits)
	var all []float32
	for r := range s.ranks {
		e, prog := s.ranks[r].engines[i], s.ranks[r].progs[i]
		read := make([]float64, e.BufferLen("logits"))
		if len(read) == 0 || r%s.Graph.Shared() > 0 { // ranks that share matrices have the same
			continue
		}
		if err := e.ReadBuffer("logits", read); err != nil {
			return nil, s.lost(r, err)
		}
		for k := range len(read) / cols {
			row := prog.GlobalRow(k)
			if more := (row+1)*cols - len(all); more > 0 {
				all = append(all, make([]float32, more)...)
			}
			for c, x := range read[k*cols:][:cols] {
				all[row*cols+c] += float32(x)
			}
		}
	}
	return all, nil
}
