package family

import (
	"encoding/json"
	"slices"
)

// Weights in FP8, which folder reads as numbers: which of them are, the files show.

// fp8 is a quantization_config of this kind.
type fp8 struct {
	Method  string `json:"quant_method"`
	Format  string `json:"fmt"`
	Block   []int  `json:"weight_block_size"` // null: there is one scale for the whole matrix
	Scales  string `json:"scale_fmt"`
	Experts string `json:"expert_dtype"`
}

// isFP8 reports whether a quantization_config is of weights in FP8.
func isFP8(raw json.RawMessage) bool {
	var q fp8
	return len(raw) > 0 && json.Unmarshal(raw, &q) == nil && q.Method == "fp8"
}

// checkFP8 refuses kinds that are not read.
func checkFP8(c *config) {
	q := fp8{Format: "e4m3", Scales: "float", Experts: "fp8"}
	c.get("quantization_config", &q)
	if block := []int{128, 128}; len(q.Block) > 0 && !slices.Equal(q.Block, block) || q.Format != "e4m3" || q.Scales != "float" || q.Experts != "fp8" {
		c.fail("quantization_config: fp8 in the format %s, with scales of blocks of %v as %s, experts in %s: %w: only e4m3 with fp32 scales of blocks of %v is read", q.Format, q.Block, q.Scales, q.Experts, ErrUnsupported, block)
	}
}
