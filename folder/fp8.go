package folder

import (
	"strings"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

// Folders of DeepSeek-V3 and others are published in FP8. They are read into the same parameters as others, multiplied by their
// scales, and never written.
//
//	model.layers.0.mlp.up_proj.weight            F8_E4M3
//	model.layers.0.mlp.up_proj.weight_scale_inv  a scale for each block
//	model.layers.0.mlp.up_proj.activation_scale  in some: of the weight's input, which here stays as it is

// scalesOf returns the names of the scales of a tensor in FP8, and of its input; ok is false if it is not in FP8.
func scalesOf(t safetensors.Info) (scales, input string, ok bool) {
	module := strings.TrimSuffix(t.Name, "weight")
	return module + "weight_scale_inv", module + "activation_scale", t.DType == safetensors.F8E4M3
}

// readTensor reads elements of a tensor.
func readTensor(set *safetensors.Set, t safetensors.Info, first int, dst []float32) error {
	if scales, _, ok := scalesOf(t); ok {
		return set.ReadFP8(t.Name, scales, first, dst)
	}
	return set.ReadFloat32(t.Name, first, dst)
}

// inFP8 returns the tensors of scales in a set; there are none where no weight is in FP8.
func inFP8(set *safetensors.Set) map[string]bool {
	list := map[string]bool{}
	for _, t := range set.Tensors() {
		if scales, input, ok := scalesOf(t); ok {
			list[scales], list[input] = true, true
		}
	}
	return list
}
