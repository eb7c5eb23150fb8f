#!/usr/bin/env python3
"""Writes kernel/testdata/moments.json: the values of bitsandbytes' 8-bit moments, and ten updates of its AdamW8bit on the CPU.

Of bitsandbytes' two ways to find the value nearest to a number it is the exact one, which it uses for all types but fp32, fp16
and bf16; the one for these on the CPU is off by up to seven values where numbers are small.

    pip install torch bitsandbytes && python3 tools/moments_fixtures.py
"""
import json
import pathlib

import torch
from bitsandbytes.backends.cpu import ops
from bitsandbytes.functional import create_dynamic_map
from bitsandbytes.optim import AdamW8bit

RATE, BETA1, BETA2, EPS, DECAY, STEPS, COUNT = 1e-2, 0.9, 0.95, 1e-8, 0.1, 10, 600  # a part of a block at the end


def number(i, step):
    """A number of the range from -1 to 1 that every language computes alike, of another magnitude in every element."""
    h = ((i * 16 + step) * 2654435761) % 2**32 // 65536
    return (h - 32768) / 32768 / 2 ** (i % 13)


def bits(t):
    return t.view(torch.int32).tolist()


def exactly(x, code, scales, indices, block):
    found, largest = torch.ops.bitsandbytes.quantize_blockwise(x.double(), code, block)
    indices.copy_(found)
    scales.copy_(largest)


ops._quant_blockwise_fp32_direct = exactly
p = torch.nn.Parameter(torch.tensor([number(i, 0) for i in range(COUNT)], dtype=torch.float32))
optimizer = AdamW8bit([p], lr=RATE, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY, min_8bit_size=1)
result = dict(rate=RATE, beta1=BETA1, beta2=BETA2, eps=EPS, decay=DECAY, count=COUNT,
              signed=bits(create_dynamic_map(True)), unsigned=bits(create_dynamic_map(False)), steps=[])
for step in range(1, STEPS + 1):
    p.grad = torch.tensor([number(i, step) for i in range(COUNT)], dtype=torch.float32)
    optimizer.step()
    s = optimizer.state[p]
    result["steps"].append(dict(m=bytes(s["state1"].tolist()).hex(), v=bytes(s["state2"].tolist()).hex(),
                                m_scale=s["absmax1"].tolist(), v_scale=s["absmax2"].tolist()))
result["weights"] = p.tolist()
path = pathlib.Path(__file__).parent.parent / "kernel/testdata/moments.json"
path.write_text(json.dumps(result) + "\n")
