#!/usr/bin/env python3
"""Writes kernel/testdata/pairs.json: losses of single pairs and their derivatives with respect to the loss of each token, by TRL's
own functions: CPOTrainer.cpo_loss (sigmoid, ipo, simpo) and ORPOTrainer.odds_ratio_loss, to which ORPO adds the mean loss of the
chosen answer's tokens.

    python3 tools/pair_fixtures.py

Needs torch and trl (1.16: trl.experimental).
"""
import json
import pathlib
import types

import torch
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer

LOSSES = {"dpo": ("sigmoid", False, 0.1, 0), "ipo": ("ipo", True, 0.1, 0), "simpo": ("simpo", True, 2.0, 1.0), "orpo": (None, True, 0.25, 0)}
torch.Tensor.float = torch.Tensor.double  # odds_ratio_loss casts to fp32
draw = torch.Generator().manual_seed(2)
cases = []
for name, (kind, averages, beta, margin) in LOSSES.items():
    for chosen, rejected in [(3, 5), (1, 1), (6, 2)]:
        nll = [(torch.rand(n, generator=draw, dtype=torch.float64) * 4 + 0.01).round(decimals=4).requires_grad_() for n in (chosen, rejected)]
        reference = [round(-float(x) * (1 if averages else 8), 4) if name in ("dpo", "ipo") else 0 for x in torch.rand(2, generator=draw)]
        value = lambda x, ref: (-x.mean() if averages else -x.sum()) - ref
        one, other = value(nll[0], reference[0]), value(nll[1], reference[1])
        trainer = types.SimpleNamespace(alpha=0.0, beta=beta, simpo_gamma=margin, label_smoothing=0, loss_type=kind, accelerator=types.SimpleNamespace(device="cpu"))
        if name == "orpo":
            loss = nll[0].mean() - ORPOTrainer.odds_ratio_loss(trainer, one, other)[0]
        else:
            loss = CPOTrainer.cpo_loss(trainer, one, other)[0]
        loss.backward()
        cases.append(dict(loss=name, beta=beta, margin=margin, chosen=nll[0].tolist(), rejected=nll[1].tolist(), reference=reference,
                          value=loss.item(), by_chosen=nll[0].grad.tolist(), by_rejected=nll[1].grad.tolist()))
path = pathlib.Path(__file__).parent.parent / "kernel/testdata/pairs.json"
path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
