#!/usr/bin/env python3
"""Adds to testdata/torch what PyTorch computes on pairs: direct preference optimisation (Rafailov et al., 2305.18290, equation 7); and, of
single answers that are good or bad, KTO's loss as TRL has it (Ethayarajh et al., 2402.01306; trl/trainer/kto_trainer.py).

    python tools/preference_fixtures.py [OUT]

Each document, a prompt and one of its two completions, is a sequence of its own here, without padding or masks, and its log-probability
the sum over the completion's tokens. The reference is the model before the first step. The loss, its gradients in fp32 and ten AdamW steps in
float64 are computed from the formula, with the models that tools/torch_fixtures.py wrote.

Needs torch and transformers.
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

from torch_fixtures import ADAMW, CLIP, DECAY, STEPS

MODELS = ["llama-tied", "qwen3-tiny", "gemma3-tiny", "neox-tiny", "gemma2-tiny"]
IN_FILES = {"lm_head.weight": "embed_out.weight"}  # of GPT-NeoX
PAIRS, LENGTH, END, BETA = 4, 32, 0, 0.4
GOOD, BAD = 1.5, 0.75


def make_pairs(vocabulary, generator):
    """Documents end with END, which does not occur inside; both together have at most LENGTH tokens."""
    draw = lambda lo, hi: int(torch.randint(lo, hi + 1, (), generator=generator))
    text = lambda n: torch.randint(2, vocabulary, (n,), generator=generator).tolist()
    pairs = []
    for _ in range(PAIRS):
        prompt = text(draw(1, 5))
        pairs.append(dict(prompt=prompt, chosen=text(draw(1, 9)) + [END], rejected=text(draw(1, 9)) + [END]))
    return pairs


def log_probability(model, prompt, completion):
    ids = torch.tensor([prompt + completion])
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.log_softmax(-1)
    return logits[0].gather(1, ids[0, 1:, None])[len(prompt) - 1:].sum()


def both(model, pair):
    return [log_probability(model, pair["prompt"], pair[side]) for side in ("chosen", "rejected")]


def loss_of(model, pairs, reference):
    total = 0
    for pair, (c_ref, r_ref) in zip(pairs, reference):
        c, r = both(model, pair)
        total = total - torch.nn.functional.logsigmoid(BETA * ((c - c_ref) - (r - r_ref)))
    return total / len(pairs)


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()


def reference_of(model, pairs):
    with torch.no_grad():
        return [[float(x) for x in both(model, pair)] for pair in pairs]


def optimizer_of(model):
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if p.ndim >= 2], weight_decay=DECAY),
              dict(params=[p for p in parameters if p.ndim < 2], weight_decay=0.0)]
    return torch.optim.AdamW(groups, foreach=False, **ADAMW)


def train(model, pairs, reference):
    parameters, optimizer = list(model.parameters()), optimizer_of(model)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, pairs, reference)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms


def kto_loss(model, answers, others, reference, other_reference):
    """of the whole batch; others are the same prompts with answers to other prompts"""
    with torch.no_grad():
        kl = torch.stack([log_probability(model, x["prompt"], x["completion"]) - ref for x, ref in zip(others, other_reference)]).mean().clamp(min=0)
    total = 0
    for x, ref in zip(answers, reference):
        ratio = log_probability(model, x["prompt"], x["completion"]) - ref
        total = total + (GOOD * (1 - torch.sigmoid(BETA * (ratio - kl))) if x["label"] else BAD * (1 - torch.sigmoid(BETA * (kl - ratio))))
    return total / len(answers), float(kl)


def write_answers(folder, seed):
    model = load(folder, torch.float64)
    answers = [dict(prompt=p["prompt"], completion=p["chosen" if k % 2 else "rejected"], label=k % 3 > 0)
               for k, p in enumerate(make_pairs(model.config.vocab_size, torch.Generator().manual_seed(seed)))]
    others = [dict(prompt=x["prompt"], completion=answers[k - 1]["completion"]) for k, x in enumerate(answers)]
    with torch.no_grad():
        reference, other_reference = [[float(log_probability(model, x["prompt"], x["completion"])) for x in part] for part in (answers, others)]
    step, losses, norms, kls = optimizer_of(model), [], [], []
    for _ in range(STEPS):
        step.zero_grad()
        loss, kl = kto_loss(model, answers, others, reference, other_reference)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(model.parameters()), CLIP)))
        step.step()
        losses.append(float(loss.detach()))
        kls.append(kl)
    (folder / "answers.json").write_text(json.dumps(dict(beta=BETA, good=GOOD, bad=BAD, length=LENGTH, end=END, answers=answers, others=others, reference=reference,
                                                         losses64=losses, grad_norms64=norms, kl64=kls)) + "\n")


def write(folder, seed):
    model = load(folder, torch.float64)
    pairs = make_pairs(model.config.vocab_size, torch.Generator().manual_seed(seed))
    reference = reference_of(model, pairs)
    # Gradients where margins are not 0: against another reference, of which each number is moved.
    moved = [[c - 0.7 * (k + 1), r + 0.3 * k] for k, (c, r) in enumerate(reference)]
    loss = loss_of(model, pairs, moved)
    loss.backward()
    names = IN_FILES if model.config.model_type == "gpt_neox" else {}
    save_file({names.get(n, n): p.grad.float().contiguous() for n, p in model.named_parameters()}, folder / "preference.safetensors")
    losses, norms = train(load(folder, torch.float64), pairs, reference)
    (folder / "preference.json").write_text(json.dumps(dict(beta=BETA, length=LENGTH, end=END, pairs=pairs, reference=reference, moved=moved,
                                                            moved_loss=float(loss), losses64=losses, grad_norms64=norms)) + "\n")
    (folder / "preference.safetensors").chmod(0o644)


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "testdata" / "torch")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for k, name in enumerate(MODELS):
        write(out / name, 100 + k)
    for k, name in enumerate(MODELS[:2]):
        write_answers(out / name, 200 + k)


if __name__ == "__main__":
    main()
