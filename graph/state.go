package graph

import "github.com/athanor-llm/athanor/internal/float16"

// State that is no weight, such as a router's bias (see model.Param.State), keeps all bits of fp32 also where weights are bf16:
// a router's biases may all be about 8, and what decides is how they differ. As memory has elements of one type, such a vector is
// then three rows of bf16, whose sum, from the first on, is the vector: 24 bits in three times 8.
//
//	8.1374   8.125 + 0.0124 + 0.00003...

// StateRows returns the number of rows in which a vector of state is held.
func StateRows(d DType) int {
	if d == BF16 {
		return 3
	}
	return 1
}

// SplitState returns the rows of a vector that is held in n of them.
func SplitState(x []float32, n int) []float32 {
	if n == 1 {
		return x
	}
	rows := make([]float32, n*len(x))
	for i, rest := range x {
		for r := range n {
			part := float16.FromBF16(float16.ToBF16(rest))
			rows[r*len(x)+i] = part
			rest -= part
		}
	}
	return rows
}

// JoinState sets a vector to what SplitState divided.
func JoinState(x, rows []float32) {
	clear(x)
	for i, part := range rows {
		x[i%len(x)] += part
	}
}
