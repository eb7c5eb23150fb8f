"""Makes the fixtures of data/parquet with Arrow, Polars and DuckDB.

    pip install pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1
    python tools/parquet_fixtures.py

Writes to data/parquet/testdata: tables as <rows>.jsonl, a line for each row without what is null, and the same as
<rows>-<how>.parquet, written in many ways. What the ways are is in the calls at the end.
"""
import datetime
import json
import os

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "parquet", "testdata")


def path(name):
    return os.path.join(folder, name)


def say(role, content, **more):
    return {"role": role, "content": content, **more}


words = "gold silver sulphur mercury salt iron copper tin lead antimony".split()
texts = [
    "", "one", 'quotes " and \\ and / and \b\f\n\r\t\x00\x1f\x7f', "\u4e0d\u8001\u4e39 \U0001f525 caf\u00e9\n", "<|endoftext|>",
    *(" ".join(words[(i * j) % 10] for j in range(1, 2 + i % 13)) + f" {i}\n" for i in range(40)),
    "the same again\n" * 60, "", "last",
]
chats = [
    {"messages": [say("user", "q"), say("assistant", "r")]},
    {"messages": [say("system", "be brief"), say("user", "one\ntwo"), say("assistant", "three", weight=0), say("user", ""), say("assistant", "four", weight=1)]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]},
    {"instruction": "i", "input": "", "output": "o"},
    {"instruction": "i", "input": "n", "output": "o"},
    {"prompt": "p", "completion": "c"},
    {"text": "all", "messages": [say("user", "not read")]},
    {"messages": [say("user", "a" * 50), say("assistant", "b\u00e9" * 40)] * 9},
]
types = [
    {"v": {"b": True, "i": -5, "l": -(2**40), "u": 2**32 - 1, "w": 2**64 - 1, "s": -128, "f": 0.5, "d": 1e300, "x": "eA==", "n": None, "z": [], "y": [[1, 2], [], None, [None, 3]]}, "r": {"p": {"q": 1}}},
    {"v": {"b": False, "i": 2**31 - 1, "l": 2**63 - 1, "u": 0, "w": 0, "s": 127, "f": -2.0, "d": -0.1, "x": "", "n": None, "z": None, "y": None}, "r": {"p": None}},
    {"v": {"b": None, "i": None, "l": None, "u": None, "w": None, "s": None, "f": None, "d": None, "x": None, "n": None, "z": [{"k": "a", "m": []}, {"k": None, "m": [None, "c"]}, None], "y": [[]]}},
    {},
    *({"v": {"b": i % 3 == 0, "i": i * i * (-1) ** i, "l": i << 33, "u": i, "w": i << 40, "s": i % 128, "f": i / 4, "d": i / 3, "x": "x" * (i % 5), "n": None, "z": [], "y": [[i]] * (i % 4)}, "r": {"p": {"q": i}}} for i in range(70)),
]
message = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64())])
schemas = {
    "texts": pa.schema([("id", pa.int64()), ("text", pa.string())]),
    "chats": pa.schema([
        ("id", pa.int64()), ("messages", pa.list_(message)), ("conversations", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
        *((name, pa.string()) for name in ("instruction", "input", "output", "prompt", "completion", "text")),
    ]),
    "types": pa.schema([
        ("v", pa.struct([
            ("b", pa.bool_()), ("i", pa.int32()), ("l", pa.int64()), ("u", pa.uint32()), ("w", pa.uint64()), ("s", pa.int8()), ("f", pa.float32()), ("d", pa.float64()),
            ("x", pa.string()), ("n", pa.null()), ("z", pa.list_(pa.struct([("k", pa.string()), ("m", pa.list_(pa.string()))]))), ("y", pa.list_(pa.list_(pa.int32()))),
        ])),
        ("r", pa.struct([("p", pa.struct([("q", pa.int16())]))])),
    ]),
}
rows = {"texts": [{"id": i, "text": t} for i, t in enumerate(texts)], "chats": [{"id": i, **c} for i, c in enumerate(chats)], "types": types}
tables = {name: pa.Table.from_pylist(rows[name], schemas[name]) for name in rows}


def without_null(row):
    return {k: v for k, v in row.items() if v is not None}


def jsonl(name):
    with open(path(name + ".jsonl"), "w", encoding="utf-8") as f:
        for row in tables[name].to_pylist():
            f.write(json.dumps(without_null(row)) + "\n")


def arrow(name, how, **options):
    pq.write_table(options.pop("table", tables[name]), path(f"{name}-{how}.parquet"), **{"compression": "zstd", "row_group_size": 1000, "write_statistics": False, "store_schema": False, **options})


os.makedirs(folder, exist_ok=True)
for old in os.listdir(folder):
    if old.endswith((".parquet", ".jsonl")):
        os.remove(path(old))
for name in tables:
    jsonl(name)
for codec in ("none", "snappy", "gzip", "zstd", "lz4"):
    for version in ("1.0", "2.0"):
        arrow("texts", f"{codec}-{version[0]}", compression=codec, data_page_version=version, row_group_size=20)
for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
    arrow("texts", encoding.lower(), use_dictionary=False, column_encoding={"text": encoding, "id": "DELTA_BINARY_PACKED"}, data_page_version="2.0")
arrow("texts", "pages", data_page_size=1, write_batch_size=1, dictionary_pagesize_limit=200, write_page_checksum=True, write_statistics=True, row_group_size=30)
arrow("texts", "large", table=tables["texts"].cast(pa.schema([("id", pa.int32()), ("text", pa.large_string())])))
arrow("texts", "binary", table=tables["texts"].cast(pa.schema([("id", pa.int32()), ("text", pa.binary())])))
arrow("texts", "required", table=tables["texts"].cast(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)])))
arrow("chats", "arrow")
arrow("chats", "pages", data_page_size=1, write_batch_size=1, data_page_version="2.0", row_group_size=3, write_page_checksum=True)
arrow("chats", "item", use_compliant_nested_type=False, compression="snappy", use_dictionary=False)
arrow("types", "arrow")
arrow("types", "pages", data_page_size=1, write_batch_size=11, data_page_version="2.0", row_group_size=40)
delta, split = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"
arrow("types", "encodings", use_dictionary=False, data_page_version="2.0", column_encoding={
    "v.b": "RLE", "v.i": delta, "v.l": delta, "v.u": delta, "v.w": delta, "v.s": split, "v.f": split, "v.d": split, "v.x": "DELTA_BYTE_ARRAY", "v.y.list.element.list.element": split})
arrow("types", "plain", use_dictionary=False)
for name in ("texts", "chats"):
    polars.from_arrow(tables[name]).write_parquet(path(f"{name}-polars.parquet"), statistics=False)
    source = tables[name]  # DuckDB finds it by its name
    duckdb.sql("select * from source").write_parquet(path(f"{name}-duckdb.parquet"), compression="zstd")

# Files that no jsonl belongs to.
pq.write_table(tables["texts"].slice(0, 0), path("empty.parquet"))
pq.write_table(pa.table({"text": pa.array([None] * 3, pa.string()), "id": [1, 2, 3]}), path("null.parquet"))
pq.write_table(pa.table({"content": ["x"]}), path("other.parquet"))
pq.write_table(pa.table({"text": [1, 2]}), path("number.parquet"))
pq.write_table(pa.table({"chosen": ["x"], "rejected": ["y"]}), path("preference.parquet"))
pq.write_table(pa.table({"text": ["x"]}), path("brotli.parquet"), compression="brotli")
now = datetime.datetime(2024, 7, 26)
pq.write_table(pa.table({"messages": [[{"role": "user", "content": "q", "at": now}]]}), path("time.parquet"))
pq.write_table(pa.table({"text": ["x", "y"], "messages": [[now], [now]]}), path("beside.parquet"))
