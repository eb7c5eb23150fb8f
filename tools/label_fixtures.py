#!/usr/bin/env python3
"""Adds to testdata/torch what transformers' classes ...ForSequenceClassification compute: labels.json and labels.safetensors, of texts with one of
three labels; values.json and values.safetensors, of the same texts with a number each (problem_type regression); rewards.json, of a reward model with pairs of texts, whose loss is TRL's (trl/trainer/reward_trainer.py): the mean of
-logsigmoid(reward of the chosen one - reward of the rejected one).

    python tools/label_fixtures.py [OUT]

The models are those that tools/torch_fixtures.py wrote, with a head `score` of random numbers. Each text is a sequence of its own, without padding;
the loss is the mean over the texts of what the class returns. Logits and ten AdamW steps in float64, gradients in fp32.

Needs torch and transformers.
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

from preference_fixtures import END, LENGTH, make_pairs, optimizer_of
from torch_fixtures import CLIP, STEPS

MODELS = ["llama-tied", "qwen3-tiny", "gemma2-tiny"]
LABELS = 3
transformers.utils.logging.set_verbosity_error()


def load(folder, labels, score, dtype):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels, pad_token_id=END, attn_implementation="eager", dtype=dtype).eval()
    with torch.no_grad():
        model.score.weight.copy_(score)
    return model


def output(model, text, label=None):
    return model(input_ids=torch.tensor([text]), use_cache=False, labels=label)


def logits_of(model, texts):
    return torch.cat([output(model, text).logits for text in texts])


def train(model, loss_of):
    step, losses, norms = optimizer_of(model), [], []
    for _ in range(STEPS):
        step.zero_grad()
        loss = loss_of(model)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(model.parameters()), CLIP)))
        step.step()
        losses.append(float(loss.detach()))
    return losses, norms


def write(folder, seed):
    draw = torch.Generator().manual_seed(seed)
    config = transformers.AutoConfig.from_pretrained(folder)
    score = torch.randn(LABELS, config.hidden_size, generator=draw, dtype=torch.float32) / 4
    texts = [torch.randint(2, config.vocab_size, (n,), generator=draw).tolist() for n in (5, 17, 1, 9, 30, 12)]
    labels = torch.randint(0, LABELS, (len(texts),), generator=draw)
    loss_of = lambda model: torch.stack([output(model, text, label[None]).loss for text, label in zip(texts, labels)]).mean()
    model = load(folder, LABELS, score, torch.float32)
    loss_of(model).backward()
    tensors = {name: p.grad.contiguous() for name, p in model.named_parameters()}
    tensors["score"] = score
    save_file(tensors, folder / "labels.safetensors")
    model = load(folder, LABELS, score, torch.float64)
    with torch.no_grad():
        logits = logits_of(model, texts).tolist()
    losses, norms = train(model, loss_of)
    (folder / "labels.json").write_text(json.dumps(dict(length=LENGTH, end=END, texts=texts, labels=labels.tolist(), logits=logits, losses64=losses, grad_norms64=norms)) + "\n")

    values = torch.randn(len(texts), generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)

    def value_loss(model):
        return torch.stack([output(model, text, value[None]).loss for text, value in zip(texts, values.to(model.dtype))]).mean()

    model = load(folder, 1, score[:1], torch.float32)
    value_loss(model).backward()
    assert model.config.problem_type == "regression"
    save_file({name: p.grad.contiguous() for name, p in model.named_parameters()}, folder / "values.safetensors")
    model = load(folder, 1, score[:1], torch.float64)
    with torch.no_grad():
        logits = logits_of(model, texts).tolist()
    losses, norms = train(model, value_loss)
    (folder / "values.json").write_text(json.dumps(dict(values=values.tolist(), logits=logits, losses64=losses, grad_norms64=norms)) + "\n")

    pairs = make_pairs(config.vocab_size, draw)
    sides = [[p["prompt"] + p[side][:-1] for p in pairs] for side in ("chosen", "rejected")]  # without END
    rewards = lambda model: [logits_of(model, side)[:, 0] for side in sides]

    def pair_loss(model):
        chosen, rejected = rewards(model)
        return -torch.nn.functional.logsigmoid(chosen - rejected).mean()

    model = load(folder, 1, score[:1], torch.float64)
    with torch.no_grad():
        first = [x.tolist() for x in rewards(model)]
    losses, norms = train(model, pair_loss)
    (folder / "rewards.json").write_text(json.dumps(dict(length=LENGTH, end=END, pairs=pairs, chosen=first[0], rejected=first[1], losses64=losses, grad_norms64=norms)) + "\n")


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "testdata/torch")
    for seed, name in enumerate(MODELS):
        write(out / name, seed)


if __name__ == "__main__":
    main()
