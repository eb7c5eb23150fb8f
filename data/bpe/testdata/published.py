"""Makes published.json, bpe.model and unigram.model: what is peculiar about the tokenizers of published models, in small.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python published.py

Each case changes one of the tokenizers that make.py made, as the files of the named models differ from it; the ids are
those of Hugging Face tokenizers. The two models of SentencePiece are trained on ../../../LICENSE, and their ids are its
own. tools/check_tokenizers.py compares the published files themselves.
"""
import io
import json
import os
import re

import sentencepiece
from tokenizers import Tokenizer

here = os.path.dirname(os.path.abspath(__file__))
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s|"
TEKKEN = WORD % ("*", "+") + WORD % ("+", "*") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK = ["\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": [*parts, BYTES]}


def added(content, **flags):
    known = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|endoftext|>": 0}
    return {"id": known.get(content), "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


SPACES = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
CASES = {  # name: base, what is set, tokens taken out of the vocabulary, merges added at the front
    "gpt-neox: 13 bytes have no token": ("gpt2", {}, [chr(c) for c in [0xC0, 0xC1, *range(0xF5, 0x100)]], []),
    "olmo 2: split by what is removed if inverted": ("gpt2", {"pre_tokenizer": sequence(split(LLAMA3, "Removed", True))}, [], []),
    "words only": ("gpt2", {"pre_tokenizer": sequence(split(r"\p{L}+|\p{N}", "Removed", True))}, [], []),
    "phi-4: white space belongs to tokens": ("gpt2", {"added_tokens": [
        added("<|endoftext|>", lstrip=True, rstrip=True), added("<|im_end|>", lstrip=True, rstrip=True), added("<|im_start|>", rstrip=True)]}, [], []),
    "roberta: a mask with the space before it": ("gpt2", {"added_tokens": [added("<|endoftext|>"), added("<mask>", lstrip=True), added("word", single_word=True)]}, [], []),
    "tekken": ("gpt2", {"pre_tokenizer": sequence(split(TEKKEN))}, [], []),
    "qwen3.5": ("gpt2", {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence(split(QWEN35))}, [], []),
    "cl100k with possessive quantifiers": ("gpt2", {"pre_tokenizer": sequence(split(CL100K))}, [], []),
    "deepseek v3: three steps": ("gpt2", {"normalizer": {"type": "Sequence", "normalizers": []}, "pre_tokenizer": sequence(*map(split, DEEPSEEK))}, [], []),
    "a space before the text": ("gpt2", {"pre_tokenizer": {**BYTES, "add_prefix_space": True, "use_regex": True}}, [], []),
    "normalized added tokens": ("gpt2", {"normalizer": {"type": "NFKC"}, "added_tokens": [added("<|endoftext|>"), added("\ufb01n", normalized=True, special=False)]}, [], []),
    "lower case": ("gpt2", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}}, [], []),
    "digits and punctuation": ("gpt2", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, {"type": "Punctuation", "behavior": "Contiguous"},
                                                                   {"type": "Split", "pattern": {"String": "e"}, "behavior": "MergedWithNext", "invert": False})}, [], []),
    "saved with truncation and padding": ("gpt2", {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
                                                   "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}}, [], []),
    "llama 1: <unk> and <s> are normalized": ("llama2", {"added_tokens": [added("<unk>", normalized=True), added("<s>", normalized=True), added("</s>")]}, [], []),
    "phi-3: white space behind tokens": ("llama2", {"added_tokens": [added("<unk>"), added("<s>"), added("</s>", rstrip=True), added("<|end|>", rstrip=True), added("<|user|>", rstrip=True)]}, [], []),
    "gemma 3: one token has a space inside": ("llama2", {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, "pre_tokenizer": {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}}, [], [["<", "/"], ["\u2581", "</"], [">", "\u2581</"]]),
    "metaspace that splits": ("llama2", {"normalizer": None, "pre_tokenizer": SPACES}, [], []),
    "unknown characters": ("llama2", {"model.byte_fallback": False}, [], []),
    "unknown characters one by one": ("llama2", {"model.byte_fallback": False, "model.fuse_unk": False}, [], []),
}
TEXTS = ["", " ", "\n\n x", "Hello, World!", "  two  spaces\n\n\n  and lines \n x\r\n", "I've WE'LL 'S don't", "1 12 123 1234567 \u0661\u0662\u0663 \u00bd", "JSONtext camelCase HTTPServer ABC",
         "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002\u6f22\u5b57abc", "na\u00efve cafe\u0301 \u0301x \u0915\u094d\u0937", "a/b//c\n/d", "\u00a0x \u3000y", "\ufb01n fin x\ufb01n \u2167", "\U0001f600\U0001f468\u200d\U0001f469 ok",
         "a <|im_end|> \n b<|im_end|>", "  <|endoftext|>  x <|im_start|> \n user", "x  <mask> y<mask>", "word words a word, sword word", "<s>a", "a <s> b</s>  c<unk>d", " <s> <unk>", "<|user|>\n hi <|end|>\n\n<|end|>", "<b> </b> > </ > <a>", "a>b> </", "\u2581a\u2581\u2581b \u2581", "x\u4e00\u4e00y\u00ff",
         "aeiou eee see", "...!?;", "\u0130stanbul \u00c4\u00d6", "tabs\t\tx \t y", "the License, Version 2.0 (the \"License\"); you may not use"]


def build(base, settings, without, merges):
    with open(os.path.join(here, base + ".json"), encoding="utf8") as f:
        raw = json.load(f)
    for path, value in settings.items():
        if path.startswith("model."):
            raw["model"][path[6:]] = value
        else:
            raw[path] = value
    vocab = raw["model"]["vocab"]
    for token in without:
        vocab.pop(token, None)
    for left, right in merges:
        for token in (left, right, left + right):
            vocab.setdefault(token, max(vocab.values()) + 1)
    new = max(vocab.values()) + 1
    for token in settings.get("added_tokens", []):  # tokenizers numbers new ones itself, behind the vocabulary
        if token["id"] is None:
            token["id"], new = new, new + 1
    raw["added_tokens"] = settings.get("added_tokens", raw["added_tokens"])
    raw["model"]["merges"] = merges + [m if isinstance(m, list) else m.split(" ") for m in raw["model"]["merges"]]
    return raw


def ids_of(raw):
    t = Tokenizer.from_str(json.dumps(raw))
    t.no_truncation()
    t.no_padding()
    return [t.encode(text, add_special_tokens=False).ids for text in TEXTS]


def sentence(kind):
    with open(os.path.join(here, "../../../LICENSE"), encoding="utf8") as f:
        lines = [re.sub(r"\s+", " ", line) for line in f] + ["na\u00efve \u65e5\u672c"]
    model = io.BytesIO()
    own = dict(remove_extra_whitespaces=False, normalization_rule_name="identity") if kind == "bpe" else {}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=600 if kind == "bpe" else 400, model_type=kind,
                                             byte_fallback=kind == "bpe", user_defined_symbols=["<sep>"], minloglevel=2, **own)
    with open(os.path.join(here, kind + ".model"), "wb") as f:
        f.write(model.getvalue())
    p = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [p.encode(text) for text in SENTENCES]


SENTENCES = [t for t in TEXTS if not re.search("<s>|</s>|<unk>", t)] + ["a<sep>b <sep> c", "\uff21\uff22 \u2460 x"]
cases = {name: {"base": base, "set": settings, "without": without, "merges": merges, "ids": ids_of(build(base, settings, without, merges))}
         for name, (base, settings, without, merges) in CASES.items()}
models = {kind: sentence(kind) for kind in ("bpe", "unigram")}
with open(os.path.join(here, "published.json"), "w", encoding="utf8") as f:
    json.dump({"texts": TEXTS, "cases": cases, "sentences": SENTENCES, "models": models}, f, ensure_ascii=True, separators=(",", ":"))
    f.write("\n")
