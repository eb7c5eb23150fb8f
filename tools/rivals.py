"""Training steps of PyTorch (and llm.c) beside Athanor's.

  rivals.py serve CONFIG [--precision bf16] [--compile]   one rival, see serve()
  rivals.py pair --ours BINARY [--minutes 8] [--only TEXT] [--llmc FOLDER]
  rivals.py matrix --ours BINARY [--seed N] [--count 24]  drawn configurations, see drawn(); prints their quantiles
  rivals.py llmc FOLDER                                   weights and data for llm.c, see LLMC

Needs torch 2.x, a C++ compiler for --compile, peft for adapters, and bitsandbytes for weights in 4 bits. Every measurement is a
process of its own, so that peak memory is its own; the processes stay alive
and run a few steps in turn, so that whatever else goes on hits all alike.
"""

import argparse
import json
import math
import os
import random
import re
import resource
import statistics
import struct
import subprocess
import sys
import time

GPT2 = dict(kind="gpt2", layers=12, width=768, heads=12, kv=12, ff=3072, vocab=50304)
SMALL = dict(GPT2, layers=6, width=384, heads=6, kv=6, ff=1536)
LLAMA = dict(kind="llama", layers=12, width=768, heads=12, kv=4, ff=2048, vocab=32000)
OLMOE = dict(kind="olmoe", layers=8, width=512, heads=8, kv=8, ff=512, experts=16, active=2, vocab=32000)
GEMMA4 = dict(kind="gemma4", layers=6, width=768, heads=8, kv=4, ff=2048, vocab=32000)  # with heads of 512 in the last layer
QWEN35 = dict(kind="qwen35", layers=4, vocab=32000)  # four of the layers of Qwen3.5 0.8B, in three of which attention is linear
LFM2 = dict(kind="lfm2", layers=6, vocab=32000)  # six of the layers of LFM2 350M, in four of which a convolution is all that mixes tokens
GRANITEH = dict(kind="granite-h", layers=6, width=768, heads=12, kv=4, ff=2048, vocab=32000)  # scans of Mamba2 in all but the last, as wide as Granite 4.0-H 350M
DEEPSEEK = dict(kind="deepseek", layers=2, experts=8, active=2, vocab=32000)  # the first two layers of DeepSeek-V2-Lite, with an eighth of the experts
TINY = dict(kind="llama", layers=2, width=64, heads=4, kv=2, ff=96, vocab=500)  # to try the scripts
CONFIGS = {
    "gpt2-b4t64": dict(GPT2, batch=4, length=64),
    "gpt2-b4t256": dict(GPT2, batch=4, length=256),
    "gpt2-b1t1024": dict(GPT2, batch=1, length=1024),
    "small-b4t256": dict(SMALL, batch=4, length=256),
    "llama-b4t256": dict(LLAMA, batch=4, length=256),
    "olmoe-b4t256": dict(OLMOE, batch=4, length=256),  # beside transformers; only if named
    "qwen35-b1t1024": dict(QWEN35, batch=1, length=1024),  # likewise
    "gemma4-b1t1024": dict(GEMMA4, batch=1, length=1024),  # likewise
    "lfm2-b1t1024": dict(LFM2, batch=1, length=1024),  # likewise
    "granite-h-b1t1024": dict(GRANITEH, batch=1, length=1024),  # likewise
    "deepseek-b1t1024": dict(DEEPSEEK, batch=1, length=1024),  # likewise
    "gpt2-muon-b4t256": dict(GPT2, batch=4, length=256, optimizer="muon"),  # beside torch.optim.Muon; only if named
    "gpt2-lora16-b4t256": dict(GPT2, batch=4, length=256, lora=16),  # beside peft; only if named
    "gpt2-qlora16-b4t256": dict(GPT2, batch=4, length=256, lora=16, quantize="nf4"),  # and bitsandbytes
    "tiny-b2t32": dict(TINY, batch=2, length=32),
}

FIXED = 2026  # the seed of the half of drawn configurations that is always the same


def drawn(seed, count, flops):
    """Configurations, with their precisions, whose sizes are drawn (log-uniform where a range is wide), half of them always the
    same. As many layers and sequences as a step of so many FLOPs has, at most."""
    list = []
    for r, n in (random.Random(FIXED), count - count // 2), (random.Random(seed), count // 2):
        wide = lambda low, high, unit: max(1, round(2 ** r.uniform(math.log2(low), math.log2(high)) / unit)) * unit
        while n > 0:
            head = r.choice((32, 64, 64, 128))
            width = wide(256, 2048, head)
            heads = width // head
            c = dict(kind=r.choice(("gpt2", "llama", "llama")), width=width, heads=heads, kv=heads, ff=wide(2 * width, 4 * width, 64), vocab=wide(4096, 131072, 64),
                     length=wide(64, 4096, 64))
            if c["kind"] == "llama":
                c["kv"] = heads // r.choice([g for g in (1, 2, 4, 8) if heads % g == 0])
            if r.random() < 0.25:
                c["lora"] = 16
            precision = r.choice(("fp32", "bf16"))
            layer = width * width * 2 + 2 * width * c["kv"] * head + (3 if c["kind"] == "llama" else 2) * width * c["ff"]
            token = lambda layers: 6 * (layers * layer + width * c["vocab"] + layers * width * c["length"] // 2)
            layers, batch = r.randint(1, 12), r.randint(1, 8)
            while layers > 1 and token(layers) * c["length"] > flops:
                layers -= 1
            while batch > 1 and token(layers) * c["length"] * batch > flops:
                batch -= 1
            if token(layers) * c["length"] * batch <= flops:
                list.append((json.dumps(dict(c, layers=layers, batch=batch)), precision))
                n -= 1
    return list


def settings(config):
    """A configuration by its name, or as JSON."""
    return CONFIGS[config] if config in CONFIGS else json.loads(config)


def short(config):
    """A configuration in a few words."""
    if config in CONFIGS:
        return config
    c = json.loads(config)
    return f"{c['kind']} {c['layers']}x{c['width']} h{c['heads']}/{c['kv']} f{c['ff']} v{c['vocab']} {c['batch']}x{c['length']}" + " lora" * ("lora" in c)


NAMES = {"gpt2": "gpt2", "llama": "llama-2-7b", "olmoe": "olmoe-1b-7b", "qwen35": "qwen3.5-0.8b", "gemma4": "gemma-4-31b", "lfm2": "lfm2-350m", "granite-h": "granite-4.0-h-micro", "deepseek": "deepseek-v2-lite"}  # Athanor's, which it gives other sizes

# The allocator's setting that suits PyTorch best: keep memory between steps
# instead of giving it back to the system, and take large pages.
ALLOCATOR = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736:glibc.malloc.top_pad=67108864"


def build(c):
    """The model as a torch module: (tokens, targets) -> loss."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    if c["kind"] in ("olmoe", "qwen35", "gemma4", "lfm2", "granite-h", "deepseek"):
        return published(c)
    head = c["width"] // c["heads"]

    class Attention(nn.Module):
        def __init__(self, bias):
            super().__init__()
            self.kv = c["kv"] * head
            self.qkv = nn.Linear(c["width"], c["width"] + 2 * self.kv, bias=bias)
            self.out = nn.Linear(c["width"], c["width"], bias=bias)

        def forward(self, x, turn=None):
            b, t, w = x.shape
            q, k, v = self.qkv(x).split([w, self.kv, self.kv], dim=2)
            q, k, v = (y.view(b, t, -1, head).transpose(1, 2) for y in (q, k, v))
            if turn is not None:
                q, k = turn(q), turn(k)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c["kv"] != c["heads"])
            return self.out(y.transpose(1, 2).reshape(b, t, w))

    class GPT2Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(c["width"]), nn.LayerNorm(c["width"])
            self.attn = Attention(bias=True)
            self.up, self.down = nn.Linear(c["width"], c["ff"]), nn.Linear(c["ff"], c["width"])

        def forward(self, x):
            x = x + self.attn(self.ln1(x))
            return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    class LlamaBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(c["width"], eps=1e-5), nn.RMSNorm(c["width"], eps=1e-5)
            self.attn = Attention(bias=False)
            self.gate_up = nn.Linear(c["width"], 2 * c["ff"], bias=False)
            self.down = nn.Linear(c["ff"], c["width"], bias=False)

        def forward(self, x, turn):
            x = x + self.attn(self.n1(x), turn)
            gate, up = self.gate_up(self.n2(x)).chunk(2, dim=2)
            return x + self.down(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            gpt2 = c["kind"] == "gpt2"
            self.embed = nn.Embedding(c["vocab"], c["width"])
            self.blocks = nn.ModuleList((GPT2Block if gpt2 else LlamaBlock)() for _ in range(c["layers"]))
            self.norm = nn.LayerNorm(c["width"]) if gpt2 else nn.RMSNorm(c["width"], eps=1e-5)
            self.head = nn.Linear(c["width"], c["vocab"], bias=False)
            if gpt2:
                self.positions = nn.Embedding(max(1024, c["length"]), c["width"])
                self.head.weight = self.embed.weight
            else:
                rate = 1e4 ** (-torch.arange(0, head, 2) / head)
                angle = torch.outer(torch.arange(c["length"]), rate).repeat(1, 2)
                self.register_buffer("cos", angle.cos())
                self.register_buffer("sin", angle.sin())
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def turn(self, y):
            a, b = y.chunk(2, dim=3)
            return y * self.cos + torch.cat((-b, a), dim=3) * self.sin

        def forward(self, tokens, targets):
            x = self.embed(tokens)
            if c["kind"] == "gpt2":
                x = x + self.positions.weight[: c["length"]]
                for block in self.blocks:
                    x = block(x)
            else:
                for block in self.blocks:
                    x = block(x, self.turn)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.view(-1, c["vocab"]), targets.view(-1))

    model = Model()
    if c.get("quantize"):
        import bitsandbytes

        for block in model.blocks:
            for owner in list(block.modules()):
                for name, layer in list(owner.named_children()):
                    if isinstance(layer, nn.Linear):
                        packed = bitsandbytes.nn.Linear4bit(layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=c["compute"], compress_statistics=False, quant_type="nf4")
                        packed.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, compress_statistics=False, quant_type="nf4")
                        packed.bias = layer.bias
                        setattr(owner, name, packed.to("cpu"))
    if rank := c.get("lora"):
        import peft

        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=[n for n in ("qkv", "out", "up", "gate_up", "down") if any(m.endswith("." + n) for m, _ in model.named_modules())])
        model = peft.inject_adapter_in_model(config, model)
        for name, p in model.named_parameters():
            p.requires_grad = "lora_" in name
    return model


def published(c):
    """A model as transformers has it: OLMoE or DeepSeek-V2, with the faster form of experts here, the text model of Qwen3.5 or Gemma 4, LFM2, or Granite 4.0-H."""
    import torch
    import transformers

    sizes = dict(num_hidden_layers=c["layers"], vocab_size=c["vocab"], max_position_embeddings=c["length"], pad_token_id=None, eos_token_id=None)
    if c["kind"] == "qwen35":
        family, config = transformers.Qwen3_5ForCausalLM, transformers.Qwen3_5TextConfig(
            hidden_size=1024, num_attention_heads=8, num_key_value_heads=2, intermediate_size=3584, linear_num_value_heads=16, tie_word_embeddings=True, **sizes)
    elif c["kind"] == "gemma4":
        family, config = transformers.Gemma4ForCausalLM, transformers.Gemma4TextConfig(
            hidden_size=c["width"], num_attention_heads=c["heads"], num_key_value_heads=c["kv"], head_dim=c["width"] // c["heads"], global_head_dim=512, num_global_key_value_heads=4,
            attention_k_eq_v=True, intermediate_size=c["ff"], hidden_size_per_layer_input=0, sliding_window=1024, final_logit_softcapping=30.0, **sizes)
    elif c["kind"] == "lfm2":
        family, config = transformers.Lfm2ForCausalLM, transformers.Lfm2Config(
            hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, intermediate_size=6656, full_attn_idxs=[2, 5], **sizes)
    elif c["kind"] == "granite-h":
        family, config = transformers.GraniteMoeHybridForCausalLM, transformers.GraniteMoeHybridConfig(
            hidden_size=c["width"], num_attention_heads=c["heads"], num_key_value_heads=c["kv"], shared_intermediate_size=c["ff"], num_local_experts=0, mamba_n_heads=c["width"] // 32, mamba_d_state=128,
            layer_types=["linear_attention"] * (c["layers"] - 1) + ["full_attention"], tie_word_embeddings=True, **sizes)
    elif c["kind"] == "deepseek":
        family, config = transformers.DeepseekV2ForCausalLM, transformers.DeepseekV2Config(
            hidden_size=2048, num_attention_heads=16, num_key_value_heads=16, intermediate_size=10944, moe_intermediate_size=1408, n_routed_experts=c["experts"],
            num_experts_per_tok=c["active"], n_shared_experts=2, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=512, topk_method="greedy", **sizes)
        config._experts_implementation = os.environ.get("EXPERTS", "grouped_mm")
    else:
        family, config = transformers.OlmoeForCausalLM, transformers.OlmoeConfig(
            hidden_size=c["width"], num_attention_heads=c["heads"], num_key_value_heads=c["kv"], intermediate_size=c["ff"], num_experts=c["experts"],
            num_experts_per_tok=c["active"], **sizes)
        config._experts_implementation = os.environ.get("EXPERTS", "grouped_mm")
    config._attn_implementation = "sdpa"

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = family(config)

        def forward(self, tokens, targets):
            logits = self.model(tokens, use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits.float().view(-1, c["vocab"]), targets.view(-1))

    return Model()


def adamw():
    """The options of the faster of the two quick forms of AdamW here."""
    import torch

    best = {}
    for form in ("fused", "foreach"):
        params = [torch.zeros(1 << 18, requires_grad=True) for _ in range(8)]
        for p in params:
            p.grad = torch.ones_like(p)
        opt = torch.optim.AdamW(params, **{form: True})
        for _ in range(5):
            start = time.perf_counter()
            opt.step()
            best[form] = min(best.get(form, 1e9), time.perf_counter() - start)
    return {min(best, key=best.get): True}


def resident():
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(args):
    """Reads numbers of steps from standard input, runs them, and writes a line of JSON for each."""
    import torch

    imported = resident()
    torch._dynamo.config.recompile_limit = 64  # bitsandbytes has a graph for every shape
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    c = dict(settings(args.config), compute=torch.bfloat16 if args.precision == "bf16" else torch.float32)
    model = build(c)
    form = adamw()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizers = []
    if c.get("optimizer") == "muon":  # the matrices between embedding and head
        others = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
        optimizers.append(torch.optim.Muon([p for p in trained if p.ndim == 2 and id(p) not in others], lr=1e-3))
    known = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    optimizers.append(torch.optim.AdamW([p for p in trained if id(p) not in known], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **form))
    loss_of = torch.compile(model) if args.compile else model
    text = torch.randint(c["vocab"], (c["batch"], c["length"] + 1))
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for opt in optimizers:
            opt.step()
            opt.zero_grad(set_to_none=True)
        return loss.item()

    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            loss = step()
            seconds.append(time.perf_counter() - start)
        s = statistics.median(seconds)
        print(json.dumps({
            "config": args.config, "precision": args.precision, "compile": args.compile, "optimizer": next(iter(form)),
            "torch": torch.__version__, "tokens_per_second": c["batch"] * c["length"] / s, "step_seconds": s, "loss": loss,
            "peak_rss_bytes": resident(), "imported_rss_bytes": imported,
        }), flush=True)


class Torch:
    """A rival that is kept alive between its turns."""

    def __init__(self, config, precision, compiled, threads, tuned):
        self.name = "compiled" if compiled else "eager"
        command = [sys.executable, __file__, "serve", config, "--precision", precision, "--threads", str(threads)]
        env = dict(os.environ, OMP_NUM_THREADS=str(threads))
        if tuned:
            env["GLIBC_TUNABLES"] = ALLOCATOR
        self.process = subprocess.Popen(command + ["--compile"] * compiled, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def run(self, steps):
        print(steps, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"rivals: {self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours(binary, config, precision, steps):
    """Athanor's step with its plain plan, two steps of warm-up before."""
    c = settings(config)
    command = [binary, "bench", "step", NAMES[c["kind"]], "--json",
               "--precision", precision, "--steps", str(steps), "--warmup", "2", "--batch", str(c["batch"]), "--sequence", str(c["length"])]
    for flag, key in (("layers", "layers"), ("width", "width"), ("heads", "heads"), ("kv-heads", "kv"), ("feed-forward", "ff"), ("vocabulary", "vocab"), ("experts", "experts"), ("active-experts", "active")):
        if key in c:
            command += ["--" + flag, str(c[key])]
    command += ["--lora", str(c.get("lora", 0)), "--quantize", c.get("quantize", "none"), "--optimizer", c.get("optimizer", "adamw")]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# LLMC: FOLDER/CONFIG/train_gpt2 is llm.c's train_gpt2.c with B and T of CONFIG,
# see docs/measurements/rivals.md. It reads weights and text from files, which are random here.
def llmc_files(args):
    for config, c in CONFIGS.items():
        folder = os.path.join(args.folder, config)
        if not os.path.exists(os.path.join(folder, "train_gpt2")):
            continue
        w, layers, vocab, length = c["width"], c["layers"], c["vocab"], 1024
        with open(os.path.join(folder, "gpt2_124M.bin"), "wb") as f:
            f.write(struct.pack("<256i", 20240326, 3, length, 50257, layers, c["heads"], w, vocab, *[0] * 248))
            numbers = struct.pack("<1000f", *((i * 7919 % 1000 - 500) * 6e-5 for i in range(1000)))
            count = vocab * w + length * w + layers * (12 * w * w + 13 * w) + 2 * w
            for at in range(0, count, 1000):
                f.write(numbers[: 4 * min(1000, count - at)])
        text = os.path.join(folder, "dev/data/tinyshakespeare")
        os.makedirs(text, exist_ok=True)
        for part in ("train", "val"):
            with open(os.path.join(text, f"tiny_shakespeare_{part}.bin"), "wb") as f:
                f.write(struct.pack("<256i", 20240520, 1, 1 << 16, *[0] * 253))
                f.write(struct.pack(f"<{1 << 16}H", *((i * 7919 * 31 >> 3) % 50257 for i in range(1 << 16))))


def llmc(folder, config, threads, steps=2):
    """Steps of llm.c after the first, or None without a binary for CONFIG."""
    folder = os.path.join(folder, config)
    if not os.path.exists(os.path.join(folder, "gpt2_124M.bin")):
        return None
    p = subprocess.Popen(["stdbuf", "-oL", "./train_gpt2"], cwd=folder, stdout=subprocess.PIPE, text=True, env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
    seconds = [float(m[1]) / 1e3 for m in (re.search(r"took ([\d.]+) ms", line) for line in iter_until(p, steps + 1)) if m]
    with open(f"/proc/{p.pid}/status") as f:
        peak = int(re.search(r"VmHWM:\s+(\d+)", f.read())[1]) * 1024
    p.kill()
    p.wait()
    c = CONFIGS[config]
    return {"tokens_per_second": c["batch"] * c["length"] / statistics.median(seconds[1:]), "peak_rss_bytes": peak}


def iter_until(p, steps):
    """Lines of a process, up to the given number of steps."""
    for line in p.stdout:
        yield line
        steps -= "took" in line
        if steps == 0:
            return


def turns(args, config, precision, until):
    """One case: ours, eager, compiled, ours, ... until then, and for so many rounds at least. By name: rates, and most memory."""
    rivals = [Torch(config, precision, compiled, args.threads, args.tuned) for compiled in (False, True) if not compiled or args.compile]
    for r in rivals:
        r.run(args.warmup)
    rates, peak, start = {}, {}, {}
    while len(rates.get("ours", [])) < args.rounds or time.monotonic() < until:
        for name, result in [("ours", ours(args.ours, config, precision, args.steps))] + [(r.name, r.run(args.steps)) for r in rivals]:
            rates.setdefault(name, []).append(result["tokens_per_second"])
            peak[name], start[name] = result["peak_rss_bytes"], result.get("imported_rss_bytes", 0)
    for r in rivals:
        r.close()
    if args.json:
        with open(args.json, "a") as f:
            print(json.dumps({"config": config, "precision": precision, "tokens_per_second": rates, "peak_rss_bytes": peak, "imported_rss_bytes": start}), file=f)
    return rates, peak, start


def pair(args):
    """All cases, each for its share of the time."""
    cases = [(c, p) for p in ("fp32", "bf16") for c in CONFIGS if args.only in f"{c} {p}" and (args.only or not c.startswith(("tiny", "olmoe", "qwen35", "lfm2", "granite-h", "deepseek", "gpt2-muon", "gpt2-lora", "gpt2-qlora")))]
    if not cases:
        raise SystemExit(f"rivals: no case contains {args.only!r}; hint: one of {', '.join(CONFIGS)}, fp32, bf16")
    end = time.monotonic() + 60 * args.minutes
    print(f"{'case':18} {'who':9} {'rounds':>6} {'tokens/s median':>15} {'least':>8} {'most':>8} {'RSS MiB':>8} {'at start':>8}  ours/theirs: median, least", flush=True)
    for i, (config, precision) in enumerate(cases):
        rates, peak, start = turns(args, config, precision, time.monotonic() + (end - time.monotonic()) / (len(cases) - i))
        if args.llmc and precision == "fp32" and (result := llmc(args.llmc, config, args.threads)):
            rates["llm.c"], peak["llm.c"] = [result["tokens_per_second"]] * len(rates["ours"]), result["peak_rss_bytes"]
        for name, list in rates.items():
            line = f"{config + ' ' + precision:18} {name:9} {len(list):6} {statistics.median(list):15.1f} {min(list):8.1f} {max(list):8.1f} {peak[name] / 2**20:8.0f} {start.get(name, 0) / 2**20:8.0f}"
            if name != "ours":
                ratios = [a / b for a, b in zip(rates["ours"], list)]
                line += f"  {statistics.median(ratios):6.2f} {min(ratios):6.2f}"
            print(line, flush=True)


DOES_NOT_FIT = 3  # athanor's exit code


def matrix(args):
    """Drawn configurations, each beside the faster form of PyTorch, and the quantiles of all."""
    cases = drawn(args.seed, args.count, args.flops)
    print(f"seed {args.seed}\n{'configuration':58} {'':4} {'ours':>8} {'theirs':>8} {'form':8} {'ratio':>5}  {'RSS MiB':>7} {'theirs':>7}", flush=True)
    ratios = {"fp32": [], "bf16": []}
    for config, precision in cases[args.skip :]:
        try:
            rates, peak, _ = turns(args, config, precision, 0)
        except subprocess.CalledProcessError as e:
            if e.returncode != DOES_NOT_FIT:
                raise
            print(f"{short(config):58} {precision:4} does not fit: {e.stderr.strip()[-120:]}", flush=True)
            continue
        best = max((name for name in rates if name != "ours"), key=lambda name: statistics.median(rates[name]))
        ratio = statistics.median([a / b for a, b in zip(rates["ours"], rates[best])])
        ratios[precision].append(ratio)
        print(f"{short(config):58} {precision:4} {statistics.median(rates['ours']):8.0f} {statistics.median(rates[best]):8.0f} {best:8} {ratio:5.2f}  {peak['ours'] / 2**20:7.0f} {peak[best] / 2**20:7.0f}", flush=True)
    for precision, list in ratios.items():
        if list:
            list.sort()
            print(f"{precision}: {len(list)} configurations, median {statistics.median(list):.2f}, tenth percentile {list[len(list) // 10]:.2f}, worst {list[0]:.2f}")


def add_turns(p, cores):
    """The flags of turns."""
    p.add_argument("--ours", required=True, help="the athanor binary")
    p.add_argument("--rounds", type=int, default=2, help="at least, for each case")
    p.add_argument("--steps", type=int, default=3, help="of one turn")
    p.add_argument("--warmup", type=int, default=3, help="steps of PyTorch before the first turn")
    p.add_argument("--no-compile", dest="compile", action="store_false")
    p.add_argument("--untuned", dest="tuned", action="store_false", help="PyTorch with the system's allocator as it is: slower, less memory")
    p.add_argument("--threads", type=int, default=cores)
    p.add_argument("--json", help="file to append results to")


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    p = verbs.add_parser("serve")
    p.add_argument("config", help="a name, or JSON")
    p.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--threads", type=int, default=cores)
    p.set_defaults(run=serve)
    p = verbs.add_parser("pair")
    add_turns(p, cores)
    p.add_argument("--minutes", type=float, default=8, help="for all cases together, set-up included")
    p.add_argument("--only", default="", help="cases whose name contains this, such as gpt2 or 'b4t256 bf16'")
    p.add_argument("--llmc", help="folder with builds of llm.c")
    p.set_defaults(run=pair)
    p = verbs.add_parser("matrix")
    add_turns(p, cores)
    p.add_argument("--seed", type=int, default=int(time.time()), help="of the half that is not always the same")
    p.add_argument("--count", type=int, default=24)
    p.add_argument("--skip", type=int, default=0, help="so many of them: to go on after an interruption, with the same seed")
    p.add_argument("--flops", type=float, default=1e12, help="of a step, at most")
    p.set_defaults(run=matrix)
    p = verbs.add_parser("llmc")
    p.add_argument("folder")
    p.set_defaults(run=llmc_files)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
