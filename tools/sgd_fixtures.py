#!/usr/bin/env python3
"""Writes kernel/testdata/sgd.json: ten steps of torch.optim.SGD for a few weights, in float64, with gradients drawn here.

    python3 tools/sgd_fixtures.py
"""
import json
import pathlib

import torch

RATE, STEPS, COUNT = 0.3, 10, 12

draw = torch.Generator().manual_seed(1)
weights = torch.nn.Parameter(torch.randn(COUNT, generator=draw, dtype=torch.float64))
optimizer = torch.optim.SGD([weights], lr=RATE)
result = dict(rate=RATE, initial=weights.tolist(), steps=[])
for _ in range(STEPS):
    weights.grad = torch.randn(COUNT, generator=draw, dtype=torch.float64)
    optimizer.step()
    result["steps"].append(dict(gradients=weights.grad.tolist(), weights=weights.tolist()))
path = pathlib.Path(__file__).parent.parent / "kernel/testdata/sgd.json"
path.write_text(json.dumps(result, indent=1) + "\n")
