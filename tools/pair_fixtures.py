#!/usr/bin/env python3
"""Writes kernel/testdata/pairs.json: losses of single pairs and their derivatives with respect to the loss of each token, by TRL's
own functions: CPOTrainer.cpo_loss (sigmoid, ipo, simpo) and ORPOTrainer.odds_ratio_loss, to which ORPO adds the mean loss of the
chosen answer's tokens. Also kernel/testdata/unpaired.json: losses of batches of desirable and undesirable documents, by KTOTrainer's.

    python3 tools/pair_fixtures.py

Needs torch and trl (1.16: trl.experimental; KTOTrainer._compute_loss).
"""
import json
import pathlib
import types

import torch
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

LOSSES = {"dpo": ("sigmoid", False, 0.1, 0), "ipo": ("ipo", True, 0.1, 0), "simpo": ("simpo", True, 2.0, 1.0), "orpo": (None, True, 0.25, 0)}
torch.Tensor.float = torch.Tensor.double  # odds_ratio_loss casts to fp32
draw = torch.Generator().manual_seed(2)
cases = []
for name, (kind, averages, beta, margin) in LOSSES.items():
    for chosen, rejected in [(3, 5), (1, 1), (6, 2)]:
        nll = [(torch.rand(n, generator=draw, dtype=torch.float64) * 4 + 0.01).round(decimals=4).requires_grad_() for n in (chosen, rejected)]
        reference = [round(-float(x) * (1 if averages else 8), 4) if name in ("dpo", "ipo") else 0 for x in torch.rand(2, generator=draw)]
        value = lambda x, ref: (-x.mean() if averages else -x.sum()) - ref
        one, other = value(nll[0], reference[0]), value(nll[1], reference[1])
        trainer = types.SimpleNamespace(alpha=0.0, beta=beta, simpo_gamma=margin, label_smoothing=0, loss_type=kind, accelerator=types.SimpleNamespace(device="cpu"))
        if name == "orpo":
            loss = nll[0].mean() - ORPOTrainer.odds_ratio_loss(trainer, one, other)[0]
        else:
            loss = CPOTrainer.cpo_loss(trainer, one, other)[0]
        loss.backward()
        cases.append(dict(loss=name, beta=beta, margin=margin, chosen=nll[0].tolist(), rejected=nll[1].tolist(), reference=reference,
                          value=loss.item(), by_chosen=nll[0].grad.tolist(), by_rejected=nll[1].grad.tolist()))


def write(name, cases):
    (pathlib.Path(__file__).parent.parent / "kernel/testdata" / name).write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


write("pairs.json", cases)


class Model:
    """Gives the tokens of a batch that are learnt the losses nll."""
    training = True

    def __init__(self, nll):
        self.log_probs = torch.stack([torch.nn.functional.pad(-x, (0, max(map(len, nll)) - len(x))) for x in nll])

    def __call__(self, **_):
        return types.SimpleNamespace(log_probs=self.log_probs, entropy=self.log_probs, mean_logits=self.log_probs)


cases = []
for name, beta, desirable, undesirable, labels in [("kto", 0.1, 1.0, 1.0, [1, 0, 0, 1]), ("kto", 0.5, 1.5, 0.75, [0, 1, 1]), ("kto", 0.1, 1.0, 2.0, [0, 0]),
                                                   ("apo_zero_unpaired", 0.3, 1.0, 1.0, [1, 0, 1, 0]), ("apo_zero_unpaired", 0.1, 2.0, 0.5, [0, 1])]:
    rand = lambda: torch.rand(len(labels), generator=draw, dtype=torch.float64)
    nll = [(torch.rand(1 + 2 * k, generator=draw, dtype=torch.float64) * 4 + 0.01).round(decimals=4).requires_grad_() for k in range(len(labels))]
    reference = [round(float(-x.detach().sum() - r), 4) for x, r in zip(nll, 4 * rand() - 2)]
    mismatched = [round(float(x), 4) for x in 3 * rand() - (2.5 if len(labels) == 2 else 0.5)]  # of two documents they are less likely than under the reference
    zeros = torch.zeros(len(labels), dtype=torch.float64)
    ids = torch.zeros(len(labels), max(map(len, nll)) + 1, dtype=torch.long)
    mask = torch.tensor([[0] + [int(i < len(x)) for i in range(ids.shape[1] - 1)] for x in nll])
    model = Model(nll)
    trainer = types.SimpleNamespace(
        model=model, beta=beta, desirable_weight=desirable, undesirable_weight=undesirable, loss_type=name, calculate_KL=name == "kto", precompute_ref_logps=True,
        aux_loss_enabled=False, _metrics={"train": __import__("collections").defaultdict(list)}, _total_train_tokens=0, _tp_size=1,
        accelerator=types.SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x), _compute_kl_logps=lambda *_: torch.tensor(mismatched, dtype=torch.float64))
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids), completion_mask=mask, label=torch.tensor(labels), ref_logps=torch.tensor(reference, dtype=torch.float64), ref_KL_logps=zeros)
    loss = KTOTrainer._compute_loss(trainer, model, batch, False)
    loss.backward()
    cases.append(dict(loss=name, beta=beta, desirable=desirable, undesirable=undesirable, labels=labels, reference=reference, mismatched=mismatched, nll=[x.tolist() for x in nll],
                      value=loss.item(), by=[x.grad.tolist() for x in nll]))
write("unpaired.json", cases)
