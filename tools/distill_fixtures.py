#!/usr/bin/env python3
"""Writes what PyTorch computes where a model learns from a teacher: testdata/torch/*/distil.json, ten steps of tiny models in float64.

    python3 tools/distill_fixtures.py

The teacher's logits are sines, as in session/distil_test.go, of which it says those of some tokens; all others are one. With all tokens of
the vocabulary known the divergence is torch's kl_div. Needs torch, transformers.
"""
import json
import pathlib

import torch
import transformers

ROOT = pathlib.Path(__file__).parent.parent / "testdata/torch"


def loss_of(logits, targets, top, temperature, weight):
    nll = torch.nn.functional.cross_entropy(logits, targets)
    rows, vocab = logits.shape
    n, ids = torch.arange(rows)[:, None], torch.arange(vocab)[None, :]
    teacher = (3 * torch.sin((7 * n + 13 * ids + n * ids).double()) / temperature).log_softmax(-1)
    student = (logits / temperature).log_softmax(-1)
    if top == vocab:
        divergence = torch.nn.functional.kl_div(student, teacher, log_target=True, reduction="sum")
    else:
        known = (torch.arange(top)[None, :] + n) % vocab
        p, q = teacher.gather(1, known), student.gather(1, known)
        others, rest = 1 - p.exp().sum(1), 1 - q.exp().sum(1)
        divergence = (p.exp() * (p - q)).sum() + (others * (others / rest).log()).sum()
    return (1 - weight) * nll + weight * temperature**2 * divergence / rows


def training(folder, **how):
    """Ten AdamW steps: losses[i] and norms[i] (before clipping) belong to the weights before step i+1."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    parts = [[p for n, p in model.named_parameters() if (p.ndim < 2 or n.endswith("bias")) == vector] for vector in (False, True)]
    optimizer = torch.optim.AdamW([dict(params=p, weight_decay=d) for p, d in zip(parts, (0.1, 0))], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    tokens = torch.tensor(json.loads((folder / "tokens.json").read_text()))
    losses, norms = [], []
    for _ in range(10):
        optimizer.zero_grad()
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = loss_of(logits.flatten(0, 1), tokens[:, 1:].flatten(), **how)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return dict(how, losses=losses, norms=norms)


for name in ["llama-tiny", "gpt2-tiny", "gemma2-tiny"]:
    vocab = json.loads((ROOT / name / "config.json").read_text())["vocab_size"]
    runs = [training(ROOT / name, top=k, temperature=t, weight=w) for k, t, w in [(5, 1, 0.5), (7, 2, 0.75), (vocab, 2, 1)]]
    (ROOT / name / "distil.json").write_text(json.dumps(runs, indent=1) + "\n")
    print(name, [r["losses"][0] for r in runs])
