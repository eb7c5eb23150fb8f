"""Direct preference optimisation by TRL beside Athanor's, on the same pairs and the same model, in turn.

  preferences.py BINARY FOLDER [--precision bf16] [--pairs 96] [--rounds 2]

Needs torch 2.x, transformers, peft, datasets and trl, and Go's source for text. FOLDER gets pairs, a model of 96 million random
weights (twelve layers of a Llama, 768 wide) and runs. A pair is a documented function of Go's library: its body is preferred to that of another.
Adapters of rank 16 on all linear weights are trained. Both compute the reference's log-probabilities beforehand, which
is not counted; each pair is read once. TRL pads what it computes at a time to the longest document of it: one, two, four or eight pairs,
whichever is fastest here.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

from rivals import ALLOCATOR

LENGTH = 1024  # most tokens of a document
STEP = 8  # pairs of an optimizer step of TRL; Athanor's have about as many


def pairs(path, count):
    """Writes pairs of Go's functions, in an order that mixes packages."""
    root = subprocess.run(["go", "env", "GOROOT"], check=True, capture_output=True, text=True).stdout.strip()
    functions = []
    for folder, _, names in sorted(os.walk(os.path.join(root, "src", "net"))):
        for name in sorted(names):
            if name.endswith(".go") and not name.endswith("_test.go"):
                with open(os.path.join(folder, name)) as f:
                    functions += re.findall(r"((?://.*\n)+func .*\{\n)((?:[^}\n].*\n|\n)*\}\n)", f.read())
    functions = [(head, body) for head, body in functions if len(head + body) < 2400]
    step = 7919  # prime
    with open(path, "w") as f:
        for i in range(count):
            head, body = functions[i * step % len(functions)]
            other = functions[(i * step + len(functions) // 2) % len(functions)][1]
            print(json.dumps({"prompt": head, "chosen": body, "rejected": other}), file=f)


def base(binary, folder):
    """A folder with random weights, and a tokenizer of Go's source."""
    out = os.path.join(folder, "base")
    config = os.path.join(folder, "base.yaml")
    with open(config, "w") as f:
        f.write("model: {type: llama, layers: 12, width: 768, heads: 12, kv_heads: 4}\ndata: $GOROOT/src/net/**/*.go\ntokenizer: bpe-8192\n"
                f"sequence_length: {LENGTH}\nglobal_batch: 1\nlearning_rate: 1.0e-4\nmax_steps: 1\neval_batches: 1\nout: {out}\n")
    subprocess.run([binary, "train", config], check=True, capture_output=True)
    return os.path.join(out, "checkpoint-1")


def ours(binary, folder, model, precision, turn):
    """Athanor's seconds per pair, and its losses."""
    out, config = os.path.join(folder, f"ours-{turn}"), os.path.join(folder, "ours.yaml")
    with open(config, "w") as f:
        f.write(f"model: {model}\ndata: {folder}/pairs.jsonl\nsequence_length: 2048\nglobal_batch: 2\nlearning_rate: 1.0e-4\nmax_epochs: 1\nprecision: {precision}\n"
                f"preference: {{beta: 0.1}}\nlora: {{rank: 16}}\nvalidation_fraction: 0.02\neval_batches: 1\nsave_every: 100000\nout: {out}\n")
    subprocess.run([binary, "train", config], check=True, capture_output=True)
    with open(os.path.join(out, "metrics.jsonl")) as f:
        steps = [json.loads(line) for line in f]
    return sum(s["step_seconds"] for s in steps[1:]) / sum(s["pairs"] for s in steps[1:]), [s["loss"] for s in steps]


def theirs(args):
    """Writes the seconds per pair of TRL as JSON."""
    import datasets
    import peft
    import torch
    import transformers
    import trl

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    began, seconds, losses = [0.0], [], []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            began[0] = time.perf_counter()

        def on_step_end(self, *_, **__):
            seconds.append(time.perf_counter() - began[0])

        def on_log(self, _args, _state, _control, logs=None, **__):
            if "loss" in (logs or {}):
                losses.append(logs["loss"])

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.eos_token
    data = datasets.load_dataset("json", data_files=os.path.join(args.folder, "pairs.jsonl"), split="train")
    data = data.select(range(args.pairs))
    config = trl.DPOConfig(
        output_dir=os.path.join(args.folder, "trl"), per_device_train_batch_size=args.batch, gradient_accumulation_steps=STEP // args.batch, num_train_epochs=1, learning_rate=1e-4, beta=0.1, use_cpu=True,
        bf16=args.precision == "bf16", gradient_checkpointing=False, precompute_ref_log_probs=True, max_length=LENGTH, logging_steps=1, save_strategy="no", report_to=[],
        optim="adamw_torch_fused", disable_tqdm=True)
    adapters = peft.LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    trl.DPOTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, peft_config=adapters, callbacks=[Clock()]).train()
    print(json.dumps({"seconds": statistics.mean(seconds[1:]) / STEP, "losses": losses, "versions": [torch.__version__, trl.__version__]}))


def run(args):
    os.makedirs(args.folder, exist_ok=True)
    folder = os.path.abspath(args.folder)
    binary = os.path.abspath(args.binary)
    pairs(os.path.join(folder, "pairs.jsonl"), args.pairs)
    model = base(binary, folder)

    def trl(batch, count):
        command = [sys.executable, __file__, "trl", folder, model, "--batch", str(batch), "--pairs", str(count), "--precision", args.precision]
        with open(os.path.join(folder, "trl.log"), "w") as log:
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ, GLIBC_TUNABLES=ALLOCATOR)).stdout.splitlines()[-1])

    tried = {batch: trl(batch, 32)["seconds"] for batch in (1, 2, 4, 8)}
    batch = min(tried, key=tried.get)
    print("TRL, seconds per pair by the pairs computed at a time:", {k: round(v, 3) for k, v in tried.items()}, flush=True)
    ratios = []
    for turn in range(args.rounds):
        mine, losses = ours(binary, folder, model, args.precision, turn)
        other = trl(batch, args.pairs)
        ratios.append(other["seconds"] / mine)
        print(f"Athanor {1 / mine:.2f} pairs/s, TRL {1 / other['seconds']:.2f}, ratio {ratios[-1]:.2f}; losses {losses[0]:.4f} to {statistics.mean(losses[-8:]):.4f}, "
              f"{other['losses'][0]:.4f} to {statistics.mean(other['losses'][-8:]):.4f}; torch and TRL {other['versions']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if len(sys.argv) > 1 and sys.argv[1] == "trl":
        parser.add_argument("verb")
        parser.add_argument("folder")
        parser.add_argument("model")
        parser.add_argument("--batch", type=int)
        parser.add_argument("--pairs", type=int)
        parser.set_defaults(run=theirs)
    else:
        parser.add_argument("binary")
        parser.add_argument("folder")
        parser.add_argument("--pairs", type=int, default=96)
        parser.add_argument("--rounds", type=int, default=2)
        parser.set_defaults(run=run)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
