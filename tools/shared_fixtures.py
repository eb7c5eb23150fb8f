#!/usr/bin/env python3
"""Writes testdata/torch/*/shared.json: ten steps of AdamW, by transformers in float64, of tiny models all of whose layers are the first.

    python3 tools/shared_fixtures.py

The modules of the layers are one module, so autograd adds up the gradients of its uses. Needs torch, transformers.
"""
import json
import pathlib

import torch
import transformers

ROOT = pathlib.Path(__file__).parent.parent

for name, layers in {"llama-tiny": "model.layers", "gpt2-tiny": "transformer.h"}.items():
    folder = ROOT / "testdata/torch" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").train()
    model.config.use_cache = False
    shared = model.get_submodule(layers)
    for i in range(1, len(shared)):
        shared[i] = shared[0]
    tokens = torch.tensor(json.loads((folder / "tokens.json").read_text()))
    params = list(model.parameters())  # each once
    adamw = torch.optim.AdamW([dict(params=[p for p in params if p.ndim > 1], weight_decay=0.1), dict(params=[p for p in params if p.ndim == 1], weight_decay=0)],
                              lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses, norms = [], []
    for _ in range(11):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1], use_cache=False).logits.flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(params, 1.0).item())
        adamw.step()
    result = dict(layers=len(shared), losses=losses, grad_norms=norms[:10])
    (folder / "shared.json").write_text(json.dumps(result) + "\n")
    print(name, len(shared), losses[0], losses[-1])
