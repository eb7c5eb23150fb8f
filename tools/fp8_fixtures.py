#!/usr/bin/env python3
"""Writes what PyTorch computes where the layers' matrices are multiplied in FP8, into folders of testdata/torch.

    pip install torch transformers safetensors
    tools/fp8_fixtures.py [OUT]

torchao's formulas (torchao/float8) on a CPU: scales are the greatest powers of two by which rows stay within E4M3, of rows of
x and of w in y = x.w^T, of rows of dy and columns of w in dx = dy.w ("rowwise"); dw is a product of what is not rounded
("rowwise_with_gw_hp"). torch.float8_e4m3fn does the rounding. OUT/e4m3.sha256 is of the codes of all numbers of bf16 within E4M3.
"""
import hashlib
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

import torch_fixtures as plain

FOLDERS = ["llama-tiny", "gpt2-tiny"]
E4M3, EPS = torch.float8_e4m3fn, 1e-12


def rounded(x, dim):
    """x with what shares a scale along dim rounded to E4M3."""
    amax = x.abs().amax(dim, keepdim=True).double().clamp(min=EPS)
    scale = torch.exp2(torch.floor(torch.log2((torch.finfo(E4M3).max / amax).float()))).to(x.dtype)
    return (x * scale).to(E4M3).to(x.dtype) / scale


class Product(torch.autograd.Function):
    """y = x.w^T, w [out, in]."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return rounded(x, -1) @ rounded(w, -1).T

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return rounded(dy, -1) @ rounded(w, 0), dy.flatten(0, -2).T @ x.flatten(0, -2)


def convert(model):
    """Replaces the products of the layers' matrices."""
    for name, layer in model.named_modules():
        if ".layers." in f".{name}" and isinstance(layer, torch.nn.Linear):
            layer.forward = lambda x, layer=layer: Product.apply(x, layer.weight) + (0 if layer.bias is None else layer.bias)
        elif isinstance(layer, transformers.pytorch_utils.Conv1D):
            layer.forward = lambda x, layer=layer: Product.apply(x, layer.weight.T) + layer.bias
    return model


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/torch")
    all16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    codes = all16[all16.abs() <= torch.finfo(E4M3).max].to(E4M3).view(torch.uint8)
    (out / "e4m3.sha256").write_text(hashlib.sha256(codes.numpy().tobytes()).hexdigest() + "\n")
    for name in FOLDERS:
        folder = out / name
        tokens = torch.tensor(json.loads((folder / "tokens.json").read_text()))
        model = convert(plain.again(folder, torch.float32).eval())
        logits, loss = plain.loss_of(model, tokens)
        loss.backward()
        save_file({"logits": logits.detach().contiguous()} | {n: p.grad.contiguous() for n, p in model.named_parameters()}, folder / "fp8.safetensors")
        (folder / "fp8.safetensors").chmod(0o644)
        losses, norms = plain.train(convert(plain.again(folder, torch.float32).eval()), tokens)
        (folder / "fp8.json").write_text(json.dumps(dict(losses=losses, grad_norms=norms), indent=1) + "\n")
        print(name, losses[0], losses[-1])


if __name__ == "__main__":
    main()
