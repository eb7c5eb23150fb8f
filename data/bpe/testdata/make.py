"""Makes the fixtures of package bpe with Hugging Face tokenizers.

    pip install tokenizers==0.23.3
    python make.py [vocab.bpe encoder.json]

For each of the five pre-tokenisation patterns it trains a small vocabulary on
../../../LICENSE and writes it as <pattern>.json; ids.json holds strings and the
ids that Hugging Face gives them. With the two files that OpenAI published for
GPT-2, the ids of the real GPT-2 are made too; without, they are kept.
"""
import json
import os
import random
import re
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

here = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
O200K = WORD % ("*", "+") + WORD % ("+", "*") + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def splitter(regex):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def strings():
    fixed = [
        "", " ", "  ", "\n", "\n\n", "\t", " \n ", "a", "hello world", "Hello, World!",
        "  leading", "trailing  ", "a  b   c    d", "a\nb\n\nc\n\n\nd", "a \n b \n\n c", "\r\n\r\nx",
        "I've we'll they're it's I'm he'd don't", "I'VE WE'LL THEY'RE IT'S I'M HE'D DON'T", "'sx 'S'T '\u017f 'L 'lL",
        "x'", "''s", "' s", "1 12 123 1234 12345 1234567", "x1y22z333", " 42", "3.14159", "v1.26.8", "1,000,000",
        "func main() {\n\tfmt.Println(\"hi\")\n}\n", "if x != nil {\n\t\treturn err\n\t}\n\n", "a;\n\nb();\r\n\r\nc",
        "...!!!???", "!!!\n\n\n  x", " !x", "  !x", "\t!x", "\tx", "\t\tx", "\u00a0x", "x\u00a0\u00a0y", "x\u2028y", "\u3000x",
        "\u00e4\u00f6\u00fc\u00df", "na\u00efve caf\u00e9", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0661\u0662\u0663\u0664",
        "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u0939\u093f\u0928\u094d\u0926\u0940", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 x",
        "\u00bd \u2167 \u00b2", "e\u0301 cafe\u0301", "\ufeffbom", "\x00\x01\x7f", "<|endoftext|>", "a<|endoftext|>b<|endoftext|>",
        "<|endoftext|", "<<|endoftext|>>", "a" * 100, " " * 100, "ab" * 60, "\n" * 70, "the " * 40,
        "Licensed under the Apache License, Version 2.0 (the \"License\");", "unrecognisablewordsthatarelong",
    ]
    rng = random.Random(20261121)
    pools = ["abcdefghij", "ABCXYZ", "0123456789", "    ", "\n\n\r\t", ".,;:!?'\"()[]{}<>|-_=+*/\\#@&%$", "'", "stmdrevl",
             "\u00e4\u00e9\u00f1\u017f\u00df", "\u0661\u0662\u00bd\u00b2", "\u65e5\u672c\u30c6", "\u00a0\u2003\u3000\u0085",
             "\U0001f600\u2713\u20ac", "\u0301\u0308"]
    for _ in range(400):
        chosen = rng.sample(pools, rng.randint(1, 5))
        fixed.append("".join(rng.choice(rng.choice(chosen)) for _ in range(rng.randint(1, 40))))
    # Go's normalizer breaks up more than 30 combining marks in a row (the
    # Stream-Safe Text Format of UAX 15), others do not: a known difference.
    return [s for s in fixed if not re.search("[\u0301\u0308]{30}", s)]


def sentencepiece():
    """A vocabulary as Llama 2 has it, in the two notations of transformers 4, and that of 5."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(split=True)  # no token over two words
    with open(os.path.join(here, "../../../LICENSE"), encoding="utf8") as f:
        t.train_from_iterator([re.sub(r"\s+", " ", f.read()) + " na\u00efve \u65e5\u672c"],
                              trainers.BpeTrainer(vocab_size=500, show_progress=False))
    raw = json.loads(t.to_str())
    special = ["<unk>", "<s>", "</s>"]
    first = special + [f"<0x{b:02X}>" for b in range(256)]
    spaces = ["\u2581" * n for n in (2, 4)]  # as Llama 2 has for indentation
    words = sorted(raw["model"]["vocab"], key=raw["model"]["vocab"].get) + spaces
    raw["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>",
                        vocab={w: i for i, w in enumerate(first + words)},
                        merges=[["\u2581", "\u2581"], ["\u2581\u2581", "\u2581\u2581"]] + raw["model"]["merges"])
    raw["added_tokens"] = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
                            "normalized": False, "special": True} for i, s in enumerate(special)]
    raw["pre_tokenizer"] = None
    raw["decoder"] = {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                       {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    raw["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    with open(os.path.join(here, "llama2.json"), "w", encoding="utf8") as f:
        json.dump(raw, f, ensure_ascii=False, indent=0)
    all = {"llama2": raw}
    for scheme in "first", "always", "never":
        all["llama2 " + scheme] = {**raw, "normalizer": None, "pre_tokenizer": {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}}
    # As Gemma 3 has them: no space before a text, a splitter that finds nothing to split, line breaks as added tokens.
    size = len(raw["model"]["vocab"])
    all["gemma3"] = {**raw, "normalizer": replace,
                     "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                     "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
                     "added_tokens": raw["added_tokens"] + [{**raw["added_tokens"][0], "id": size + i, "content": s, "special": False}
                                                            for i, s in enumerate(["\n\n", "\n\n\n", "<table>"])]}
    with open(os.path.join(here, "gemma3.json"), "w", encoding="utf8") as f:
        json.dump({k: v for k, v in all["gemma3"].items() if k != "model"}, f, ensure_ascii=False, indent=0)
    return all


def main():
    texts = strings()
    ids = {}
    setups = {
        "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
        "llama3": (splitter(LLAMA3), None),
        "qwen2": (splitter(QWEN2), normalizers.NFC()),
        "o200k": (splitter(O200K), None),
        "digits": (pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), None),
        "neox": (pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()),
    }
    for name, (pre, norm) in setups.items():
        t = Tokenizer(models.BPE())
        t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
        if norm is not None:
            t.normalizer = norm
        trainer = trainers.BpeTrainer(
            vocab_size=700, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        with open(os.path.join(here, "../../../LICENSE"), encoding="utf8") as f:
            # one text of the trainer is one document
            t.train_from_iterator([f.read()], trainer)
        raw = json.loads(t.to_str())
        if name == "gpt2":  # the older notation of merges
            raw["model"]["merges"] = [" ".join(m) for m in raw["model"]["merges"]]
        if name == "llama3":
            raw["model"]["ignore_merges"] = True
        if name == "neox":  # spaces for indentation, as GPT-NeoX has them
            raw["added_tokens"] += [{"id": 700 + i, "content": " " * (24 - i), "single_word": False, "lstrip": False, "rstrip": False,
                                     "normalized": True, "special": False} for i in range(23)]
        t = Tokenizer.from_str(json.dumps(raw))
        with open(os.path.join(here, name + ".json"), "w", encoding="utf8") as f:
            json.dump(raw, f, ensure_ascii=False, indent=0)
        ids[name] = [t.encode(s, add_special_tokens=False).ids for s in texts]

    for name, raw in sentencepiece().items():
        t = Tokenizer.from_str(json.dumps(raw))
        ids[name] = [t.encode(s, add_special_tokens=False).ids for s in texts]

    out = os.path.join(here, "ids.json")
    if len(sys.argv) == 3:
        with open(sys.argv[1], encoding="utf8") as f:
            merges = [tuple(line.split(" ")) for line in f.read().split("\n")[1:] if line]
        with open(sys.argv[2], encoding="utf8") as f:
            vocab = json.load(f)
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.add_special_tokens(["<|endoftext|>"])
        ids["published gpt2"] = [t.encode(s, add_special_tokens=False).ids for s in texts]
    else:
        with open(out, encoding="utf8") as f:
            ids["published gpt2"] = json.load(f)["ids"]["published gpt2"]
    with open(out, "w", encoding="ascii") as f:
        f.write('{"texts": [\n' + ",\n".join(json.dumps(s) for s in texts) + '\n], "ids": {\n')
        f.write(",\n".join(json.dumps(k) + ": [\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in v) + "\n]"
                           for k, v in ids.items()))
        f.write("\n}}\n")


main()
