"""What PyTorch reaches on this GPU, for tools/gpu-check.sh.

    gpu_torch.py rates                a matrix product, attention
    gpu_torch.py step NAME T B [L]    a training step: bf16, SDPA, compiled, fused AdamW
    gpu_torch.py offload NAME T B [L] the same with everything of FSDP2 on the host,
                                      in bf16 where the host cannot hold fp32
    gpu_torch.py dry                  all of it at toy sizes on the CPU: do the calls exist?

NAME is gpt2, gpt2-xl, llama-3.2-1b or llama-3-8b; B sequences of T tokens; L
other layers than the model's. Parameters are fp32, computing is bf16, as in
Athanor. Blocks and head are compiled one by one: all blocks share one
compilation, and compiled whole, 48 of them would take minutes. Where memory is short
logits are made in pieces, and then blocks are computed again."""

import gc
import math
import os
import sys
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # the largest steps fill the memory

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

dry = sys.argv[1] == "dry"
device = "cpu" if dry else "cuda"
backend = "aot_eager" if dry else "inductor"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def rate(name, value, unit):
    print(f"RATE {'PyTorch: ' + name:<52} {value:10.1f} {unit}", flush=True)


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


def times(f, n):
    """n times, ascending, from the call to the end of its work."""
    out = []
    for _ in range(n):
        wait()
        start = time.perf_counter()
        f()
        wait()
        out.append(time.perf_counter() - start)
    return sorted(out)


def spans(f, n):
    """n times by the GPU's own clock, as Athanor's are, without the wait for the end."""
    if device != "cuda":
        return times(f, n)
    out = []
    for _ in range(n):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        wait()
        start.record()
        f()
        end.record()
        end.synchronize()
        out.append(start.elapsed_time(end) / 1e3)
    return sorted(out)


def product(n):
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    rate(f"{n}^3 bf16 product", 2 * n**3 / spans(lambda: a @ b, 20)[0] / 1e12, "TFLOP/s")


def attention(b, t, h, g, s):
    """Heads h of size s on g of keys."""
    q, k, v = (torch.randn(b, n, t, s, device=device, dtype=torch.bfloat16, requires_grad=True) for n in (h, g, g))
    f = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=h != g)
    flops = 2 * b * h * s * t * (t + 1)
    forward = spans(f, 10)[0]
    o = f()
    do = torch.randn_like(o)
    backward = spans(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), 10)[0]
    rate(f"attention forward, {b} x {t}, {h} heads on {g} of {s}", flops / forward / 1e12, "TFLOP/s")
    rate(f"attention backward, {b} x {t}, {h} heads on {g} of {s}", 2.5 * flops / backward / 1e12, "TFLOP/s")


def backends(b, t, h, s):
    """Forward by each of SDPA's kernels: which one is chosen above?"""
    q, k, v = (torch.randn(b, h, t, s, device=device, dtype=torch.bfloat16) for _ in range(3))
    for kind in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(kind):
                seconds = spans(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), 10)[0]
            rate(f"attention forward by {kind.name}, {b} x {t}", 2 * b * h * s * t * (t + 1) / seconds / 1e12, "TFLOP/s")
        except RuntimeError as e:  # which says what it lacks
            print(f"{kind.name}: {e}", flush=True)


piece = 4096  # rows of logits

# layers, width, heads, key heads, feed forward, vocabulary, tied
shapes = {
    "gpt2": (12, 768, 12, 12, 3072, 50257, True),
    "gpt2-xl": (48, 1600, 25, 25, 6400, 50257, True),
    "llama-3.2-1b": (16, 2048, 32, 8, 8192, 128256, True),
    "llama-3-8b": (32, 4096, 32, 8, 14336, 128256, False),
    "llama-toy": (2, 64, 4, 2, 128, 100, False),
    "gpt2-toy": (2, 64, 4, 4, 128, 100, True),
}


class Block(nn.Module):
    def __init__(self, d, h, g, f, llama):
        super().__init__()
        self.h, self.g, self.s, self.llama = h, g, d // h, llama
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.n1, self.n2 = norm(d, eps=1e-5), norm(d, eps=1e-5)
        self.qkv, self.out = nn.Linear(d, (h + 2 * g) * self.s, bias=not llama), nn.Linear(d, d, bias=not llama)
        self.up, self.down = nn.Linear(d, f * (1 + llama), bias=not llama), nn.Linear(f, d, bias=not llama)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, -1, self.s).transpose(1, 2).split((self.h, self.g, self.g), 1)
        if self.llama:
            q, k = ((y * cos + torch.cat((-y[..., self.s // 2 :], y[..., : self.s // 2]), -1) * sin).to(v.dtype) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.h != self.g)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        y = self.up(self.n2(x))
        if self.llama:
            gate, up = y.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(y, approximate="tanh"))


class Logits(nn.Module):
    """The logits of some rows and the sum of their losses."""

    def __init__(self, d, vocab):
        super().__init__()
        self.out = nn.Linear(d, vocab, bias=False)

    def forward(self, x, y):
        return F.cross_entropy(self.out(x).float(), y, reduction="sum")


class Again(nn.Module):
    """A module that is computed again in the backward pass if asked. Outside of it
    may be FSDP, which casts a call's operands once."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.again = inner, False

    def forward(self, *args):
        return checkpoint(self.inner, *args, use_reentrant=False) if self.again else self.inner(*args)


class Head(nn.Module):
    """The last norm, the logits and the loss, in pieces of rows if they are made
    again in the backward pass: whole logits are the largest tensor by far."""

    def __init__(self, d, vocab, llama):
        super().__init__()
        self.norm = (nn.RMSNorm if llama else nn.LayerNorm)(d, eps=1e-5)
        self.logits = Again(Logits(d, vocab))

    def forward(self, x, y):
        x, y = self.norm(x).flatten(0, 1), y.flatten()
        rows = piece if self.logits.again else len(y)
        return sum(self.logits(a, b) for a, b in zip(x.split(rows), y.split(rows))) / y.numel()


class Model(nn.Module):
    def __init__(self, name, t, layers):
        super().__init__()
        n, d, h, g, f, vocab, tied = shapes[name]
        llama = name.startswith("llama")
        self.wte = nn.Embedding(vocab, d)
        self.wpe = None if llama else nn.Embedding(t, d)
        self.h = nn.ModuleList(Again(Block(d, h, g, f, llama)) for _ in range(layers or n))
        self.head = Head(d, vocab, llama)
        if tied:
            self.head.logits.inner.out.weight = self.wte.weight
        self.s = d // h

    def prepare(self, pieces, again):
        """Sets what is made again, and compiles."""
        torch.compiler.reset()  # shapes and modes of another model
        self.head.logits.again = pieces
        for block in self.h:
            block.again = again
            block.inner.compile(backend=backend)
        self.head.norm.compile(backend=backend)
        self.head.logits.inner.compile(backend=backend)

    def forward(self, x, y):
        t = x.shape[1]
        p = torch.arange(t, device=x.device)
        angle = p[:, None] / 5e5 ** (torch.arange(0, self.s, 2, device=x.device) / self.s).repeat(2)
        cos, sin = angle.cos(), angle.sin()
        x = self.wte(x)
        if self.wpe is not None:
            x = x + self.wpe(p)
        x = x.bfloat16()  # what blocks pass on, as in Athanor
        for block in self.h:
            x = block(x, cos, sin)
        return self.head(x, y)


def flops(name, t, layers):
    """Per token, forward and backward, without what is computed again."""
    n, d, h, g, f, vocab, _ = shapes[name]
    n, s, llama = layers or n, d // h, name.startswith("llama")
    matrices = n * (d * (h + 2 * g) * s + d * d + (3 if llama else 2) * d * f) + d * vocab
    return 6 * matrices + 6 * n * d * (t + 1)


def batch(name, t, b):
    return (torch.randint(0, shapes[name][5], (b, t), device=device) for _ in range(2))


def initial(model):
    """Numbers that repeat: random ones for billions take longer than the steps."""
    some = 0.02 * torch.randn(99991, device=next(model.parameters()).device)
    with torch.no_grad():
        for p in model.parameters():
            flat = (p.to_local() if hasattr(p, "to_local") else p).view(-1)
            if p.dim() < 2:
                flat.fill_(1)
                continue
            for part in flat.split(len(some)):
                part.copy_(some[: len(part)])


def least(name, t, b, layers, pieces, again):
    """Bytes that a step needs for certain: fp32 parameters, gradients and moments,
    what blocks keep, logits."""
    n, d, h, g, f, vocab, tied = shapes[name]
    n, s, llama = layers or n, d // h, name.startswith("llama")
    block = d * (h + 2 * g) * s + d * d + (3 if llama else 2) * d * f
    kept = 2 * d if again else 8 * d + 2 * (h + 2 * g) * s + 2 * f
    return 16 * (n * block + (1 if tied else 2) * vocab * d) + b * t * n * kept + (piece if pieces else b * t) * vocab * 4


ways = [(False, False, ""), (True, False, ", logits in pieces"), (True, True, ", blocks again")]


def step(name, t, b, layers=0, n=8, ways=ways):
    """Steps with all kept, else with some made again."""
    room = math.inf if dry else torch.cuda.mem_get_info()[1]
    for pieces, again, how in ways:
        if least(name, t, b, layers, pieces, again) > room:
            continue
        try:
            with torch.device(device):
                model = Model(name, t, layers)
            initial(model)
            model.prepare(pieces, again)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            x, y = batch(name, t, b)

            def one():
                with torch.autocast(device, torch.bfloat16, cache_enabled=not again):
                    loss = model(x, y)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            one()
            second = times(one, 1)[0]
            report(name, t, b, layers, times(one, min(n, max(3, int(6 / second)))), how)
            return
        except torch.OutOfMemoryError:
            print(f"{name} {b} x {t}{how}: out of memory", flush=True)
            model = optimizer = one = None
            gc.collect()
            torch.cuda.empty_cache()
    print(f"RATE PyTorch: {name} {b} x {t}: out of memory", flush=True)


def report(name, t, b, layers, seconds, how):
    median = seconds[len(seconds) // 2]
    peak = 0 if dry else torch.cuda.max_memory_reserved()
    print(f"STEP torch {name} {t} {b} {layers} {median:.5f} {flops(name, t, layers) * b * t / median / 1e12:.2f} {peak}", flush=True)
    rate(f"{name} {b} x {t}{how}", b * t / median, "tokens/s")


def held(model):
    """Whether the host holds parameters, gradients and moments in fp32, and some more."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 16 * sum(p.numel() for p in model.parameters()) < 0.85 * memory


def offload(name, t, b, layers=0, n=3, half=False):
    """FSDP2 on one GPU with parameters, gradients and optimizer on the host."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    for library in "NCCL", "GLOO":  # there may be no network
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo" if dry else "cpu:gloo,cuda:nccl", rank=0, world_size=1)
    mesh = dist.init_device_mesh(device, (1,))
    with torch.device("meta"):
        model = Model(name, t, layers)
    if half or not held(model):
        model, half = model.bfloat16(), True
    model.prepare(True, True)
    for part in [model.wte, *model.h, model.head]:
        fully_shard(
            part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
            offload_policy=CPUOffloadPolicy(pin_memory=not dry),
        )
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=not dry))
    model.to_empty(device="cpu")
    initial(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = batch(name, t, b)

    def one():
        model(x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    try:
        one()
    except (RuntimeError, NotImplementedError) as e:  # of what is new, fused updates on the host
        if isinstance(e, torch.OutOfMemoryError):
            raise
        print(f"without fused AdamW: {e}", flush=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        optimizer.zero_grad(set_to_none=True)
        one()
    seconds = []
    while len(seconds) < (n if sum(seconds) < 15 else 2):  # steps of many seconds are timed twice
        seconds += times(one, 1)
        print(f"a step took {seconds[-1]:.2f} s", flush=True)
    report(name, t, b, layers, sorted(seconds), ", FSDP2 offload" + (", all in bf16" if half else ""))
    dist.destroy_process_group()


def main(verb, *args):
    if verb == "dry":
        product(64)
        attention(1, 32, 4, 2, 16)
        backends(1, 32, 4, 16)
        for way in ways:
            step("llama-toy", 32, 2, n=1, ways=[way])
        step("gpt2-toy", 32, 2, n=1)
        offload("llama-toy", 32, 2, n=1)
        offload("llama-toy", 32, 2, n=1, half=True)
    elif verb == "rates":
        product(8192)
        for shape in ((32, 1024, 12, 12, 64), (8, 4096, 12, 12, 64), (16, 1024, 25, 25, 64), (4, 4096, 32, 8, 64), (16, 1024, 32, 8, 128), (4, 4096, 32, 8, 128)):
            attention(*shape)
        backends(2, 4096, 32, 128)
    else:
        {"step": step, "offload": offload}[verb](args[0], *map(int, args[1:]))


main(*sys.argv[1:])
