package folder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/gguf"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/model"
)

// A model in one file for llama.cpp, which knows families by their architecture, with names for tensors of its own, and ways to
// split text by names too. What it would compute otherwise is refused.

// ggufFamily is how llama.cpp knows a family.
type ggufFamily struct {
	arch string
	// names are those of its tensors, by what they are called here without the layer. Vectors have the same.
	names map[string]string
	// pairs says that rows of queries and keys are ordered for rotation of neighbours, in files of halves.
	pairs bool
	// turned says that files have matrices of layers [in, out].
	turned bool
	norm   string // the key of the norms' epsilon
}

var (
	llamaNames = map[string]string{"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
		"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
		"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
		"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
	gpt2Names = map[string]string{"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output", "ln_1": "attn_norm",
		"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
)

// ggufFamilies are the families, by model_type.
var ggufFamilies = map[string]ggufFamily{
	"llama":   {arch: "llama", names: llamaNames, pairs: true, norm: "layer_norm_rms_epsilon"},
	"mistral": {arch: "llama", names: llamaNames, pairs: true, norm: "layer_norm_rms_epsilon"},
	"qwen2":   {arch: "qwen2", names: llamaNames, norm: "layer_norm_rms_epsilon"},
	"qwen3":   {arch: "qwen3", names: llamaNames, norm: "layer_norm_rms_epsilon"},
	"gpt2":    {arch: "gpt2", names: gpt2Names, turned: true, norm: "layer_norm_epsilon"},
}

// ggufSplits are llama.cpp's names for ways to split text. Under that of Llama 3 it also takes words that are tokens without
// merging them, so tokenizers that merge in any case have another one.
var ggufSplits = map[bpe.Pattern]string{bpe.PatternGPT2: "gpt-2", bpe.PatternLlama3: "smaug-bpe", bpe.PatternQwen2: "qwen2", bpe.PatternO200k: "gpt-4o"}

// WriteGGUF writes a model folder, with an adapter merged into its model, as one file for llama.cpp: weights, tokenizer and chat
// template. How matrices are stored, ggufType says; vectors stay in fp32, as llama.cpp wants them.
func WriteGGUF(ctx context.Context, from string, w io.Writer, as gguf.Type, progress Progress) error {
	f, err := OpenAny(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if model.Classifies(f.Model) {
		return misuse{fmt.Errorf("%s has a head with labels (%s), which files for llama.cpp written here cannot have; hint: leave out --gguf, which writes a folder for transformers", from, strings.Join(f.Model.Labels[:min(len(f.Model.Labels), 5)], ", "))}
	}
	if err := f.roomToExport(); err != nil {
		return err
	}
	known, err := f.ggufFamily()
	if err != nil {
		return misuse{err}
	}
	vocabulary, err := f.ggufTokenizer()
	if err != nil {
		return misuse{err}
	}
	f = f.parted()
	m, err := newMerger(f)
	if err != nil {
		return err
	}
	list, err := m.ggufTensors(known, as)
	if err != nil {
		return err
	}
	for i := range list {
		read := list[i].Read
		list[i].Read = func() ([]float32, error) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			progress("writing", int64(i), int64(len(list)))
			return read()
		}
	}
	return gguf.Write(w, slices.Concat(f.ggufSizes(known, as), vocabulary), list)
}

// ggufFamily returns how llama.cpp knows the model, or what about it llama.cpp would compute otherwise.
func (f *Folder) ggufFamily() (ggufFamily, error) {
	m := f.Model
	known, ok := ggufFamilies[m.Family.Name]
	var names []string
	for name := range ggufFamilies {
		names = append(names, name)
	}
	slices.Sort(names)
	s := m.RopeScaling
	switch {
	case !ok:
		return known, fmt.Errorf("%s cannot be written as GGUF: only %s can; hint: llama.cpp's convert_hf_to_gguf.py reads the model folder", m.Family.Name, strings.Join(names, ", "))
	case m.Window > 0 && m.Window < m.MaxPositions:
		return known, fmt.Errorf("a window of %d tokens in attention cannot be written as GGUF: llama.cpp would attend to all; hint: set sliding_window to null in config.json if texts are shorter", m.Window)
	case s != nil && s.Type != "linear" && s.Type != "llama3":
		return known, fmt.Errorf("rotary positions that are scaled by %s are not written as GGUF; hint: llama.cpp's convert_hf_to_gguf.py reads the model folder", s.Type)
	case m.RotaryPct > 0 && m.RotaryPct < 1 || m.NoRotary != nil || m.Sinks:
		return known, errors.New("heads that are rotated in part, layers without rotary positions and attention sinks cannot be written as GGUF for this family; hint: llama.cpp's convert_hf_to_gguf.py reads the model folder")
	}
	return known, nil
}

// ggufSizes returns the fields about the model.
func (f *Folder) ggufSizes(known ggufFamily, as gguf.Type) []gguf.Field {
	m := f.Model
	own := func(key string, v any) gguf.Field { return gguf.Field{Key: known.arch + "." + key, Value: v} }
	count := func(key string, n int) gguf.Field { return own(key, uint32(n)) }
	list := []gguf.Field{
		{Key: "general.architecture", Value: known.arch}, {Key: "general.file_type", Value: as.FileType()}, {Key: "general.quantization_version", Value: uint32(2)},
		count("block_count", m.Layers), count("context_length", m.MaxPositions), count("embedding_length", m.Width), count("feed_forward_length", m.FeedForward),
		count("attention.head_count", m.Heads), count("attention.head_count_kv", m.KVHeads), count("vocab_size", m.Vocab), own("attention."+known.norm, float32(m.NormEps)),
	}
	if !m.Rotary() {
		return list
	}
	list = append(list, count("attention.key_length", m.HeadDim), count("attention.value_length", m.HeadDim), count("rope.dimension_count", m.HeadDim), own("rope.freq_base", float32(m.RopeTheta)))
	if s := m.RopeScaling; s != nil && s.Type == "linear" {
		list = append(list, own("rope.scaling.type", "linear"), own("rope.scaling.factor", float32(s.Factor)))
	}
	return list
}

// ggufTensors lists the tensors.
func (m *merger) ggufTensors(known ggufFamily, as gguf.Type) (list []gguf.Tensor, err error) {
	files := map[string]safetensors.Tensor{}
	for _, t := range m.tensors(safetensors.F32) {
		files[t.Name] = t
	}
	for _, p := range m.Model.Params() {
		if p.Adapter {
			continue
		}
		for _, t := range p.Merged().Tensors() {
			file, ok := files[t.Name]
			if info, there := lookup(m.weights.Base, t); !ok && there {
				file, ok = files[info.Name]
			}
			name, has := known.name(p.Layer, m.Model.Layers, t.Name)
			if !ok || !has {
				return nil, misuse{fmt.Errorf("%s has no place in GGUF's %s; hint: llama.cpp's convert_hf_to_gguf.py reads the model folder", t.Name, known.arch)}
			}
			list = append(list, m.ggufTensor(known, p, gguf.Tensor{Name: name, Shape: t.Shape, Type: as}, file))
		}
	}
	if s := m.Model.RopeScaling; s != nil && s.Type == "llama3" {
		factors := llama3Factors(m.Model)
		list = append(list, gguf.Tensor{Name: "rope_freqs.weight", Shape: []int{len(factors)}, Type: gguf.F32, Read: func() ([]float32, error) { return factors, nil }})
	}
	return list, nil
}

// name returns llama.cpp's name for a tensor of a layer, such as blk.0.attn_q.weight for model.layers.0.self_attn.q_proj.weight.
func (k *ggufFamily) name(layer, layers int, theirs string) (name string, ok bool) {
	at := strings.LastIndexByte(theirs, '.')
	if at < 0 {
		return "", false
	}
	what, kind := theirs[:at], theirs[at:]
	before := ""
	if inside := fmt.Sprint(".", layer, "."); layer >= 0 && layer < layers {
		_, what, ok = strings.Cut(what, inside)
		before = fmt.Sprint("blk", inside)
	} else {
		ok = true
		what = what[strings.LastIndexByte(what, '.')+1:]
	}
	name = k.names[what]
	return before + name + kind, ok && name != ""
}

// ggufTensor returns a tensor whose numbers come from a file.
func (m *merger) ggufTensor(known ggufFamily, p model.Param, t gguf.Tensor, file safetensors.Tensor) gguf.Tensor {
	read := func() ([]float32, error) {
		var b bytes.Buffer
		b.Grow(int(file.Bytes()))
		if err := file.Data(&b); err != nil {
			return nil, err
		}
		x := make([]float32, b.Len()/4)
		for i := range x {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b.Bytes()[4*i:]))
		}
		return x, nil
	}
	t.Read = read
	if len(t.Shape) < 2 {
		t.Type = gguf.F32
		if known.pairs && strings.HasSuffix(t.Name, "_q.bias") || known.pairs && strings.HasSuffix(t.Name, "_k.bias") {
			t.Read = func() ([]float32, error) { x, err := read(); return neighbours(x, 1, m.Model.HeadDim), err }
		}
		return t
	}
	rows, cols := t.Shape[0], t.Shape[1]
	if known.turned && p.Layer >= 0 && p.Layer < m.Model.Layers {
		t.Shape = []int{cols, rows}
		t.Read = func() ([]float32, error) {
			x, err := read()
			if err != nil {
				return nil, err
			}
			return transposed(x, rows, cols), nil
		}
	}
	if known.pairs && (strings.HasSuffix(t.Name, "attn_q.weight") || strings.HasSuffix(t.Name, "attn_k.weight")) {
		t.Read = func() ([]float32, error) { x, err := read(); return neighbours(x, cols, m.Model.HeadDim), err }
	}
	t.Type = m.ggufType(t.Type, t.Name, p.Layer, t.Shape[1])
	return t
}

// ggufType returns how a matrix is stored. In files of Q4_K matrices that matter most have more bits, as llama.cpp's own Q4_K_M has them:
// the head, or the embedding that is also the head, and, in the first and last eighth of the layers and in every third between, values
// and what leads back from the feed-forward part. (Queries, keys and values that are one matrix, which it stores in 5 bits, have 6.)
func (m *merger) ggufType(as gguf.Type, name string, layer, cols int) gguf.Type {
	head := "output.weight"
	if m.Model.Tied {
		head = "token_embd.weight"
	}
	layers := m.Model.Layers
	outer := layer < layers/8 || layer >= 7*layers/8 || (layer-layers/8)%3 == 2
	ends := func(with string) bool { return strings.HasSuffix(name, "."+with+".weight") }
	switch {
	case (as == gguf.Q4K || as == gguf.Q6K) && name == "position_embd.weight":
		return gguf.F32
	case as == gguf.Q4K && (name == head || ends("attn_qkv") || outer && (ends("attn_v") || ends("ffn_down"))):
		as = gguf.Q6K
	}
	return as.OfRows(cols)
}

// neighbours orders each head's rows so that those that are rotated together, i and i + head/2, are next to each other.
func neighbours(x []float32, cols, head int) []float32 {
	y := make([]float32, len(x))
	for r := range len(x) / max(cols, 1) {
		first, i := r/head*head, r%head
		copy(y[(first+i%(head/2)*2+i/(head/2))*cols:][:cols], x[r*cols:])
	}
	return y
}

// llama3Factors returns by what llama.cpp divides the frequency of each pair: see rope_freqs in convert_hf_to_gguf.py.
func llama3Factors(m *model.Model) (list []float32) {
	s := m.RopeScaling
	for i := 0; i < m.HeadDim; i += 2 {
		turns := float64(s.OriginalContext) / (2 * math.Pi * math.Pow(m.RopeTheta, float64(i)/float64(m.HeadDim)))
		smooth := min(max((turns-s.LowFreqFactor)/(s.HighFreqFactor-s.LowFreqFactor), 0), 1)
		list = append(list, float32(1/((1-smooth)/s.Factor+smooth)))
	}
	return list
}

// Kinds of tokens in GGUF.
const ordinary, unknown, control, userDefined, unused, byteOf = 1, 2, 3, 4, 5, 6

// ggufTokenizer returns the fields about the tokenizer and its chat template.
func (f *Folder) ggufTokenizer() ([]gguf.Field, error) {
	t, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	v, merging := t.Merging()
	p, pieces := t.Pieces()
	var list []gguf.Field
	n := 0
	if pieces {
		list, n = ggufPieces(p, f.Model.Vocab), len(p.List)
	} else if merging {
		list, n = ggufMerging(v, f.Model.Vocab), len(v.Tokens)
	}
	if list == nil {
		return nil, errors.New("llama.cpp has no name for the way in which this tokenizer splits text; hint: llama.cpp's convert_hf_to_gguf.py reads the model folder")
	}
	if n > f.Model.Vocab {
		return nil, fmt.Errorf("the tokenizer has %d tokens, but the model's vocabulary is %d; hint: use the tokenizer that it was trained with", n, f.Model.Vocab)
	}
	files, err := checkpoint.ModelFiles(f.Path)
	if err != nil {
		return nil, err
	}
	end, ends := t.EndOfText()
	if id, ok := tokenIn(files, "eos_token_id"); ok {
		end, ends = id, true
	}
	if ends {
		list = append(list, ggufOwn("ggml.eos_token_id", uint32(end)))
	}
	begin, begins := tokenIn(files, "bos_token_id")
	if start := t.Start(); len(start) > 0 {
		begin, begins = start[0], true
	}
	if begins && begin >= 0 && int(begin) < f.Model.Vocab {
		list = append(list, ggufOwn("ggml.bos_token_id", uint32(begin)))
	}
	list = append(list, ggufOwn("ggml.add_bos_token", len(t.Start()) > 0))
	if text := templateIn(files); text != "" {
		list = append(list, ggufOwn("chat_template", text))
	}
	return list, nil
}

func ggufOwn(key string, value any) gguf.Field {
	return gguf.Field{Key: "tokenizer." + key, Value: value}
}

// ggufKinds returns texts and kinds of all tokens of a vocabulary; kindOf is asked about those that are not added.
func ggufKinds(texts []string, added []bpe.Added, vocabulary int, kindOf func(id int) int32) (all []string, kinds []int32) {
	all, kinds = slices.Clone(texts), make([]int32, vocabulary)
	for id := range kinds {
		switch {
		case id >= len(texts):
			all, kinds[id] = append(all, fmt.Sprintf("[PAD%d]", id)), unused
		case texts[id] == "":
			all[id], kinds[id] = fmt.Sprintf("[PAD%d]", id), unused
		default:
			kinds[id] = kindOf(id)
		}
	}
	for _, a := range added {
		switch {
		case int(a.ID) >= vocabulary || kinds[a.ID] == unknown:
		case a.Special:
			kinds[a.ID] = control
		default:
			kinds[a.ID] = userDefined
		}
	}
	return all, kinds
}

// ggufMerging returns the fields of a tokenizer that merges bytes; none if llama.cpp has no name for the way in which it splits text.
func ggufMerging(v bpe.Merging, vocabulary int) []gguf.Field {
	split := ggufSplits[v.Pattern]
	if v.Words && v.Pattern == bpe.PatternLlama3 {
		split = "llama-bpe"
	}
	if split == "" {
		return nil
	}
	texts, kinds := ggufKinds(v.Tokens, v.Added, vocabulary, func(int) int32 { return ordinary })
	return []gguf.Field{ggufOwn("ggml.model", "gpt2"), ggufOwn("ggml.pre", split), ggufOwn("ggml.tokens", texts), ggufOwn("ggml.token_type", kinds), ggufOwn("ggml.merges", v.Merges)}
}

// ggufPieces returns the fields of a tokenizer that is SentencePiece's.
func ggufPieces(p bpe.Pieces, vocabulary int) []gguf.Field {
	texts, scores, unknownID := make([]string, len(p.List)), make([]float32, max(vocabulary, len(p.List))), -1
	for id, piece := range p.List {
		texts[id], scores[id] = piece.Text, piece.Score
		if piece.Unknown {
			unknownID = id
		}
	}
	all, kinds := ggufKinds(texts, p.Added, vocabulary, func(id int) int32 {
		switch {
		case p.List[id].Byte:
			return byteOf
		case p.List[id].Unknown:
			return unknown
		}
		return ordinary
	})
	list := []gguf.Field{ggufOwn("ggml.model", "llama"), ggufOwn("ggml.pre", "default"), ggufOwn("ggml.tokens", all), ggufOwn("ggml.scores", scores), ggufOwn("ggml.token_type", kinds),
		ggufOwn("ggml.add_space_prefix", p.Prefix)}
	if unknownID >= 0 {
		list = append(list, ggufOwn("ggml.unknown_token_id", uint32(unknownID)))
	}
	return list
}

// tokenIn returns the id of a token, or the first of several, that a model's files name.
func tokenIn(files map[string][]byte, key string) (id int32, ok bool) {
	for _, name := range []string{"generation_config.json", "config.json"} {
		var fields map[string]json.RawMessage
		if json.Unmarshal(files[name], &fields) != nil {
			continue
		}
		var list []int32
		if json.Unmarshal(fields[key], &id) == nil && len(fields[key]) > 0 && string(fields[key]) != "null" {
			return id, true
		}
		if json.Unmarshal(fields[key], &list) == nil && len(list) > 0 {
			return list[0], true
		}
	}
	return 0, false
}

// templateIn returns the chat template that a model's files have, or "".
func templateIn(files map[string][]byte) string {
	var c struct {
		Template json.RawMessage `json:"chat_template"`
	}
	var text string
	if json.Unmarshal(files["tokenizer_config.json"], &c) == nil {
		_ = json.Unmarshal(c.Template, &text) // a list of several has no one template: then there is none
	}
	return cmp.Or(string(files["chat_template.jinja"]), text)
}
