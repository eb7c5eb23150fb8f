#!/usr/bin/env python3
"""Adds to testdata/torch what PEFT and PyTorch compute with embeddings and heads beside adapters, and with resized models.

    python tools/adapter_fixtures.py [OUT [CASE ...]]

With the models that tools/torch_fixtures.py wrote: NAME/adapters/CASE is an adapter as peft saves it, with random numbers in all that it trains;
`expected.safetensors` has the logits of the first sequence that the loaded adapter gives, `losses.json` ten AdamW steps from it, as in
NAME/losses.json, and `tokens.json` the text. NAME/grown.json has the same of the whole model after resize_token_embeddings, without adapters and without the noise that this
adds to the mean of the old rows.

Needs torch, transformers and peft.
"""
import json
import pathlib
import shutil
import sys
import zlib

import peft
import torch
import transformers
from safetensors.torch import save_file

from torch_fixtures import loss_of, train

ENDS = ["embed_tokens", "lm_head"]
CASES = {
    "mistral-tiny/whole": dict(modules_to_save=ENDS + ["norm"]),
    "mistral-tiny/head": dict(modules_to_save=["lm_head"]),
    "mistral-tiny/grown": dict(vocabulary=101),
    "mistral-tiny/grown-whole": dict(vocabulary=101, modules_to_save=ENDS),
    "llama-tied/whole": dict(modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    "llama-tied/parted": dict(modules_to_save=ENDS),
    "llama-tied/grown": dict(vocabulary=100),
    "qwen2-tiny/embedding": dict(modules_to_save=["embed_tokens"]),
    "granite-tiny/head": dict(modules_to_save=["lm_head"]),
    "mistral-tiny/ends": dict(target_modules=["q_proj"] + ENDS),
    "mistral-tiny/ends-grown": dict(target_modules=["q_proj"] + ENDS, vocabulary=101),
    "granite-tiny/ends": dict(target_modules=["q_proj"] + ENDS),
    "gemma3-tiny/embedding": dict(target_modules=["q_proj", "embed_tokens"]),
    "qwen2-tiny/head": dict(target_modules=["q_proj", "lm_head"]),
    "gpt2-untied/ends": dict(target_modules=["c_attn", "wte", "lm_head"]),
    "neox-tiny/whole": dict(modules_to_save=["embed_in", "lm_head"], target_modules=["query_key_value"]),
    "mistral-tiny/tokens": dict(trainable_token_indices={"embed_tokens": [7, 3, 60], "lm_head": [60, 5]}),
    "mistral-tiny/tokens-grown": dict(trainable_token_indices=[96, 97, 98, 99, 100], vocabulary=101),
    "llama-tied/tokens": dict(trainable_token_indices=[7, 3, 60]),
    "neox-tiny/tokens": dict(trainable_token_indices={"embed_in": [9, 1]}, target_modules=["query_key_value"]),
}
GROWN = {"mistral-tiny": 101, "llama-tied": 100}


def load(folder, dtype, vocabulary):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype)
    model.config._name_or_path = ""
    if vocabulary:
        model.resize_token_embeddings(vocabulary)
    return model.eval()


def trained(name):
    return any(part in name for part in ("lora_", "modules_to_save", "trainable_tokens_delta"))


def with_new(tokens, vocabulary, generator):
    """New ids in a fifth of the places."""
    if not vocabulary:
        return tokens
    old = int(tokens.max()) + 1
    new = torch.randint(old, vocabulary, tokens.shape, generator=generator)
    return torch.where(torch.rand(tokens.shape, generator=generator) < 0.2, new, tokens)


def write(path, folder, settings):
    settings = dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj"]) | settings
    vocabulary = settings.pop("vocabulary", 0)
    generator = torch.Generator().manual_seed(zlib.crc32(str(path.relative_to(folder.parent)).encode()))
    tokens = with_new(torch.tensor(json.loads((folder / "tokens.json").read_text())), vocabulary, generator)
    model = load(folder, torch.float32, vocabulary)
    model.config._name_or_path = str(folder)  # by which peft sees that the vocabulary has grown
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if trained(name):
                noise = torch.randn(p.shape, generator=generator)
                p.add_(noise * 0.2 if "lora_" not in name else noise * 0.3)
    shutil.rmtree(path, ignore_errors=True)
    model.save_pretrained(path)
    (path / "README.md").unlink()
    config = json.loads((path / "adapter_config.json").read_text()) | dict(base_model_name_or_path="../..")
    for names in config["target_modules"], config["modules_to_save"]:
        names and names.sort()
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (path / "tokens.json").write_text(json.dumps(tokens.tolist()) + "\n")
    results = {}
    for suffix, dtype in ("", torch.float32), ("64", torch.float64):
        again = peft.PeftModel.from_pretrained(load(folder, dtype, vocabulary), path, autocast_adapter_dtype=False).to(dtype).eval()
        if not suffix:
            save_file({"logits": loss_of(again, tokens[:1])[0].detach().contiguous()}, path / "expected.safetensors")
        results["losses" + suffix], results["grad_norms" + suffix] = train(again, tokens, [n for n, _ in again.named_parameters() if not trained(n)])
    (path / "losses.json").write_text(json.dumps(results, indent=1) + "\n")
    print(path, results["losses64"][0], results["losses64"][-1])


def write_grown(path, folder, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    old_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = with_new(torch.tensor(json.loads((folder / "tokens.json").read_text())), vocabulary, generator)
    model = load(folder, torch.float64, vocabulary)
    for ends in model.get_input_embeddings(), model.get_output_embeddings():
        new, old = ends.weight.data[old_size:], ends.weight.data[:old_size]
        mean = old.mean(0).float().double()
        noise = (new - mean).norm() / new.norm()
        assert noise < 1e-3, noise  # a covariance of 1e-9 times that of the rows
        new.copy_(mean.expand_as(new))
    losses, norms = train(model, tokens)
    path.write_text(json.dumps(dict(vocabulary=vocabulary, tokens=tokens.tolist(), losses64=losses, grad_norms64=norms), indent=1) + "\n")


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/torch").absolute()
    only = sys.argv[2:]
    for name, settings in CASES.items():
        if only and name not in only:
            continue
        model, case = name.split("/")
        write(out / model / "adapters" / case, out / model, dict(settings))
    for model, vocabulary in GROWN.items():
        write_grown(out / model / "grown.json", out / model, vocabulary)
    for file in out.glob("*/adapters/*/*"):
        file.chmod(0o644)


if __name__ == "__main__":
    main()
