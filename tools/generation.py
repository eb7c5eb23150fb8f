"""Text from a model folder, by transformers and llama.cpp beside Athanor's, with the same prompts, in turn.

  generation.py BINARY [FOLDER] [--device cuda] [--precisions fp32,bf16] [--prompts 16,172,512,3273] [--tokens 64] [--rounds 3] [--device-memory SIZE]

Needs torch 2.x and transformers; llama.cpp is measured where llama-cpp-python is installed (tried with 0.3.36), on the CPU: F32, BF16 and Q4_0 beside
Athanor's fp32, bf16 and nf4. FOLDER is a Hugging Face folder, such as a checkpoint; without it, a Llama of SmolLM2-135M's shape with random weights
is made. The prompts are so many tokens of ARCHITECTURE.md. Prints the seconds that they take and the tokens per second after them, the likeliest token at a
time; how many of the first tokens are the same; and the medians of the ratios. --compiled compiles transformers' model, which may take minutes.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from rivals import ALLOCATOR

# How many times as fast as a rival Athanor is to read a prompt and to generate text on a CPU.
ASKED = {"transformers": (1.0, 1.3), "llama.cpp": (0.0, 1.0)}

HERE = os.path.dirname(os.path.abspath(__file__))


def theirs(model, ids, tokens):
    """Returns the seconds of the prompt, those of each later token, and the tokens."""
    import torch

    ids = torch.tensor([ids], device=model.device)
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


def llama(model, ids, tokens):
    """The same by llama.cpp."""
    import numpy

    def likeliest():
        logits = numpy.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),))
        return int(logits.argmax())

    model.reset()
    began = time.perf_counter()
    model.eval(ids)
    took = [likeliest()]
    read = time.perf_counter() - began
    began = time.perf_counter()
    while len(took) < tokens:
        model.eval(took[-1:])
        took.append(likeliest())
    return read, (time.perf_counter() - began) / (tokens - 1), took


def ours(args, folder, text, precision):
    command = [args.binary, "generate", folder, "--prompt", text, "--max-tokens", str(args.tokens), "--temperature", "0", "--device", args.device, "--json"]
    command += ["--quantize", "nf4", "--precision", "bf16"] if precision == "nf4" else ["--precision", precision]
    if args.device_memory:
        command += ["--device-memory", args.device_memory]
    r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return r["prompt_seconds"], r["seconds"] / (r["tokens"] - 1), r["ids"], r["prompt_tokens"], r["device_bytes"], r["streamed_bytes"]


def make(path, text):
    """Writes a Llama of SmolLM2-135M's shape with random weights."""
    import torch
    from lm_eval_check import make_folder
    from transformers import LlamaConfig, LlamaForCausalLM

    make_folder(path, text)
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                                 max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=0, eos_token_id=None)).save_pretrained(path)


def rivals(args, folder, work, precision):
    """Returns a function for each rival that is here, by name: from tokens to seconds and tokens."""
    out = {}
    if precision != "nf4":
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32 if precision == "fp32" else torch.bfloat16).eval().to(args.device)
        if args.compiled:
            model.forward = torch.compile(model.forward, dynamic=True)
        theirs(model, [1, 2, 3], 4)
        out["transformers"] = lambda ids: theirs(model, ids, args.tokens)
    try:
        import llama_cpp
    except ImportError:
        return out
    if args.device != "cpu":
        return out
    kind = {"fp32": "f32", "bf16": "bf16", "nf4": "f32"}[precision]
    path = f"{work}/{kind}.gguf"
    if not os.path.exists(path):
        subprocess.run([args.binary, "export", folder, path, "--gguf", kind], check=True, capture_output=True)
    if precision == "nf4":
        p = llama_cpp.llama_model_quantize_default_params()
        p.ftype, p.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, os.cpu_count()
        path, whole = f"{work}/q4.gguf", path
        if llama_cpp.llama_model_quantize(whole.encode(), path.encode(), ctypes.byref(p)) != 0:
            sys.exit("llama.cpp does not quantize the model")
    there = llama_cpp.Llama(path, n_ctx=4096, n_threads=os.cpu_count(), n_threads_batch=os.cpu_count(), n_batch=512, verbose=False)
    llama(there, [1, 2, 3], 4)
    out["llama.cpp"] = lambda ids: llama(there, ids, args.tokens)
    return out


def prefix(tokenizer, text, n):
    """Returns as much of a text as has n tokens, and these."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if len(tokenizer(text[:middle])["input_ids"]) < n else (low, middle)
    return text[:low], tokenizer(text[:low])["input_ids"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("folder", nargs="?")
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--device-memory", help="for Athanor alone")
    p.add_argument("--precisions", default="fp32,bf16,nf4")
    p.add_argument("--prompts", default="16,172,512,3273")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--compiled", action="store_true")
    args = p.parse_args()
    if "GLIBC_TUNABLES" not in os.environ:  # huge pages for torch, as in rivals.py
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GLIBC_TUNABLES": ALLOCATOR})
    from transformers import AutoTokenizer

    with open(os.path.join(HERE, "..", "ARCHITECTURE.md"), encoding="utf-8") as f:
        text = f.read()
    table = []
    with tempfile.TemporaryDirectory() as work:
        folder = args.folder or f"{work}/model"
        if not args.folder:
            make(folder, text)
        prompts = [prefix(AutoTokenizer.from_pretrained(folder), text, int(n)) for n in args.prompts.split(",")]
        for precision in args.precisions.split(","):
            others = rivals(args, folder, work, precision)
            for prompt, ids in prompts:
                ratios = {name: [] for name in others}
                for _ in range(args.rounds):
                    a = ours(args, folder, prompt, precision)
                    if a[3] != len(ids):
                        sys.exit(f"Athanor reads {a[3]} tokens, transformers {len(ids)}")
                    line = f"RATE {precision}, prompt of {a[3]} tokens: {a[0]:.3f} s, then {1 / a[1]:.1f} tokens/s, in {a[4]} bytes of the device's memory, {a[5]} copied for each token"
                    for name, run in others.items():
                        b = run(ids)
                        same = next((i for i, (x, y) in enumerate(zip(a[2], b[2])) if x != y), len(a[2]))
                        ratios[name].append((b[0] / a[0], b[1] / a[1]))
                        line += f"; {name} {b[0]:.3f} s, {1 / b[1]:.1f} tokens/s, the first {same} of {len(a[2])} tokens the same"
                    print(line, flush=True)
                for name, list_of in ratios.items():
                    table.append((precision, len(ids), name, *(statistics.median(r[i] for r in list_of) for i in (0, 1))))
    print("\n| precision | prompt | rival | prompt, times as fast | text, times as fast | below what is asked |\n|---|---|---|---|---|---|")
    for *row, read, text in table:
        asked = [a for got, a in zip((read, text), ASKED[row[-1]]) if got < a and args.device == "cpu"]
        print("| {} | {} | {} | {:.2f} | {:.2f} | {} |".format(*row, read, text, ", ".join(map(str, asked))))


if __name__ == "__main__":
    main()
