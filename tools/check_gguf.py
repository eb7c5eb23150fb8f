#!/usr/bin/env python3
"""Reads GGUF files of `athanor export --gguf` back with other software: the package gguf (ggml-org) and transformers' reader of GGUF.

    go build -o /tmp/athanor ./cmd/athanor && python3 tools/check_gguf.py /tmp/athanor FOLDER

FOLDER gets tiny models of each family that Athanor trains on Go's source. For every type of weights: transformers loads the file,
and generates the same tokens, greedily, as from the model folder (in few bits: logits are near); the tokenizer in the file
gives the same ids; tensors are what the package gguf unpacks. llama.cpp itself makes q4_k_m and q6_k of the f32 file: types of tensors
are the same (but GPT-2's joined queries, keys and values), and values as near to those in f32. Needs torch, transformers, gguf,
llama-cpp-python.
"""
import json
import pathlib
import subprocess
import sys

import gguf
import torch
import transformers

athanor, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
goroot = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True).stdout.strip()
MODELS = {
    "gpt2": "{type: gpt2, layers: 2, width: 64, heads: 2, max_positions: 1024}",  # transformers takes 1024 for granted
    "llama": "{type: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, tied: false}",
    "qwen2": "{type: qwen2, layers: 2, width: 64, heads: 4, kv_heads: 2}",
    "qwen3": "{type: qwen3, layers: 2, width: 64, heads: 4, kv_heads: 2, head_dim: 128}",
    "wide": "{type: llama, layers: 9, width: 256, heads: 4, kv_heads: 2, feed_forward: 512}",
    "pieces": "{type: llama, layers: 2, width: 64, heads: 4}",  # with a part of Llama 2's tokenizer
}
PIECES = pathlib.Path(__file__).resolve().parent.parent / "data/bpe/testdata/llama2.json"
TEXTS = ["a", "", " two  spaces ", "caf\u00e9 \u4f60\u597d \U0001f600", "// Close closes the connection.\n\tfunc (c *conn) Close() error {\n", "<s>x</s> y", "\u2581 a"]
MIXED = {"q6_k": 18, "q4_k_m": 15}  # numbers of llama.cpp


def ids_of_llama_cpp(file, tokenizer):
    """Says for which texts llama.cpp finds other ids."""
    import llama_cpp

    model = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    texts = TEXTS + pathlib.Path(__file__).read_text().splitlines()
    return [t for t in texts if model.tokenize(t.encode(), add_bos=True, special=True) != tokenizer(t).input_ids]


def beside_llama_cpp(name, kind, ours, exact):
    """Compares a file with what llama.cpp makes of the one in f32."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = MIXED[kind]
    file = folder / f"{name}.{kind}.theirs.gguf"
    assert llama_cpp.llama_model_quantize(str(folder / f"{name}.f32.gguf").encode(), str(file).encode(), params) == 0
    ours = {t.name: t for t in ours.tensors}
    worst, other = 0.0, []
    for t in gguf.GGUFReader(file).tensors:
        if ours[t.name].tensor_type != t.tensor_type:
            other.append(f"{t.name}: {ours[t.name].tensor_type.name}, not {t.tensor_type.name}")
            continue
        miss = [abs(gguf.dequantize(x.data, x.tensor_type) - exact[t.name]).mean() for x in (ours[t.name], t)]
        worst = max(worst, miss[0] / miss[1] if miss[1] else float(miss[0] > 0))
    return worst, other



TEXT = "// Close closes the connection.\nfunc (c *conn) Close() error {\n"
failed = 0
for name, sizes in MODELS.items():
    if len(sys.argv) > 3 and name not in sys.argv[3:]:
        continue
    run = folder / name
    model = run / "checkpoint-60"
    if not model.exists():
        (folder / "run.yaml").write_text(f"data: {goroot}/src/net/http/*.go\ntokenizer: bpe-512\nsequence_length: 64\nglobal_batch: 8\nlearning_rate: 3.0e-3\nmax_steps: 60\nvalidation_fraction: 0.01\n")
        own = [f"tokenizer={PIECES}"] if name == "pieces" else []
        subprocess.run([athanor, "train", str(folder / "run.yaml"), f"model={sizes}", f"out={run}", *own], check=True, capture_output=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    exact = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    want = exact.generate(ids, max_new_tokens=20, do_sample=False)
    with torch.no_grad():
        logits = exact(ids).logits
    for kind in ("f32", "f16", "bf16", "q8_0", "q6_k", "q4_k_m"):
        file = folder / f"{name}.{kind}.gguf"
        file.unlink(missing_ok=True)
        subprocess.run([athanor, "export", str(model), str(file), "--gguf", kind], check=True, capture_output=True)
        reader = gguf.GGUFReader(file)
        values = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        read = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32).eval()
        got = read.generate(ids, max_new_tokens=20, do_sample=False)
        with torch.no_grad():
            far = float((read(ids).logits - logits).norm() / logits.norm())
        own = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
        same_ids = own(TEXT, add_special_tokens=False).input_ids == tokenizer(TEXT, add_special_tokens=False).input_ids
        most = dict(f32=1e-6, f16=1e-3, bf16=1e-2, q8_0=2e-2, q6_k=5e-2, q4_k_m=0.2)[kind]
        ok = far < most and same_ids and ("q" in kind or torch.equal(got, want))
        if kind == "f32":
            numbers = values
            if name == "pieces":
                other = ids_of_llama_cpp(file, tokenizer)
                ok = ok and not other
                print(f"{name:6} llama.cpp has other ids for {other}")
        if kind in MIXED:
            worst, other = beside_llama_cpp(name, kind, reader, numbers)
            ok = ok and worst < 1.01 and all("attn_qkv" in o for o in other)
            print(f"{name:6} {kind:6} misses by at most {worst:.4f} of what llama.cpp's misses by; other types: {other}")
        failed += not ok
        print(f"{name:6} {kind:6} {len(values)} tensors, {file.stat().st_size} bytes; logits differ by {far:.1e}; same tokens: {torch.equal(got, want)}; same ids: {same_ids}{'' if ok else '  FAILED'}")
sys.exit(failed > 0)
