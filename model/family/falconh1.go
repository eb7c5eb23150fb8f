package family

import "github.com/athanor-llm/athanor/model"

// falconH1 is Falcon-H1: in each layer a scan of Mamba2 and attention read the same norm and add to the stream side by side. Constants
// multiply what matrices make.
var falconH1 = family{
	Family: model.Family{Name: "falcon_h1", Tensors: falconNames()},
	class:  "FalconH1ForCausalLM",
	fixed:  model.Model{Mamba: model.Mamba{Layers: []bool{true}, Beside: true}},
	table: changed(without(mambaTable, "mamba_d_head"),
		row{key: "vocab_size", field: vocab, def: 128000},
		row{key: "num_key_value_heads", field: kvHeads, def: 8, null: asHeads},
		row{key: "intermediate_size", field: feedForward, def: 14336},
		row{key: "max_position_embeddings", field: maxPositions, def: 8192},
		row{key: "hidden_act", field: activation, def: "silu", only: []string{"silu"}}, // that of convolutions, too
		row{key: "rms_norm_eps", field: normEps, def: 1e-5},
		row{key: "attention_bias", only: false},
		row{key: "mlp_bias", only: false},
		row{key: "mamba_proj_bias", only: false},
		row{key: "projectors_bias", only: false},
		row{key: "mamba_d_ssm", read: scanColumns, write: writeScanColumns},
		row{key: "mamba_rms_norm", read: falconNorm, write: writeFalconNorm},
		times("embedding_multiplier", func(m *model.Model) any { return &m.Mup.Embedding }),
		times("lm_head_multiplier", func(m *model.Model) any { return &m.Mup.Head }),
		times("attention_in_multiplier", func(m *model.Model) any { return &m.Mup.Attention }),
		times("key_multiplier", func(m *model.Model) any { return &m.Mup.Keys }),
		times("attention_out_multiplier", func(m *model.Model) any { return &m.Mup.Mixed }),
		times("ssm_in_multiplier", func(m *model.Model) any { return &m.Mup.Scan }),
		times("ssm_out_multiplier", func(m *model.Model) any { return &m.Mup.Scanned }),
		row{key: "ssm_multipliers", read: falconLists, write: writeFalconLists},
		rope(rotary{}),
	),
	ignored:  []string{"mamba_chunk_size", "mamba_expand", "mamba_use_mlp", "mlp_expansion_factor", "num_logits_to_keep"},
	constant: map[string]any{"pad_token_id": nil},
	typical:  "falcon-h1-tiny-90m",
	published: map[string]string{
		"falcon-h1-tiny-90m": `{"num_hidden_layers": 24, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 768,
			"vocab_size": 32768, "max_position_embeddings": 262144, "rope_theta": 100000000000, "tie_word_embeddings": true, "mamba_d_ssm": 768, "mamba_n_heads": 24,
			"mamba_d_state": 64, "mamba_norm_before_gate": false, "embedding_multiplier": 0.11083984375, "lm_head_multiplier": 0.078125}`,
	},
}

func falconNames() model.TensorNames {
	n := mambaNames(llamaNames, "mamba.")
	n.FinalNorm, n.Norm2 = "model.final_layernorm", "pre_ff_layernorm"
	n.Gate, n.Up, n.Down = "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"
	return n
}

// times is the row of a constant factor, which says nothing about other families, such as Granite, that have the key.
func times(key string, f field) row {
	r := decimal(key, f, 1)
	r.own = true
	return r
}

// scanColumns reads the columns of a head, which are the layer's divided among the heads.
func scanColumns(c *config, m *model.Model) {
	values := 1024
	if !c.get("mamba_d_ssm", &values) && string(c.raw["mamba_d_ssm"]) == "null" {
		c.fail("mamba_d_ssm is null: %w: give the columns of scans", ErrUnsupported)
	}
	headColumns(c, m, values)
}

func writeScanColumns(m *model.Model, kv map[string]any) {
	kv["mamba_d_ssm"], kv["mamba_d_head"] = m.Mamba.Values(), m.Mamba.HeadDim
}

// falconNorm reads whether there is a norm, and whether it is before the gate.
func falconNorm(c *config, m *model.Model) {
	norm, first := false, true
	c.get("mamba_rms_norm", &norm)
	c.get("mamba_norm_before_gate", &first)
	switch {
	case !norm:
		m.Mamba.Norm = model.NormNowhere
	case first:
		m.Mamba.Norm = model.NormFirst
	}
}

func writeFalconNorm(m *model.Model, kv map[string]any) {
	kv["mamba_rms_norm"] = m.Mamba.Norm != model.NormNowhere
	kv["mamba_norm_before_gate"] = m.Mamba.Norm == model.NormFirst
}

// falconLists reads the constants of a scan's and of the feed-forward's columns.
func falconLists(c *config, m *model.Model) {
	scans, forward := []float64{1, 1, 1, 1, 1}, []float64{1, 1}
	c.get("ssm_multipliers", &scans)
	c.get("mlp_multipliers", &forward)
	if len(scans) != len(m.Mup.Scans) || len(forward) != 2 {
		c.fail("ssm_multipliers has %d numbers and mlp_multipliers %d; hint: there must be 5 and 2", len(scans), len(forward))
		return
	}
	copy(m.Mup.Scans[:], scans)
	m.Mup.Gates, m.Mup.Down = forward[0], forward[1]
}

func writeFalconLists(m *model.Model, kv map[string]any) {
	var scans []any
	for _, x := range m.Mup.Scans {
		scans = append(scans, asDecimal(x))
	}
	kv["ssm_multipliers"], kv["mlp_multipliers"] = scans, []any{asDecimal(m.Mup.Gates), asDecimal(m.Mup.Down)}
}
