package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// known holds the sizes of published models, without weights.
var known = map[string]Model{
	"gpt2":        gpt2(12, 768, 12),
	"gpt2-medium": gpt2(24, 1024, 16),
	"gpt2-large":  gpt2(36, 1280, 20),
	"gpt2-xl":     gpt2(48, 1600, 25),
	// The models measured in the Elixir paper (2212.05339), with untied heads.
	"gpt2-4b":         untied(gpt2(32, 3072, 24)),
	"gpt2-10b":        untied(gpt2(48, 4096, 32)),
	"gpt2-15b":        untied(gpt2(18, 8192, 64)),
	"gpt2-20b":        untied(gpt2(24, 8192, 64)),
	"opt-125m":        opt(12, 768, 12),
	"opt-1.3b":        opt(24, 2048, 32),
	"llama-2-7b":      llama(32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, 1e-5, false),
	"llama-2-13b":     llama(40, 5120, 40, 40, 128, 13824, 32000, 4096, 1e4, 1e-5, false),
	"llama-2-70b":     llama(80, 8192, 64, 8, 128, 28672, 32000, 4096, 1e4, 1e-5, false),
	"llama-3-8b":      llama(32, 4096, 32, 8, 128, 14336, 128256, 8192, 5e5, 1e-5, false),
	"llama-3-70b":     llama(80, 8192, 64, 8, 128, 28672, 128256, 8192, 5e5, 1e-5, false),
	"llama-3.1-8b":    untied(llama31(32, 4096, 32, 128, 14336, 8)),
	"llama-3.1-70b":   untied(llama31(80, 8192, 64, 128, 28672, 8)),
	"llama-3.1-405b":  untied(llama31(126, 16384, 128, 128, 53248, 8)),
	"llama-3.2-1b":    llama31(16, 2048, 32, 64, 8192, 32),
	"llama-3.2-3b":    llama31(28, 3072, 24, 128, 8192, 32),
	"llama-3.3-70b":   untied(llama31(80, 8192, 64, 128, 28672, 8)),
	"tinyllama-1.1b":  llama(22, 2048, 32, 4, 64, 5632, 32000, 2048, 1e4, 1e-5, false),
	"smollm2-135m":    llama(30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, true),
	"smollm2-360m":    llama(32, 960, 15, 5, 64, 2560, 49152, 8192, 1e5, 1e-5, true),
	"smollm2-1.7b":    llama(24, 2048, 32, 32, 64, 8192, 49152, 8192, 130000, 1e-5, true),
	"mistral-7b":      mistral(32, 4096, 32, 8, 128, 14336, 32000, 32768),
	"mistral-nemo":    mistral(40, 5120, 32, 8, 128, 14336, 131072, 131072),
	"qwen2-0.5b":      qwen2(24, 896, 14, 2, 64, 4864, 151936, true),
	"qwen2-1.5b":      qwen2(28, 1536, 12, 2, 128, 8960, 151936, true),
	"qwen2-7b":        qwen2(28, 3584, 28, 4, 128, 18944, 152064, false),
	"qwen2.5-0.5b":    qwen2(24, 896, 14, 2, 64, 4864, 151936, true),
	"qwen2.5-1.5b":    qwen2(28, 1536, 12, 2, 128, 8960, 151936, true),
	"qwen2.5-3b":      qwen2(36, 2048, 16, 2, 128, 11008, 151936, true),
	"qwen2.5-7b":      qwen2(28, 3584, 28, 4, 128, 18944, 152064, false),
	"qwen2.5-14b":     qwen2(48, 5120, 40, 8, 128, 13824, 152064, false),
	"qwen2.5-32b":     qwen2(64, 5120, 40, 8, 128, 27648, 152064, false),
	"qwen2.5-72b":     qwen2(80, 8192, 64, 8, 128, 29568, 152064, false),
	"qwen3-0.6b":      qwen3(28, 1024, 16, 3072, true),
	"qwen3-1.7b":      qwen3(28, 2048, 16, 6144, true),
	"qwen3-4b":        qwen3(36, 2560, 32, 9728, true),
	"qwen3-8b":        qwen3(36, 4096, 32, 12288, false),
	"qwen3-14b":       qwen3(40, 5120, 40, 17408, false),
	"qwen3-32b":       qwen3(64, 5120, 64, 25600, false),
	"gemma-3-270m":    gemma3(18, 640, 2048),
	"gemma-3-1b":      gemma3(26, 1152, 6912),
	"pythia-70m":      pythia(6, 512, 8),
	"pythia-160m":     pythia(12, 768, 12),
	"pythia-410m":     pythia(24, 1024, 16),
	"pythia-1b":       pythia(16, 2048, 8),
	"pythia-1.4b":     pythia(24, 2048, 16),
	"pythia-2.8b":     pythia(32, 2560, 32),
	"phi-3-mini":      phi3(32, 3072, 32, 32, 8192, 32064, 4096, 1e4, 2047),
	"phi-3-medium":    phi3(40, 5120, 40, 10, 17920, 32064, 4096, 1e4, 2047),
	"phi-4":           phi3(40, 5120, 40, 10, 17920, 100352, 16384, 250000, 0),
	"smollm3-3b":      smolLM3(36, 2048, 16, 4, 11008),
	"granite-3.0-2b":  granite(40, 2048, 32, 8192, 8),
	"starcoder2-3b":   starCoder2(30, 3072, 24, 2, 999999.4420358813),
	"starcoder2-7b":   starCoder2(32, 4608, 36, 4, 1e6),
	"starcoder2-15b":  untied(starCoder2(40, 6144, 48, 4, 1e5)),
	"stablelm-2-1.6b": stableLM(24, 2048, 32, 5632, 100352),
	"phi-1.5":         phi(24, 2048, 32, 0.5),
	"phi-2":           phi(32, 2560, 32, 0.4),
	"olmo-3-7b":       olmo3(32, 4096, 32, 11008),
	"granite-3.0-8b":  granite(40, 4096, 32, 12800, 16),
	"olmo-2-1b":       olmo2(16, 2048, 16, 8192),
	"olmo-2-7b":       olmo2(32, 4096, 32, 11008),
	"olmo-2-13b":      olmo2(40, 5120, 40, 13824),
	"olmoe-1b-7b":     olmoe(16, 2048, 16, 1024, 64, 8),
	"qwen3-30b-a3b":   qwen3MoE(48, 2048, 32, 4, 768, 128, 8),
	"qwen3-235b-a22b": qwen3MoE(94, 4096, 64, 4, 1536, 128, 8),
	"gpt-oss-20b":     gptOSS(24, 32),
	"gpt-oss-120b":    gptOSS(36, 128),
	"mixtral-8x7b":    mixtral(32, 4096, 32, 8, 14336, 8, 2),
}

// Known returns the sizes of a published model by name.
func Known(name string) (*Model, error) {
	if m, ok := known[strings.ToLower(name)]; ok {
		return &m, nil
	}
	if near := suggest.Nearest(name, Names()); near != "" {
		return nil, fmt.Errorf("model %q is not known; hint: did you mean %s? Otherwise give a Hugging Face folder, or sizes inline", name, near)
	}
	return nil, fmt.Errorf("model %q is not known; hint: give a Hugging Face folder, sizes inline, or one of %s", name, strings.Join(Names(), ", "))
}

// Typical returns a known model of a family.
func Typical(f Family) (*Model, error) {
	name := map[Family]string{GPT2: "gpt2", OPT: "opt-125m", Llama: "llama-2-7b", Mistral: "mistral-7b", Qwen2: "qwen2-0.5b",
		Qwen3: "qwen3-0.6b", Gemma3: "gemma-3-270m", OLMo2: "olmo-2-1b",
		GPTNeoX: "pythia-70m", Phi3: "phi-3-mini", SmolLM3: "smollm3-3b", Granite: "granite-3.0-2b", StarCoder2: "starcoder2-3b", StableLM: "stablelm-2-1.6b", Phi: "phi-1.5", OLMo3: "olmo-3-7b",
		Mixtral: "mixtral-8x7b", Qwen3MoE: "qwen3-30b-a3b", OLMoE: "olmoe-1b-7b", GPTOSS: "gpt-oss-20b"}[f]
	if name == "" {
		return nil, fmt.Errorf("type %q is not known; hint: %s are supported", f, Families())
	}
	return Known(name)
}

// Names lists the known models.
func Names() []string { return slices.Sorted(maps.Keys(known)) }

func gpt2(layers, width, heads int) Model {
	return Model{Family: GPT2, Layers: layers, Width: width, Heads: heads, KVHeads: heads, HeadDim: width / heads,
		FeedForward: 4 * width, Vocab: 50257, MaxPositions: 1024, Activation: "gelu_new", NormEps: 1e-5, Tied: true,
		QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02}
}

func untied(m Model) Model {
	m.Tied = false
	return m
}

func opt(layers, width, heads int) Model {
	return Model{Family: OPT, Layers: layers, Width: width, Heads: heads, KVHeads: heads, HeadDim: width / heads,
		FeedForward: 4 * width, Vocab: 50272, MaxPositions: 2048, Activation: "relu", NormEps: 1e-5, Tied: true,
		QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02}
}

func llama(layers, width, heads, kv, dim, ff, vocab, length int, theta, eps float64, tied bool) Model {
	return Model{Family: Llama, Layers: layers, Width: width, Heads: heads, KVHeads: kv, HeadDim: dim, FeedForward: ff,
		Vocab: vocab, MaxPositions: length, Activation: "silu", NormEps: eps, RopeTheta: theta, Tied: tied, InitStd: 0.02}
}

func llama31(layers, width, heads, dim, ff int, factor float64) Model {
	m := llama(layers, width, heads, 8, dim, ff, 128256, 131072, 5e5, 1e-5, true)
	m.RopeScaling = &RopeScaling{Type: "llama3", Factor: factor, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 8192}
	return m
}

func mistral(layers, width, heads, kv, dim, ff, vocab, length int) Model {
	m := llama(layers, width, heads, kv, dim, ff, vocab, length, 1e6, 1e-5, false)
	m.Family = Mistral
	return m
}

func qwen2(layers, width, heads, kv, dim, ff, vocab int, tied bool) Model {
	m := llama(layers, width, heads, kv, dim, ff, vocab, 32768, 1e6, 1e-6, tied)
	m.Family, m.QKVBias = Qwen2, true
	return m
}

func qwen3(layers, width, heads, ff int, tied bool) Model {
	m := llama(layers, width, heads, 8, 128, ff, 151936, 40960, 1e6, 1e-6, tied)
	m.Family, m.QKNorm = Qwen3, QKNormHeads
	return m
}

func gemma3(layers, width, ff int) Model {
	m := llama(layers, width, 4, 1, 256, ff, 262144, 32768, 1e6, 1e-6, true)
	m.Family, m.QKNorm, m.Norms, m.UnitOffset, m.ScaledEmbed = Gemma3, QKNormHeads, SandwichNorm, true, true
	m.Activation, m.QueryScalar = "gelu_pytorch_tanh", 256
	m.Window, m.Sliding, m.LocalTheta = 512, []bool{true, true, true, true, true, false}, 1e4
	return m
}

func olmo2(layers, width, heads, ff int) Model {
	m := llama(layers, width, heads, heads, 128, ff, 100352, 4096, 5e5, 1e-6, false)
	m.Family, m.QKNorm, m.Norms = OLMo2, QKNormWhole, PostNorm
	return m
}

func pythia(layers, width, heads int) Model {
	return Model{Family: GPTNeoX, Layers: layers, Width: width, Heads: heads, KVHeads: heads, HeadDim: width / heads,
		FeedForward: 4 * width, Vocab: 50304, MaxPositions: 2048, Activation: "gelu", NormEps: 1e-5, RopeTheta: 1e4, RotaryPct: 0.25,
		Parallel: true, QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02}
}

func phi3(layers, width, heads, kv, ff, vocab, length int, theta float64, window int) Model {
	m := llama(layers, width, heads, kv, width/heads, ff, vocab, length, theta, 1e-5, false)
	m.Family, m.Window = Phi3, window
	return m
}

func smolLM3(layers, width, heads, kv, ff int) Model {
	m := llama(layers, width, heads, kv, width/heads, ff, 128256, 65536, 5e6, 1e-6, true)
	m.Family, m.Unturned = SmolLM3, []bool{false, false, false, true}
	return m
}

func olmoe(layers, width, heads, ff, experts, active int) Model {
	m := llama(layers, width, heads, heads, width/heads, ff, 50304, 4096, 1e4, 1e-5, false)
	m.Family, m.QKNorm, m.Experts, m.Active = OLMoE, QKNormWhole, experts, active
	return m
}

func qwen3MoE(layers, width, heads, kv, ff, experts, active int) Model {
	m := llama(layers, width, heads, kv, 128, ff, 151936, 40960, 1e6, 1e-6, false)
	m.Family, m.QKNorm, m.Experts, m.Active, m.NormedRoute = Qwen3MoE, QKNormHeads, experts, active, true
	return m
}

func mixtral(layers, width, heads, kv, ff, experts, active int) Model {
	m := mistral(layers, width, heads, kv, width/heads, ff, 32000, 32768)
	m.Family, m.Experts, m.Active, m.NormedRoute = Mixtral, experts, active, true
	return m
}

func gptOSS(layers, experts int) Model {
	m := llama(layers, 2880, 64, 8, 64, 2880, 201088, 131072, 150000, 1e-5, false)
	m.Family, m.Experts, m.Active, m.NormedRoute, m.GateLimit, m.GateAlpha = GPTOSS, experts, 4, true, 7, 1.702
	m.QKVBias, m.OutBias, m.MLPBias, m.Sinks = true, true, true, true
	m.Window, m.Sliding = 128, []bool{true, false}
	m.RopeScaling = &RopeScaling{Type: "yarn", Factor: 32, LowFreqFactor: 1, HighFreqFactor: 32, OriginalContext: 4096, Unrounded: true, Attention: 1.3465735902799727}
	return m
}

func granite(layers, width, heads, ff int, logits float64) Model {
	m := llama(layers, width, heads, 8, width/heads, ff, 49155, 4096, 1e4, 1e-5, true)
	m.Family, m.Multipliers = Granite, Multipliers{Embedding: 12, Residual: 0.22, Attention: 1 / float64(m.HeadDim), Logits: logits}
	return m
}

func starCoder2(layers, width, heads, kv int, theta float64) Model {
	m := llama(layers, width, heads, kv, width/heads, 4*width, 49152, 16384, theta, 1e-5, true)
	m.Family, m.Activation, m.Window, m.InitStd = StarCoder2, "gelu_pytorch_tanh", 4096, 0.018042
	m.QKVBias, m.OutBias, m.MLPBias = true, true, true
	return m
}

func stableLM(layers, width, heads, ff, vocab int) Model {
	m := llama(layers, width, heads, heads, width/heads, ff, vocab, 4096, 1e4, 1e-5, false)
	m.Family, m.QKVBias, m.RotaryPct = StableLM, true, 0.25
	return m
}

func phi(layers, width, heads int, rotary float64) Model {
	m := llama(layers, width, heads, heads, width/heads, 4*width, 51200, 2048, 1e4, 1e-5, false)
	m.Family, m.Activation, m.RotaryPct, m.Parallel = Phi, "gelu_new", rotary, true
	m.QKVBias, m.OutBias, m.MLPBias = true, true, true
	return m
}

func olmo3(layers, width, heads, ff int) Model {
	m := olmo2(layers, width, heads, ff)
	m.Family, m.Vocab, m.MaxPositions = OLMo3, 100278, 65536
	m.Window, m.Sliding, m.LocalTheta = 4096, []bool{true, true, true, false}, olmo3Theta
	m.RopeScaling = &RopeScaling{Type: "yarn", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 32, OriginalContext: 8192, Attention: 1.2079441541679836}
	return m
}
