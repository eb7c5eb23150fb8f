package session

import (
	"fmt"

	"github.com/athanor-llm/athanor/graph"
)

// Teacher is what a teacher says of a batch: for each token the ids of its most probable next tokens and their log-probabilities,
// graph.ColumnsOf of them. The zero value says nothing, as in validations.
type Teacher struct {
	IDs  []int32
	Logs []float32
}

// feedTeacher writes it for step i, where the graph has a teacher. A token of which nothing is said has negative ids.
func feedTeacher(s *Session, i, tokens int, said Teacher) error {
	cols := graph.ColumnsOf(s.Graph, s.Graph.TeacherIDs)
	if said.IDs == nil {
		said = Teacher{make([]int32, tokens*cols), make([]float32, tokens*cols)}
		for k := range said.IDs {
			said.IDs[k] = -1
		}
	}
	if len(said.IDs) != tokens*cols || len(said.Logs) != len(said.IDs) {
		return fmt.Errorf("a teacher says %d ids and %d log-probabilities of %d tokens, of which each has %d", len(said.IDs), len(said.Logs), tokens, cols)
	}
	for r := range s.ranks {
		if err := s.ranks[r].feedTeacher(i, cols, said); err != nil {
			return s.lost(r, err)
		}
	}
	return nil
}

func (k *rank) feedTeacher(i, cols int, said Teacher) error {
	const ids, logs = "batch.teacher.ids", "batch.teacher.logs"
	e, p := k.engines[i], k.progs[i]
	n := e.BufferLen(ids) / cols
	if n == 0 { // another rank computes the loss
		return nil
	}
	words, err := rowsOfRank(p, ids, said.IDs, n, cols, &k.batch)
	if err == nil {
		err = e.WriteInts(ids, words)
	}
	if err != nil {
		return err
	}
	numbers, err := rowsOfRank(p, logs, said.Logs, n, cols, &k.floats)
	if err == nil {
		err = e.WriteFloats(logs, numbers)
	}
	return err
}
