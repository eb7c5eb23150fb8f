#!/usr/bin/env python3
"""Writes checkpoint/gguf/testdata/small.gguf by the package gguf (ggml-org): a file with every type of value and tensor that
checkpoint/gguf writes.

    python3 tools/gguf_fixtures.py
"""
import pathlib

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as T

path = pathlib.Path(__file__).parent.parent / "checkpoint/gguf/testdata/small.gguf"
w = gguf.GGUFWriter(path, "llama")
w.add_uint32("llama.block_count", 2)
w.add_float32("llama.rope.freq_base", 10000.0)
w.add_bool("tokenizer.ggml.add_bos_token", False)
w.add_string("tokenizer.chat_template", "{{ é }}")
w.add_array("tokenizer.ggml.tokens", ["a", "Ġb", ""])
w.add_array("tokenizer.ggml.token_type", [1, 3, 5])
x = np.array([((i * 7919) % 1009 - 504) / 100 for i in range(3 * 64)], dtype=np.float32).reshape(3, 64)
x[1, 32:] = 0  # a block of zeros
for name, kind in [("a", T.F32), ("b", T.F16), ("c", T.BF16), ("d", T.Q8_0)]:
    data = x if kind == T.F32 else gguf.quantize(x, kind)
    w.add_tensor(name, data, raw_dtype=None if kind in (T.F32, T.F16) else kind)
w.add_tensor("norm", x[0, :5].copy())
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
