package train

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
)

// readLengths fills dst with what magnitudes of a weight's rows begin with (see model.LoRA): the lengths of these rows as the run holds
// them, in fp32, bf16 or 4 bits. dst has all of them.
func readLengths(t *Run, from *folder.Source, p model.Param, dst []float32) error {
	params := t.Session.Graph.Params
	w := params[slices.IndexFunc(params, func(q model.Param) bool { return q.Name == model.DirectedBy(p) })]
	const each = 1 << 20 // numbers in memory at a time
	step := max(each/w.Cols, 1)
	rows := make([]float32, min(step, w.Rows)*w.Cols)
	for first := 0; first < w.Rows; first += step {
		piece := rows[:min(step, w.Rows-first)*w.Cols]
		if err := from.Read(w, first*w.Cols, piece); err != nil {
			return folder.WeightsError(t.Setup.folderOf(w), err)
		}
		if w.NF4 {
			kernel.UnpackNF4(piece, kernel.PackNF4(piece, w.Cols), w.Cols)
		}
		for i := range len(piece) / w.Cols {
			sum := 0.0
			for _, v := range piece[i*w.Cols:][:w.Cols] {
				if t.Setup.Graph.DType == graph.BF16 {
					v = float16.FromBF16(float16.ToBF16(v))
				}
				sum += float64(v) * float64(v)
			}
			dst[first+i] = float32(math.Sqrt(sum))
		}
	}
	return nil
}
