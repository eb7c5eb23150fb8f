"""Text from a model folder, by transformers beside Athanor's, with the same prompt, in turn.

  generation.py BINARY FOLDER [--device cuda] [--precision bf16] [--prompt 7500] [--tokens 64] [--rounds 3] [--device-memory SIZE]

Needs torch 2.x and transformers; without these, only Athanor is measured. FOLDER is a Hugging Face folder, such as a checkpoint. The prompt is so
many characters of ARCHITECTURE.md. Prints the seconds that it takes and the tokens per second after it, the likeliest token at
a time; and how many of the first tokens are the same.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from rivals import ALLOCATOR


def theirs(model, ids, tokens):
    """Returns the seconds of the prompt, those of each later token, and the tokens."""
    import torch

    with torch.inference_mode():
        began = time.perf_counter()  # reading a logit waits for the GPU
        out = model(ids, use_cache=True, logits_to_keep=1)
        took = [out.logits[0, -1].argmax().item()]
        read = time.perf_counter() - began
        began = time.perf_counter()
        while len(took) < tokens:
            out = model(torch.tensor([took[-1:]], device=ids.device), past_key_values=out.past_key_values, use_cache=True)
            took.append(out.logits[0, -1].argmax().item())
    return read, (time.perf_counter() - began) / (tokens - 1), took


def ours(binary, folder, text, args):
    command = [binary, "generate", folder, "--prompt", text, "--max-tokens", str(args.tokens), "--temperature", "0", "--device", args.device, "--precision", args.precision, "--json"]
    if args.device_memory:
        command += ["--device-memory", args.device_memory]
    r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return r["prompt_seconds"], r["seconds"] / (r["tokens"] - 1), r["ids"], r["prompt_tokens"], r["device_bytes"], r["streamed_bytes"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("folder")
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--device-memory", help="for Athanor alone")
    p.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    p.add_argument("--prompt", type=int, default=7500)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3)
    args = p.parse_args()
    if "GLIBC_TUNABLES" not in os.environ:  # huge pages for torch, as in rivals.py
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GLIBC_TUNABLES": ALLOCATOR})

    with open(os.path.join(os.path.dirname(__file__), "..", "ARCHITECTURE.md"), encoding="utf-8") as f:
        text = f.read()[: args.prompt]
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        for _ in range(args.rounds):
            a = ours(args.binary, args.folder, text, args)
            print(f"RATE prompt of {a[3]} tokens: {a[0]:.3f} s; then {1 / a[1]:.1f} tokens/s, in {a[4]} bytes of the device's memory, {a[5]} copied for each token")
        return

    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32 if args.precision == "fp32" else torch.bfloat16).eval().to(args.device)
    ids = torch.tensor([AutoTokenizer.from_pretrained(args.folder)(text)["input_ids"]], device=args.device)
    theirs(model, ids, 4)
    rounds = []
    for _ in range(args.rounds):
        a, b = ours(args.binary, args.folder, text, args), theirs(model, ids, args.tokens)
        if a[3] != ids.shape[1]:
            raise SystemExit(f"Athanor reads {a[3]} tokens, transformers {ids.shape[1]}")
        same = next((i for i, (x, y) in enumerate(zip(a[2], b[2])) if x != y), len(a[2]))
        rounds.append((a[0], b[0], a[1], b[1]))
        print(f"RATE prompt of {a[3]} tokens: {a[0]:.3f} s, transformers {b[0]:.3f} s; then {1 / a[1]:.1f} tokens/s, transformers {1 / b[1]:.1f}; the first {same} of {len(a[2])} tokens are the same; {a[5]} bytes copied for each")
    read, write = (statistics.median(r[i + 1] / r[i] for r in rounds) for i in (0, 2))
    print(f"RATE medians of the ratios to transformers: prompt {read:.2f}, text {write:.2f}")


if __name__ == "__main__":
    main()
