package kernel

import "github.com/athanor-llm/athanor/graph"

func compressSample(m *maker) sample {
	dense, kept, mask := m.masked()
	return sample{t: []Tensor{kept, dense, mask}}
}

func expandSample(m *maker) sample {
	dense, kept, mask := m.masked()
	return sample{t: []Tensor{dense, kept, mask}}
}

// masked draws operands of Compress and Expand: with a mask that keeps any share of the elements, in room for them or for more.
func (m *maker) masked() (dense, kept, mask Tensor) {
	n, share, d := 1+m.IntN(3*linesPerTask*graph.MaskSpan), m.Float64(), []graph.DType{graph.F32, graph.BF16}[m.IntN(2)]
	values := make([]float32, n)
	for i := range values {
		if m.Float64() < share {
			values[i] = 1
		}
	}
	mask = NewTensor(graph.I32, 1, graph.MaskWords(n))
	room := graph.SetMask(mask.I32, values)
	if m.IntN(2) == 0 {
		room = int(graph.KeptRoom(int64(room)))
	}
	return m.mat(d, 1, n, 1), m.mat(d, 1, max(1, room), 1), mask
}
