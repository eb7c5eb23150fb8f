package folder

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/model"
)

// Published folders of gpt-oss hold the experts in 4 bits, as MXFP4. They are read into the same
// parameters as experts in bf16, without rounding, and never written.
//
//	model.layers.0.mlp.experts.gate_up_proj          [E, D, 2F], or
//	model.layers.0.mlp.experts.gate_up_proj_blocks   [E, 2F, D/32, 16]
//	model.layers.0.mlp.experts.gate_up_proj_scales   [E, 2F, D/32]
//
// Known weakness: an expert is transposed twice, to the order of the plain tensor and back.

// packed returns the two tensors of a parameter that files hold in MXFP4.
func packed(set *safetensors.Set, p model.Param) (blocks, scales safetensors.Info, ok bool) {
	if !p.Transposed {
		return blocks, scales, false
	}
	t := p.Tensors()[0]
	if _, plain := lookup(set, t); plain {
		return blocks, scales, false
	}
	blocks, ok = lookup(set, model.Tensor{Name: t.Name + "_blocks"})
	if ok {
		scales, ok = lookup(set, model.Tensor{Name: t.Name + "_scales"})
	}
	return blocks, scales, ok
}

// readPacked reads a whole parameter from such tensors, in the order of the plain one. If dst is
// empty, it only checks their shapes.
func readPacked(set *safetensors.Set, p model.Param, blocks, scales safetensors.Info, dst []float32) error {
	const group = 32 // numbers that share a scale
	shape := p.Tensors()[0].Shape
	experts, ins, outs := shape[0], shape[1], shape[2]
	if ins%group != 0 {
		return fmt.Errorf("%s has groups of %d numbers, but a row has %d according to config.json, which is not a multiple; hint: check that the weights and config.json are of the same model", blocks.Name, group, ins)
	}
	for _, t := range []struct {
		safetensors.Info
		want []int
	}{{blocks, []int{experts, outs, ins / group, group / 2}}, {scales, []int{experts, outs, ins / group}}} {
		if !slices.Equal(t.Shape, t.want) || t.DType != safetensors.U8 {
			return fmt.Errorf("%s has shape %v and data type %s, but config.json requires %v, and MXFP4 is stored as U8; hint: check that the weights and config.json are of the same model", t.Name, t.Shape, t.DType, t.want)
		}
	}
	if len(dst) == 0 {
		return nil
	}
	one := model.Param{Rows: outs, Cols: ins, Experts: 1, Transposed: true}
	expert := make([]float32, one.Elems())
	for e := range experts {
		if err := set.ReadMXFP4(blocks.Name, scales.Name, e*len(expert), expert); err != nil {
			return err
		}
		one.ToFile(dst[e*len(expert):][:len(expert)], expert)
	}
	return nil
}
