package family

import "github.com/athanor-llm/athanor/model"

// qwen2VL is the text part of Qwen2-VL (2409.12191), qwen25VL that of Qwen2.5-VL (2502.13923), qwen3VL that of Qwen3-VL (2511.21631):
// Qwen2 and Qwen3, with positions on three axes that are the same for text.
var (
	qwen2VL = family{
		Family: model.Family{Name: "qwen2_vl_text", Tensors: llamaNames}, class: "Qwen2VLTextModel",
		fixed: model.Model{QKVBias: true}, table: qwen2VLTable,
	}
	qwen25VL = family{
		Family: model.Family{Name: "qwen2_5_vl_text", Tensors: llamaNames}, class: "Qwen2_5_VLTextModel",
		fixed: model.Model{QKVBias: true}, table: qwen2VLTable,
	}
	qwen3VL = family{
		Family: model.Family{Name: "qwen3_vl_text", Tensors: llamaNames}, class: "Qwen3VLTextModel",
		fixed: model.Model{QKNorm: model.QKNormHeads},
		table: changed(llamaTable,
			row{key: "vocab_size", field: vocab, def: 151936},
			row{key: "head_dim", field: headDim, def: 128},
			row{key: "num_key_value_heads", field: kvHeads, def: 32, null: asHeads},
			row{key: "intermediate_size", field: feedForward, def: 22016},
			row{key: "max_position_embeddings", field: maxPositions, def: 128000},
			row{key: "rope_theta", field: ropeTheta, def: 5e5},
			attentionBias,
			rope(rotary{mrope: true}),
		),
	}
)

var qwen2VLTable = changed(without(llamaTable, "head_dim"),
	row{key: "vocab_size", field: vocab, def: 152064},
	row{key: "num_hidden_layers", field: layers, def: 80},
	row{key: "hidden_size", field: width, def: 8192},
	row{key: "num_attention_heads", field: heads, def: 64},
	row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
	row{key: "head_dim", read: (*config).perHead, write: writeHeadDim},
	row{key: "intermediate_size", field: feedForward, def: 29568},
	row{key: "max_position_embeddings", field: maxPositions, def: 32768},
	row{key: "rms_norm_eps", field: normEps, def: 1e-5},
	row{key: "rope_theta", field: ropeTheta, def: 1e6},
	qwenVLWindows,
	rope(rotary{mrope: true}),
)

// qwenVLWindows are Qwen's keys for windows, where max_window_layers is 80 if it is missing.
var qwenVLWindows = row{key: "use_sliding_window", read: func(c *config, m *model.Model) { c.qwenWindows(m, 80) }, write: writeWindows}
