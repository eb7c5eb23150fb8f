"""Loads the tokenizer of a folder with transformers and prints the ids of texts.

    python load.py FOLDER < texts.json > ids.json

texts.json is a list of strings. Exits with 77 where transformers is missing.
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
try:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
except ImportError:
    sys.exit(77)

texts = json.load(sys.stdin)
auto = AutoTokenizer.from_pretrained(sys.argv[1])
fast = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
ids = [auto.encode(t, add_special_tokens=False) for t in texts]
assert ids == [fast.encode(t, add_special_tokens=False) for t in texts]
assert len(auto) == len(fast)
decoded = [auto.decode(i) for i in ids]
json.dump({"ids": ids, "size": len(auto), "eos": auto.eos_token_id, "decoded": decoded}, sys.stdout)
