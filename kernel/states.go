package kernel

// keptStates says how states of heads are kept for the backward pass, one after every so many tokens of a document: in as many rows, in
// each of which a head has so many columns. See graph.DeltaKept and graph.ScanKept.
type keptStates struct{ kept, cols int }

// stateAt calls f for the parts of a head's state that rows from first on hold.
func (s *keptStates) stateAt(states *Tensor, first, h int, f func(row []float32, from int)) {
	for i := range s.kept {
		f(states.row(first+i, h*s.cols, (h+1)*s.cols), i*s.cols)
	}
}

// keepState stores a state in the rows from first on.
func (s *keptStates) keepState(states *Tensor, first, h int, state []float32) {
	s.stateAt(states, first, h, func(row []float32, from int) {
		clear(row[copy(row, state[min(from, len(state)):]):])
	})
}

// loadState is the inverse of keepState.
func (s *keptStates) loadState(states *Tensor, first, h int, state []float32) {
	s.stateAt(states, first, h, func(row []float32, from int) {
		copy(state[min(from, len(state)):], row)
	})
}

// clearStates clears rows that hold no state.
func (s *keptStates) clearStates(states *Tensor, first, end, h int) {
	for r := first; r < end; r++ {
		clear(states.row(r, h*s.cols, (h+1)*s.cols))
	}
}
