"""What PyTorch reaches on this GPU, for tools/gpu-check.sh: a matrix product,
attention, and training steps of GPT-2 124M (compiled, SDPA, bf16, fused AdamW)."""

import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"


def rate(name, value, unit):
    print(f"RATE {'PyTorch: ' + name:<44} {value:10.1f} {unit}", flush=True)


def best(f, times):
    least = math.inf
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        f()
        torch.cuda.synchronize()
        least = min(least, time.perf_counter() - start)
    return least


def product(n=8192):
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    rate("8192^3 bf16 product", 2 * n**3 / best(lambda: a @ b, 20) / 1e12, "TFLOP/s")


def attention(b, t, h, s):
    q, k, v = (torch.randn(b, h, t, s, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    flops = 2 * b * h * s * t * (t + 1)
    forward = best(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), 10)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    do = torch.randn_like(o)
    backward = best(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), 10)
    rate(f"attention forward, {b} x {t}, {h} heads of {s}", flops / forward / 1e12, "TFLOP/s")
    rate(f"attention backward, {b} x {t}, {h} heads of {s}", 2.5 * flops / backward / 1e12, "TFLOP/s")


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in self.qkv(self.n1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocab=50257, t=1024, d=768, layers=12, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(t, d)
        self.h = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, x, y):
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), y.view(-1))


def gpt2(batch=16, t=1024):
    model = GPT2().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    x, y = (torch.randint(0, 50257, (batch, t), device=device) for _ in range(2))

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    rate("GPT-2 124M, bf16, 16 x 1024", batch * t / best(step, 10), "tokens/s")


product()
attention(8, 1024, 12, 64)
attention(2, 4096, 32, 128)
gpt2()
