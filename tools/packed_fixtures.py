"""Makes the compressed fixtures of package data with Python's gzip, Arrow, and Zstandard's own library and program.

    pip install pyarrow==26.0.1 zstandard==0.25.0
    python tools/packed_fixtures.py

Writes to data/testdata: <rows>-<how>.<jsonl|json|txt>.<gz|zst>, each the bytes of data/parquet/testdata/<rows>.jsonl.
"""
import gzip
import os
import subprocess

import pyarrow as pa
import zstandard

here = os.path.dirname(os.path.abspath(__file__))
into = os.path.join(here, "..", "data", "testdata")


def read(rows):
    with open(os.path.join(here, "..", "data", "parquet", "testdata", rows + ".jsonl"), "rb") as f:
        return f.read()


def write(name, content):
    with open(os.path.join(into, name), "wb") as f:
        f.write(content)


def stream(codec, whole):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as z:
        z.write(whole)
    return out.getvalue().to_pybytes()


def parts(whole):  # cut inside of lines
    return [whole[i:i + 777] for i in range(0, len(whole), 777)]


os.makedirs(into, exist_ok=True)
texts, chats = read("texts"), read("chats")
skippable = b"\x5a\x2a\x4d\x18" + (9).to_bytes(4, "little") + b"not text\n"
write("texts-python.jsonl.gz", gzip.compress(texts, mtime=0))
write("texts-members.json.gz", b"".join(gzip.compress(p, mtime=0) for p in parts(texts) + [b""]))
write("texts-arrow.jsonl.gz", stream("gzip", texts))
write("texts-arrow.jsonl.zst", stream("zstd", texts))
write("texts-frames.ndjson.zst", skippable + b"".join(zstandard.ZstdCompressor(level=19, write_checksum=True).compress(p) for p in parts(texts) + [b""]) + skippable)
write("texts-cli.json.zst", subprocess.run(["zstd", "-c", "--long=27"], input=texts, stdout=subprocess.PIPE, check=True).stdout)
write("texts-python.txt.gz", gzip.compress(texts, mtime=0))
write("texts-python.txt.zst", zstandard.ZstdCompressor(write_checksum=True).compress(texts))
write("chats-python.jsonl.gz", gzip.compress(chats, mtime=0))
write("chats-python.jsonl.zst", zstandard.ZstdCompressor(write_checksum=True).compress(chats))
write("texts-wide.jsonl.zst", subprocess.run(["zstd", "-c", "--long=28"], input=texts, stdout=subprocess.PIPE, check=True).stdout)
trained = zstandard.train_dictionary(2048, texts.splitlines(True) * 20)
write("texts-dictionary.jsonl.zst", zstandard.ZstdCompressor(dict_data=trained).compress(texts))
