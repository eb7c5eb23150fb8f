"""The table of tools/gpu-check.sh: Athanor's training steps beside PyTorch's.

    gpu_table.py FOLDER    of logs: NAME-LENGTH[-limited].log, torch-....log

FLOPs are those of the forward and backward pass, the same for both; MFU is the
fraction of the 8192^3 bf16 product that was measured in the same run."""

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
    """The report of bench step: JSON that may follow other lines."""
    at = text(path).find("{\n")
    return json.loads(text(path)[at:]) if at >= 0 else None


folder, peak = sys.argv[1], product(sys.argv[1])
print(f"measured 8192^3 bf16 product: {peak / 1e12:.0f} TFLOP/s")
print(f"{'step':<26} {'batch':>5} {'tokens/s':>9} {'PyTorch':>9} {'ratio':>6} {'MFU':>6} {'PyTorch':>7} {'seconds':>8} {'predicted':>9} {'device':>9} {'host':>9}")
for path in sorted(glob.glob(folder + "/*.yaml")):
    name = os.path.basename(path)[: -len(".yaml")]
    try:
        r = report(f"{folder}/{name}.log")
    except (OSError, ValueError):
        r = None
    if not r:
        print(f"{name:<26} failed: see {name}.log")
        continue
    seconds, tokens = r["step_seconds"], r["sequences"] * r["sequence_length"]
    flops = r["mfu"] * r["machine"]["bf16_flops"] * seconds
    try:
        other = float(re.search(r"^STEP torch \S+ \S+ \S+ \S+ (\S+)", text(f"{folder}/torch-{name}.log"), re.M)[1])
    except (OSError, TypeError):
        other = None

    def cell(f, width, form):
        return f"{f():{width}{form}}" if other else f"{'-':>{width}}"

    share = (lambda s: flops / s / peak) if peak else (lambda s: 0.0)
    print(
        f"{name:<26} {r['sequences']:>5} {tokens / seconds:>9.0f} {cell(lambda: tokens / other, 9, '.0f')} {cell(lambda: other / seconds, 6, '.2f')}"
        f" {share(seconds):>6.1%} {cell(lambda: share(other), 7, '.1%')} {seconds:>8.3f} {r.get('predicted_seconds', 0) / seconds - 1:>+9.1%}"
        f" {r['arena_bytes']['device'][0] / 1e9:>6.1f} GB {r['arena_bytes']['host'][0] / 1e9:>6.1f} GB"
    )
    for o in sorted(r["operators"], key=lambda o: -o["seconds"])[:5]:
        print(f"    {o['name']:<22} {o['stream']:<10} {o['calls']:>6} calls {o['seconds'] * 1e3:>9.2f} ms")
