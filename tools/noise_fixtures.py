#!/usr/bin/env python3
"""Writes what PyTorch computes with dropout of adapters and with NEFTune: testdata/torch/*/noise.json, ten steps of tiny models.

    python3 tools/noise_fixtures.py

The random numbers are ours, which are hashes: see graph/chance.go and simd.Draws, of which this has another implementation. Where they
apply is PEFT's doing: modules with these masks replace its torch.nn.Dropout. NEFTune's noise is added by a hook on the embedding, as
TRL and transformers do. Needs torch, transformers, peft, numpy.
"""
import json
import pathlib

import numpy
import peft
import torch
import transformers

ROOT = pathlib.Path(__file__).parent.parent / "testdata/torch"
M64, M32 = (1 << 64) - 1, (1 << 32) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & M64
    return x ^ x >> 31


def fnv(text):
    h = 2166136261
    for c in text.encode():
        h = ((h ^ c) * 16777619) & M32
    return h


def drawn(name, rows, cols, seed, step):
    """Numbers from 0 to 65535 for the elements of a mask."""
    result = numpy.zeros((rows, cols), dtype=numpy.uint32)
    first = mix((mix(seed) + step) & M64)
    n = numpy.arange(cols, dtype=numpy.uint32)
    for row in range(rows):
        key = max(mix((first + row + 1) & M64) >> 33, 1)
        bits = mix(key | fnv(name) << 32)
        x = n + numpy.uint32(bits & M32)
        x = (x ^ x >> numpy.uint32(16)) * numpy.uint32(0x7FEB352D) ^ numpy.uint32(bits >> 32)
        result[row] = (x ^ x >> numpy.uint32(15)) * numpy.uint32(0x846CA68B) >> numpy.uint32(16)
    return torch.from_numpy(result.astype(numpy.int64))


now = dict(seed=0, step=0)


class Dropout(torch.nn.Module):
    def __init__(self, name, rate):
        super().__init__()
        self.name, self.rate = name, rate

    def forward(self, x):
        kept = drawn(self.name, x[..., 0].numel(), x.shape[-1], **now) >= round(self.rate * 65536)
        return x * kept.reshape(x.shape) / (1 - self.rate)


def training(folder, adapter, rate, alpha):
    """Ten AdamW steps in float64: losses[i] and norms[i] (before clipping) belong to the weights before step i+1."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    embedding = model.get_input_embeddings()
    name = next(n for n, m in model.named_modules() if m is embedding) + ".weight"
    if alpha:
        def noise(_, args, out):
            u = (2 * drawn(name, out[..., 0].numel(), out.shape[-1], **now).double() - 65535) / 65536
            return out + u.reshape(out.shape) * alpha / (out.shape[1] * out.shape[2]) ** 0.5
        embedding.register_forward_hook(noise)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, folder / "lora", is_trainable=True, autocast_adapter_dtype=False).double()
        for path, module in model.named_modules():
            if isinstance(module, peft.tuners.lora.LoraLayer) and rate:
                module.lora_dropout["default"] = Dropout(path.removeprefix("base_model.model.") + ".lora_A.weight", rate)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    parts = [[p for n, p in trained.items() if (p.ndim < 2 or n.endswith("bias")) == vector] for vector in (False, True)]
    optimizer = torch.optim.AdamW([dict(params=p, weight_decay=d) for p, d in zip(parts, (0.1, 0)) if p], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    tokens = torch.tensor(json.loads((folder / "tokens.json").read_text()))
    losses, norms = [], []
    for step in range(10):
        now.update(seed=0, step=step + 1)
        optimizer.zero_grad()
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return dict(adapter=adapter, dropout=rate, neftune=alpha, losses=losses, norms=norms)


for folder, adapter, rate, alpha in [("llama-tiny", True, 0.25, 5), ("gpt2-tiny", True, 0.1, 0), ("granite-tiny", True, 0.5, 10), ("gemma-tiny", False, 0, 5)]:
    result = training(ROOT / folder, adapter, rate, alpha)
    (ROOT / folder / "noise.json").write_text(json.dumps(result, indent=1) + "\n")
    print(folder, result["losses"][0], result["losses"][-1])
