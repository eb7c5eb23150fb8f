package samples

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/model/family"
)

// folderConfig is the config.json of ModelFolder.
const folderConfig = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
"rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}`

// folderTemplate is its chat template.
const folderTemplate = `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`

// ModelFolder returns a model folder with random weights, a tokenizer and a chat template, which writes varied nonsense.
func ModelFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	words := bpe.NewCounter(bpe.PatternGPT2)
	words.Add([]byte("the quick brown fox jumps over the lazy dog; gold, silver and copper are the metals of the story"))
	tokenizer, err := bpe.Train(t.Context(), words, 290, nil)
	check(err)
	check(tokenizer.Save(dir))
	check(os.WriteFile(filepath.Join(dir, "config.json"), []byte(folderConfig), 0o644))
	check(os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(folderTemplate), 0o644))
	m, _, err := family.Parse([]byte(folderConfig))
	check(err)
	r := rand.New(rand.NewPCG(1, 2))
	var list []safetensors.Tensor
	for _, p := range m.Params() {
		for _, part := range p.Tensors() {
			values := make([]float32, part.Elems())
			for i := range values {
				values[i] = float32(r.NormFloat64() * 0.4)
			}
			list = append(list, safetensors.Float32s(part.Name, safetensors.F32, part.Shape, values))
		}
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	check(err)
	check(safetensors.Write(f, nil, list))
	check(f.Close())
	return dir
}
