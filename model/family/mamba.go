package family

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/athanor-llm/athanor/model"
)

// What families with scans of Mamba2 have in common.

// mambaTable is Llama's, with the keys of scans as most families have them.
var mambaTable = changed(llamaTable,
	row{key: "mamba_n_heads", field: func(m *model.Model) any { return &m.Mamba.Heads }, def: 128},
	row{key: "mamba_n_groups", field: func(m *model.Model) any { return &m.Mamba.Groups }, def: 1},
	row{key: "mamba_d_state", field: func(m *model.Model) any { return &m.Mamba.State }, def: 256},
	row{key: "mamba_d_head", read: mambaColumns, write: writeMambaColumns},
	row{key: "mamba_d_conv", field: func(m *model.Model) any { return &m.Mamba.Taps }, def: 4},
	row{key: "mamba_conv_bias", field: func(m *model.Model) any { return &m.Mamba.ConvBias }, def: true},
	row{key: "mamba_proj_bias", field: func(m *model.Model) any { return &m.Mamba.Bias }, def: false},
	row{key: "time_step_limit", read: stepLimits, write: writeStepLimits},
)

// mambaNames adds the names of scans, which begin so, to others.
func mambaNames(n model.TensorNames, prefix string) model.TensorNames {
	n.MambaIn, n.MambaConv, n.MambaNorm, n.MambaOut = prefix+"in_proj", prefix+"conv1d", prefix+"norm", prefix+"out_proj"
	n.MambaRate, n.MambaStep, n.MambaSkip = prefix+"A_log", prefix+"dt_bias", prefix+"D"
	return n
}

// mambaColumns reads the columns of a head, which are those of the layer, a multiple of the width, divided among the heads.
func mambaColumns(c *config, m *model.Model) {
	times := 2
	c.get("mamba_expand", &times)
	if times < 1 || times > 1<<10 || m.Width > 1<<20 {
		c.fail("mamba_expand is %d for a width of %d; hint: it is usually 2", times, m.Width)
		return
	}
	headColumns(c, m, times*m.Width)
}

// headColumns divides so many columns among the heads of scans. mamba_d_head says the same again.
func headColumns(c *config, m *model.Model, values int) {
	if m.Mamba.Heads < 1 || values < 1 || values%m.Mamba.Heads != 0 {
		c.fail("%d columns cannot be divided evenly among %d heads of Mamba2; hint: check mamba_n_heads, hidden_size and mamba_expand, or mamba_d_ssm", values, m.Mamba.Heads)
		return
	}
	m.Mamba.HeadDim = values / m.Mamba.Heads
	if string(c.raw["mamba_d_head"]) == `"auto"` {
		c.used["mamba_d_head"] = true
		return
	}
	each := m.Mamba.HeadDim
	if c.get("mamba_d_head", &each); each != m.Mamba.HeadDim {
		c.fail("mamba_d_head is %d, but the columns of a scan divided among its heads are %d; hint: check that this is the file that was published", each, m.Mamba.HeadDim)
	}
}

// writeMambaColumns writes both keys. A width that is no divisor has no mamba_expand: the model is refused before, see Model.Validate.
func writeMambaColumns(m *model.Model, kv map[string]any) {
	kv["mamba_d_head"], kv["mamba_expand"] = m.Mamba.HeadDim, m.Mamba.Values()/max(m.Width, 1)
}

// stepLimits reads the bounds of time steps, of which the upper one is mostly infinite.
func stepLimits(c *config, m *model.Model) {
	limits := [2]limit{0, limit(math.Inf(1))}
	c.get("time_step_limit", &limits)
	m.Mamba.Least, m.Mamba.Most = float64(limits[0]), float64(limits[1])
	if math.IsInf(m.Mamba.Most, 1) {
		m.Mamba.Most = 0
	}
}

func writeStepLimits(m *model.Model, kv map[string]any) {
	most := any(map[string]string{"__float__": "Infinity"})
	if m.Mamba.Most > 0 {
		most = asDecimal(m.Mamba.Most)
	}
	kv["time_step_limit"] = []any{asDecimal(m.Mamba.Least), most}
}

// limit is a number that may be infinite, which JSON has no word for: transformers 5 writes an object.
type limit float64

// UnmarshalJSON reads both.
func (l *limit) UnmarshalJSON(data []byte) error {
	var word struct {
		Float string `json:"__float__"`
	}
	if err := json.Unmarshal(data, &word); err == nil && word.Float == "Infinity" {
		*l = limit(math.Inf(1))
		return nil
	}
	return json.Unmarshal(data, (*float64)(l))
}

// finite returns JSON in which the object that transformers 5 writes stands for the word Infinity, which Python writes although JSON does
// not have it.
func finite(data []byte) []byte {
	const word = "Infinity"
	if !bytes.Contains(data, []byte(word)) {
		return data
	}
	var to []byte
	for quoted := false; len(data) > 0; {
		switch {
		case quoted && data[0] == '\\' && len(data) > 1:
			to, data = append(to, data[0]), data[1:]
		case data[0] == '"':
			quoted = !quoted
		case !quoted && bytes.HasPrefix(data, []byte(word)):
			to, data = append(to, `{"__float__": "Infinity"}`...), data[len(word):]
			continue
		}
		to, data = append(to, data[0]), data[1:]
	}
	return to
}
