"""Text from a model folder, by transformers beside Athanor's, with the same prompt, in turn.

  generation.py BINARY FOLDER [--precision bf16] [--prompt 2048] [--tokens 64] [--rounds 3]

Needs torch 2.x, transformers, and Go's source for the prompt. FOLDER is a Hugging Face folder, such as a checkpoint. Prints the seconds
that the prompt takes and the tokens per second after it, the likeliest token at a time; and how many of the first tokens are the same.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from rivals import ALLOCATOR


def prompt_of(tokenizer, tokens):
    """Returns Go's source, cut to at most so many tokens."""
    root = subprocess.run(["go", "env", "GOROOT"], check=True, capture_output=True, text=True).stdout.strip()
    with open(os.path.join(root, "src", "net", "ip.go")) as f:
        text = f.read()
    lo, hi = 0, len(text)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (middle, hi) if len(tokenizer(text[:middle])["input_ids"]) <= tokens else (lo, middle)
    return text[:lo]


def theirs(model, ids, tokens):
    """Returns the seconds of the prompt, those of each later token, and the tokens."""
    import torch

    with torch.inference_mode():
        began = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        took = [out.logits[0, -1].argmax().item()]
        read = time.perf_counter() - began
        began = time.perf_counter()
        while len(took) < tokens:
            out = model(torch.tensor([took[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            took.append(out.logits[0, -1].argmax().item())
    return read, (time.perf_counter() - began) / (tokens - 1), took


def ours(binary, folder, text, args):
    command = [binary, "generate", folder, "--prompt", text, "--max-tokens", str(args.tokens), "--temperature", "0", "--device", "cpu", "--precision", args.precision, "--json"]
    r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return r["prompt_seconds"], r["seconds"] / (r["tokens"] - 1), r["ids"], r["prompt_tokens"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("folder")
    p.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    p.add_argument("--prompt", type=int, default=2048)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3)
    args = p.parse_args()
    if "GLIBC_TUNABLES" not in os.environ:  # huge pages for torch, as in rivals.py
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GLIBC_TUNABLES": ALLOCATOR})

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32 if args.precision == "fp32" else torch.bfloat16).eval()
    text = prompt_of(tokenizer, args.prompt)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    theirs(model, ids, 4)
    rounds = []
    for _ in range(args.rounds):
        a, b = ours(args.binary, args.folder, text, args), theirs(model, ids, args.tokens)
        if a[3] != ids.shape[1]:
            raise SystemExit(f"Athanor reads {a[3]} tokens, transformers {ids.shape[1]}")
        same = next((i for i, (x, y) in enumerate(zip(a[2], b[2])) if x != y), len(a[2]))
        rounds.append((a[0], b[0], a[1], b[1]))
        print(f"prompt of {a[3]} tokens: {a[0]:.3f} s, transformers {b[0]:.3f} s; then {1 / a[1]:.1f} tokens/s, transformers {1 / b[1]:.1f}; the first {same} of {len(a[2])} tokens are the same")
    read, write = (statistics.median(r[i + 1] / r[i] for r in rounds) for i in (0, 2))
    print(f"medians of the ratios: prompt {read:.2f}, text {write:.2f}")


if __name__ == "__main__":
    main()
