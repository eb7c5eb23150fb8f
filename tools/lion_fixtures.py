#!/usr/bin/env python3
"""Writes kernel/testdata/lion.json: ten Lion updates of a few weights, as lion-pytorch (lucidrains) and the paper's authors'
code make them (2302.06675), in Python's float64. It shares no code and no formula with this repository's.

    python3 tools/lion_fixtures.py
"""
import json
import pathlib
import random

RATE, BETA1, BETA2, DECAY, STEPS, COUNT = 1e-2, 0.9, 0.99, 0.3, 10, 12


def sign(x):
    return (x > 0) - (x < 0)


def update(p, grad, exp_avg):
    """update_fn of lion-pytorch for one element: returns the weight and the mean after the step."""
    p *= 1 - RATE * DECAY  # p.data.mul_(1. - lr * wd)
    step = exp_avg * BETA1 + grad * (1 - BETA1)  # exp_avg.clone().mul_(beta1).add(grad, alpha=1. - beta1).sign_()
    p += -RATE * sign(step)  # p.add_(update, alpha=-lr)
    exp_avg = exp_avg * BETA2 + (1 - BETA2) * grad  # exp_avg.mul_(beta2).add_(grad, alpha=1. - beta2)
    return p, exp_avg


draw = random.Random(1)
weights = [draw.gauss(0, 1) for _ in range(COUNT)]
means = [0.0] * COUNT
result = dict(rate=RATE, beta1=BETA1, beta2=BETA2, decay=DECAY, initial=list(weights), steps=[])
for _ in range(STEPS):
    grads = [draw.gauss(0, 1) for _ in range(COUNT)]
    grads[0] = 0.0  # a weight without a gradient only decays
    for i, g in enumerate(grads):
        weights[i], means[i] = update(weights[i], g, means[i])
    result["steps"].append(dict(gradients=grads, weights=list(weights), means=list(means)))
path = pathlib.Path(__file__).parent.parent / "kernel/testdata/lion.json"
path.write_text(json.dumps(result, indent=1) + "\n")
