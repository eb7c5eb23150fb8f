#!/usr/bin/env python3
"""Writes checkpoint/gguf/testdata/small.gguf by the package gguf (ggml-org): a file with every type of value and tensor that
checkpoint/gguf writes but K-quants; and kquants.bin by ggml's own code, which comes with llama-cpp-python.

    python3 tools/gguf_fixtures.py
"""
import ctypes
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
for name, kind in [("a", T.F32), ("b", T.F16), ("c", T.BF16), ("d", T.Q8_0), ("e", T.Q5_0)]:
    data = x if kind == T.F32 else gguf.quantize(x, kind)
    w.add_tensor(name, data, raw_dtype=None if kind in (T.F32, T.F16) else kind)
w.add_tensor("norm", x[0, :5].copy())
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

# Blocks of 256 numbers as Q4_K, then the same as Q6_K.
import llama_cpp

ggml = ctypes.CDLL(str(pathlib.Path(llama_cpp.__file__).parent / "lib/libggml-base.so"))
ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
i = np.arange(16 * 256, dtype=np.int64)
x = sum((i * 7919 * (j + 1) + j * 12345) % 1009 - 504 for j in range(4)).astype(np.float32).reshape(16, 256) / np.float32(4096)
x[1] = 0
x[2, :32] = 0  # a part of zeros
x[3] = np.abs(x[3])
x[4] = -np.abs(x[4])
x[5] = 0.5  # equal numbers
x[6, 7] = 100  # an outlier
x[7] *= np.float32(2.0**-40)
x = np.ascontiguousarray(x)
with open(path.parent / "kquants.bin", "wb") as f:
    for kind, size in ((12, 144), (14, 210)):
        out = ctypes.create_string_buffer(16 * size)
        assert ggml.ggml_quantize_chunk(kind, x.ctypes.data, out, 0, 16, 256, None) == 16 * size
        f.write(out.raw)
