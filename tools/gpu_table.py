"""The table of tools/gpu-check.sh: Athanor's training steps beside PyTorch's.

    gpu_table.py FOLDER    of logs: NAME-LENGTH[-limited].log, torch-....log

FLOPs are those of the forward and backward pass, the same for both; MFU is the
fraction of the 8192^3 bf16 product that was measured in the same run. Calls are
those of the driver in a step; idle is the share of it in which the compute stream
does nothing, because it waits for data or for the host to launch something. GB are
of the GPU: the arena, and what PyTorch reserved."""

import glob
import json
import os
import re
import sys


def text(path):
    with open(path, errors="replace") as f:
        return f.read()


def product(folder):
    rates = [float(r) for p in glob.glob(folder + "/*.log") for r in re.findall(r"^RATE .*8192\^3 bf16 product.* ([\d.]+) TFLOP/s", text(p), re.M)]
    return max(rates, default=0) * 1e12


def report(path):
    """The report of bench step: JSON between other lines."""
    at = text(path).find("{\n")
    return json.JSONDecoder().raw_decode(text(path)[at:])[0] if at >= 0 else None


folder, peak = sys.argv[1], product(sys.argv[1])
print(f"measured 8192^3 bf16 product: {peak / 1e12:.0f} TFLOP/s")
print(f"{'step':<30} {'batch':>5} {'tokens/s':>9} {'PyTorch':>9} {'ratio':>6} {'MFU':>6} {'PyTorch':>7} {'seconds':>8} {'predicted':>9} {'calls':>7} {'idle':>6} {'GB':>6} {'PyTorch':>7} {'host':>6}")
for path in sorted(glob.glob(folder + "/*.yaml")):
    name = os.path.basename(path)[: -len(".yaml")]
    try:
        r = report(f"{folder}/{name}.log")
    except (OSError, ValueError):
        r = None
    if not r:
        print(f"{name:<30} failed: see {name}.log")
        continue
    seconds, tokens = r["step_seconds"], r["sequences"] * r["sequence_length"]
    flops = r["mfu"] * r["machine"]["bf16_flops"] * seconds
    try:
        other, room = map(float, re.search(r"^STEP torch \S+ \S+ \S+ \S+ (\S+) \S+ (\S+)", text(f"{folder}/torch-{name}.log"), re.M).groups())
    except (OSError, AttributeError):
        other = room = None

    def cell(f, width, form):
        return f"{f():{width}{form}}" if other else f"{'-':>{width}}"

    share = (lambda s: flops / s / peak) if peak else (lambda s: 0.0)
    idle = sum(o["share"] for o in r["operators"] if o["name"] == "idle")
    print(
        f"{name:<30} {r['sequences']:>5} {tokens / seconds:>9.0f} {cell(lambda: tokens / other, 9, '.0f')} {cell(lambda: other / seconds, 6, '.2f')}"
        f" {share(seconds):>6.1%} {cell(lambda: share(other), 7, '.1%')} {seconds:>8.3f} {r.get('predicted_seconds', 0) / seconds - 1:>+9.1%}"
        f" {r.get('driver_calls', 0):>7} {idle:>6.1%} {r['arena_bytes']['device'][0] / 1e9:>6.1f} {cell(lambda: room / 1e9, 7, '.1f')} {r['arena_bytes']['host'][0] / 1e9:>6.1f}"
    )
    print(f"    plan: {r['plan']}")
    for p in r.get("refused_products", []):
        print(f"    slow, since the matrix library refused it: {p}")
    for o in sorted(r["operators"], key=lambda o: -o["seconds"])[:6]:
        print(f"    {o['name']:<22} {o['stream']:<10} {o['calls']:>6} calls {o['seconds'] * 1e3:>9.2f} ms, predicted {o.get('predicted_seconds', 0) * 1e3:>9.2f}")
