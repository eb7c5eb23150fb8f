"""EleutherAI's lm-eval against `athanor api`, and on transformers with the same folder: every number must be the same.

  lm_eval_check.py BINARY [FOLDER]

Needs lm_eval, torch, transformers and datasets (tried with 0.4.13, 2.15, 5.24 and 5.2). Without FOLDER, a small Llama with random weights
and a tokenizer of ARCHITECTURE.md's text is made. The tasks are made, too, from that text, as local JSONL: choices by log-likelihood, rolling perplexity, and
texts that are generated. Nothing is downloaded. Exits with 1 if a number differs: counts of right answers by anything, likelihoods by more than 1e-4
of themselves.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile

from openai_client import serve

CONTEXT = 256


def make_folder(path, text):
    """Writes a model with random weights that are large enough for opinions."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=800, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    theirs = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>")
    theirs.chat_template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
    theirs.save_pretrained(path)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=800, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=CONTEXT, initializer_range=0.15, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(path)


def make_tasks(path, text):
    """Writes three tasks of local JSONL; returns their names."""
    r = random.Random(7)
    words = text.split()

    def some(low, high):
        n, at = r.randint(low, high), r.randrange(len(words) - high)
        return " ".join(words[at : at + n])

    rows = {
        "choices": [{"question": some(5, 60), "choices": [some(1, 6) for _ in range(4)], "gold": r.randrange(4)} for _ in range(60)],
        "perplexity": [{"text": some(20, 250)} for _ in range(20)],
        "texts": [{"question": some(5, 60), "answer": some(1, 3)} for _ in range(20)],
    }
    bodies = {
        "choices": "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_choice: '{{choices}}'\ndoc_to_target: gold\nnum_fewshot: 1\nfewshot_split: train\n"
        "metric_list:\n  - {metric: acc}\n  - {metric: acc_norm}\n",
        "perplexity": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - {metric: word_perplexity}\n  - {metric: byte_perplexity}\n  - {metric: bits_per_byte}\n",
        "texts": "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: answer\ngeneration_kwargs: {until: ['.', '\\n'], max_gen_toks: 24, do_sample: false, temperature: 0}\n"
        "metric_list:\n  - {metric: exact_match}\n",
    }
    for name, list_of in rows.items():
        with open(f"{path}/{name}.jsonl", "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in list_of)
        with open(f"{path}/{name}.yaml", "w") as f:
            f.write(f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{train: {path}/{name}.jsonl}}}}\ntest_split: train\n{bodies[name]}metadata: {{version: 1.0}}\n")
    return list(rows)


def evaluate(tasks, names, out, *model):
    """Runs lm-eval; returns its results and its samples by task."""
    command = [sys.executable, "-m", "lm_eval", "run", "--model", *model, "--tasks", *names, "--include_path", tasks, "--output_path", out, "--log_samples"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "a key", "CUDA_VISIBLE_DEVICES": ""})
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    results, samples = None, {}
    for folder, _, files in os.walk(out):
        for name in files:
            with open(os.path.join(folder, name)) as f:
                if name.startswith("results_"):
                    results = json.load(f)["results"]
                elif name.startswith("samples_"):
                    samples[name.split("_")[1]] = [json.loads(line) for line in f]
    return results, samples


def near(a, b):
    return a == b or isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-4 * max(abs(a), abs(b))


def main():
    import lm_eval
    import transformers

    with open(os.path.join(os.path.dirname(__file__), "..", "ARCHITECTURE.md"), encoding="utf-8") as f:
        text = f.read()
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        folder = sys.argv[2] if len(sys.argv) > 2 else f"{work}/model"
        if len(sys.argv) < 3:
            make_folder(folder, text)
        os.mkdir(f"{work}/tasks")
        names = make_tasks(f"{work}/tasks", text)
        server, base = serve(sys.argv[1], folder, "a key", CONTEXT)
        try:
            ours = evaluate(f"{work}/tasks", names, f"{work}/ours", "local-completions", "--model_args",
                            f"model=tiny,base_url={base}/completions,tokenizer={folder},tokenizer_backend=huggingface,num_concurrent=4,max_retries=1,max_length={CONTEXT}")
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=30) == 0
        theirs = evaluate(f"{work}/tasks", names, f"{work}/theirs", "hf", "--device", "cpu", "--batch_size", "1", "--model_args", f"pretrained={folder},dtype=float32,max_length={CONTEXT - 2}")  # so many local-completions sends
    for name in names:
        for key, want in theirs[0][name].items():
            got = ours[0][name][key]
            if isinstance(want, (int, float)) and "stderr" not in key:
                print(f"{name} {key}: {got}, transformers {want}")
            if not near(got, want):
                wrong += 1
                print(f"DIFFERS {name} {key}: {got}, transformers {want}")
        pairs = list(zip(sorted(ours[1][name], key=lambda s: s["doc_id"]), sorted(theirs[1][name], key=lambda s: s["doc_id"]), strict=True))
        values = [(a, b) for o, t in pairs for x, y in zip(o["filtered_resps"], t["filtered_resps"], strict=True)
                  for a, b in zip(x if isinstance(x, list) else [x], y if isinstance(y, list) else [y], strict=True)]
        number = lambda v: float(v) if v not in ("True", "False") and isinstance(v, str) and name != "texts" else v
        worst = max((abs(number(a) - number(b)) for a, b in values if isinstance(number(a), float)), default=0.0)
        unequal = [(a, b) for a, b in values if not near(number(a), number(b))]
        wrong += len(unequal)
        print(f"{name}: {len(pairs)} documents, {len(values)} answers, {len(unequal)} differ, log-likelihoods by {worst:.1e} at most", *unequal[:3])
    print(f"lm_eval {lm_eval.__version__} against athanor api and on transformers {transformers.__version__}: {'the same numbers' if wrong == 0 else f'{wrong} numbers differ'}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
