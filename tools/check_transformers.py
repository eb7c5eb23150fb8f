#!/usr/bin/env python3
"""Loads a model folder, or an adapter's (with peft), with transformers and compares its logits with those in a file.

    python tools/check_transformers.py FOLDER TOKENS.json LOGITS.safetensors [TOLERANCE]

TOKENS.json is a list of equally long lists of ids; LOGITS holds `logits`, batch x positions x vocabulary, for the first
`positions` ids of each list. Prints the largest error relative to the largest logit. Exit code: 0 within the tolerance
(1e-4), 1 beyond it or on a malformed folder, 77 where torch or transformers is not installed, or peft, which adapters
need.
"""
import json
import os
import sys
import warnings

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def load(folder):
    """The model, and what was wrong with its files."""
    settings = dict(attn_implementation="eager", dtype=torch.float32, local_files_only=True)
    if not os.path.exists(os.path.join(folder, "adapter_config.json")):
        with open(os.path.join(folder, "config.json")) as f:
            names = json.load(f).get("architectures") or [""]
        sees = names[0].endswith("ForConditionalGeneration")  # whose text part is compared
        kind = getattr(transformers, names[0]) if sees else transformers.AutoModelForCausalLM
        return kind.from_pretrained(folder, output_loading_info=True, **settings)
    try:
        import peft
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*adapter keys.*")  # it only warns of factors that it misses
        return peft.AutoPeftModelForCausalLM.from_pretrained(folder, **settings), {}


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    folder, tokens_file, logits_file = sys.argv[1:4]
    tolerance = float(sys.argv[4]) if len(sys.argv) == 5 else 1e-4
    model, report = load(folder)
    for what in "missing_keys", "unexpected_keys", "mismatched_keys":
        if report.get(what):
            sys.exit(f"{folder}: {what}: {sorted(report[what])}")
    got = load_file(logits_file)["logits"].float()
    with open(tokens_file) as f:
        tokens = torch.tensor(json.load(f))[:, :got.shape[1]]
    with torch.no_grad():
        want = model.eval()(input_ids=tokens, use_cache=False).logits
    if got.shape != want.shape:
        sys.exit(f"{logits_file}: shape {tuple(got.shape)}, transformers gives {tuple(want.shape)}")
    error = ((got - want).abs().max() / want.abs().max()).item()
    ok = error <= tolerance  # a NaN is not
    print(f"max relative error {error:.3e} (tolerance {tolerance:g}), {'ok' if ok else 'DIFFERENT'}; "
          f"transformers {transformers.__version__}, {type(model).__name__}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
