package folder

import (
	"math"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/model"
)

// CountKept counts for each parameter whose zeros stay (model.Param.Masked) how many of its elements in a folder are not 0, -0 among
// these, by name. It is nil if the folder's weights cannot be read: who loads them says why.
func CountKept(dir string, m *model.Model) map[string]int64 {
	set, err := safetensors.OpenFolder(dir)
	if err != nil {
		return nil
	}
	defer set.Close()
	counts, room := map[string]int64{}, make([]float32, 1<<20)
	for _, p := range m.Params() {
		n := int(p.Elems())
		for first := 0; p.Masked && first < n; first += len(room) {
			piece := room[:min(len(room), n-first)]
			if ReadParam(set, p, first, piece) != nil {
				return nil
			}
			for _, v := range piece {
				if math.Float32bits(v) != 0 {
					counts[p.Name]++
				}
			}
		}
	}
	return counts
}
