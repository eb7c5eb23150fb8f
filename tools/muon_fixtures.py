#!/usr/bin/env python3
"""Writes what torch.optim.Muon computes: kernel/testdata/muon.json, ten updates of matrices of several shapes and the first step
of some in bf16, and
testdata/torch/*/muon.json, ten steps of tiny models with Muon for the layers' matrices and AdamW for all else.

    python3 tools/muon_fixtures.py

It is PyTorch's own code but for one cast: products are in the type of the gradients instead of bfloat16, so that differences
are of arithmetic and not of rounding; those in bf16 are without that change. Needs torch >= 2.9, transformers.
"""
import inspect
import json
import pathlib
import types

import torch
import transformers
from torch.optim import _muon

CAST = "dtype=torch.bfloat16"
source = inspect.getsource(_muon)
assert source.count(CAST) == 1
exact = types.ModuleType("torch.optim._exact_muon")
exact.__package__ = "torch.optim"
exec(compile(source.replace(CAST, "dtype=grad.dtype"), "_muon.py", "exec"), exact.__dict__)

ROOT = pathlib.Path(__file__).parent.parent
TERMS = dict(lr=0.02, weight_decay=0.1, momentum=0.95)


def short(x):
    return [float(f"{v:.9g}") for v in x.detach().flatten().tolist()]


def matrices():
    result = dict(rate=TERMS["lr"], decay=TERMS["weight_decay"], momentum=TERMS["momentum"], cases=[])
    generator = torch.Generator().manual_seed(1)
    for rows, cols, scale in [(2, 6, "original"), (6, 2, "original"), (4, 4, "match_rms_adamw"), (3, 5, "match_rms_adamw"), (5, 1, "match_rms_adamw")]:
        draw = lambda: torch.tensor(short(torch.randn(rows, cols, generator=generator, dtype=torch.float64))).double().reshape(rows, cols)
        p = torch.nn.Parameter(draw())
        case = dict(rows=rows, cols=cols, scale=scale, initial=short(p), steps=[])
        optimizer = exact.Muon([p], adjust_lr_fn=scale, **TERMS)
        for _ in range(10):
            p.grad = draw()
            optimizer.step()
            case["steps"].append(dict(gradients=short(p.grad), weights=short(p), means=short(optimizer.state[p]["momentum_buffer"])))
        result["cases"].append(case)
    result["rounded"] = []
    for rows, cols in [(24, 40), (40, 24), (32, 32)]:
        gradient = torch.tensor(short(torch.randn(rows, cols, generator=generator))).reshape(rows, cols)
        p = torch.nn.Parameter(torch.zeros(rows, cols))
        p.grad = gradient
        torch.optim.Muon([p], lr=1, weight_decay=0, momentum=TERMS["momentum"], adjust_lr_fn="original").step()
        result["rounded"].append(dict(rows=rows, cols=cols, gradient=short(gradient), weights=short(p)))
    return result


def training(folder, scale, rate):
    """Ten steps of the split in float64: losses[i] belongs to the weights before step i+1."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").train()
    tokens = torch.tensor(json.loads((folder / "tokens.json").read_text()))
    whole, other = [], []
    for name, p in model.named_parameters():
        layer = ".layers." in name or ".h." in name
        (whole if layer and p.ndim == 2 else other).append(p)
    lr, decay, clip = 1e-3, 0.1, 1.0
    muon = exact.Muon(whole, lr=lr * rate, weight_decay=decay, adjust_lr_fn=scale)
    adamw = torch.optim.AdamW([dict(params=[p for p in other if p.ndim > 1], weight_decay=decay), dict(params=[p for p in other if p.ndim == 1], weight_decay=0)],
                              lr=lr, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses, norms = [], []
    for _ in range(11):
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        muon.step()
        adamw.step()
    return dict(scale=scale, rate=rate, losses=losses, grad_norms=norms[:10])


(ROOT / "kernel/testdata/muon.json").write_text(json.dumps(matrices()) + "\n")
for name, cases in {"llama-tiny": [("match_rms_adamw", 1), ("original", 20)], "gpt2-tiny": [("match_rms_adamw", 3)]}.items():
    folder = ROOT / "testdata/torch" / name
    (folder / "muon.json").write_text(json.dumps([training(folder, *case) for case in cases], indent=1) + "\n")
