#!/usr/bin/env python3
"""Compares the plans of two builds on described machines: predicted steps, candidates, CPU seconds.

    tools/plans.py BASE NEW [NAME ...]

BASE and NEW are athanor binaries. Each case is planned by both in turn; NAME chooses some, cells the 72 in which policies are
compared (docs/measurements/policies.md). Exits with 1 if a step of NEW is more than 0.5 % longer, also by NEW's prices: what a
step takes may have been corrected since BASE. CPU seconds are the process's own, so a busy machine stretches them by less than
wall time.
"""
import itertools
import json
import resource
import subprocess
import sys
import tempfile

WORST = 1.005

CASES = {
    "8B 4090 64GB": "llama-3-8b sequence_length=4096 global_batch=16 hardware.name=rtx4090 limits.host=64GB",
    "8B 4090 16GB bf16": "llama-3-8b sequence_length=4096 global_batch=16 hardware.name=rtx4090 limits.host=16GB precision=bf16 optimizer_state=bf16 gradient_clipping=0",
    "20B 8 x A100": "gpt2-20b sequence_length=1024 global_batch=64 hardware.name=a100-80 ranks=8",
    "7B 4 x A100": "llama-2-7b sequence_length=4096 global_batch=64 hardware.name=a100-80 ranks=4",
    "13B 2 x 8 A100 25Gbit/s": "llama-2-13b sequence_length=4096 global_batch=256 hardware.name=a100-80 ranks=16 hardware.network=25Gbit/s",
    "XL 3090": "gpt2-xl sequence_length=1024 global_batch=64 hardware.name=rtx3090",
    "124M 4090 500MiB": "gpt2 sequence_length=1024 global_batch=16 hardware.name=rtx4090 limits.device=500MiB",
    "1B L4": "llama-3.2-1b sequence_length=2048 global_batch=16 hardware.name=l4",
    "1B A10": "llama-3.2-1b sequence_length=1024 global_batch=8 hardware.name=a10",
    "3B 3060": "llama-3.2-3b sequence_length=2048 global_batch=8 hardware.name=rtx3060",
    "8B H100": "llama-3-8b sequence_length=4096 global_batch=8 hardware.name=h100",
    "8B adapters 4070": "llama-3-8b sequence_length=2048 global_batch=8 hardware.name=rtx4070 lora={rank:16} quantize=nf4",
    "70B adapters 4090": "llama-3-70b sequence_length=2048 global_batch=16 hardware.name=rtx4090 limits.host=64GB lora={rank:16} quantize=nf4",
    "1B 2 x 4090": "llama-3.2-1b sequence_length=2048 global_batch=32 hardware.name=rtx4090 ranks=2",
}

CELLS = {
    f"cell {model} {gpus} x {hardware}, {batch}": f"gpt2-{model} sequence_length=1024 global_batch={batch * gpus} hardware.name=elixir-paper-{hardware} ranks={gpus}"
    for model, gpus, hardware, batch in itertools.product(("4b", "10b", "15b", "20b"), (1, 2, 4), (40, 80), (4, 8, 16))
}


def plan(binary, case):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = subprocess.run([binary, "plan", "--json", *[a.replace("rank:", "rank: ") for a in case.split()]], capture_output=True, text=True)
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if run.returncode:
        return None, cpu, run.stderr.strip()[-200:]
    out = json.loads(run.stdout)
    return out["step_seconds"], cpu, out["plan"]


def reprice(binary, case, chosen):
    """What a plan takes by a binary's prices; None: it does not fit there, or is another job's."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(chosen, f)
        f.flush()
        return plan(binary, f"{case} plan={f.name}")[0]


def main():
    base, new, *names = sys.argv[1:]
    worse = 0
    for name, case in (CASES | CELLS).items():
        if name not in names and (name in CELLS and "cells" not in names or name in CASES and names):
            continue
        was, before, chosen = plan(base, case)
        now, after, why = plan(new, case)
        if was is None or now is None:
            print(f"{name:26} before {was} now {now}: {why}", flush=True)
            worse += was is not None
            continue
        print(f"{name:26} step {was:9.4g} -> {now:9.4g} s ({100 * (now / was - 1):+.2f} %)   CPU {before:5.1f} -> {after:5.1f} s ({after / before:.2f})", flush=True)
        if now > WORST * was:
            today = reprice(new, case, chosen)
            print(f"{'':26} the plan of {base} takes {today} s by the prices of {new}", flush=True)
            worse += today is not None and now > WORST * today
    sys.exit(worse > 0)


if __name__ == "__main__":
    main()
