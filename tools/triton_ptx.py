#!/usr/bin/env python3
"""Writes device/cuda/internal/ptx/testdata: products of matrices as Triton compiles them for Hopper's tensor cores.

    python tools/triton_ptx.py [OUT]

The interpreter of PTX has to read descriptors of shared memory, swizzles and fragments as the hardware does, and no
card is at hand to ask. Triton's code generator has long made such code for such cards, and nobody here wrote it: what
the interpreter makes of it must be the product. No GPU is needed to compile.

Every kernel is C = A B of bf16 into fp32, one block for each tile of C; sizes are whole numbers of tiles. A may be
stored turned (rows of k), B too (rows of n), each of which is another layout for tensor cores. The first line of each
file tells the test what it is.

Known weakness: the texts depend on Triton's version, which is in their first line too.
"""
import os
import pathlib
import sys

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma


@triton.jit
def pipelined(a, b, c, k, A0: tl.constexpr, A1: tl.constexpr, B0: tl.constexpr, B1: tl.constexpr, LDC: tl.constexpr,
              M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, NEGATED: tl.constexpr):
    """Copies are under way while tensor cores multiply. A0 and A1 are the steps from row to row and from column to column
    of A; the compiler sees which of them is 1. NEGATED has A pass through registers."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    if A0 == 1:
        pa = a + inner[:, None] * A1 + rows[None, :]
    else:
        pa = a + rows[:, None] * A0 + inner[None, :]
    if B0 == 1:
        pb = b + columns[:, None] * B1 + inner[None, :]
    else:
        pb = b + inner[:, None] * B0 + columns[None, :]
    sum = tl.zeros((M, N), dtype=tl.float32)
    for _ in tl.range(0, k, K, num_stages=STAGES):
        x = tl.load(pa)
        y = tl.load(pb)
        if A0 == 1:
            x = tl.trans(x)
        if B0 == 1:
            y = tl.trans(y)
        if NEGATED:
            x = (x.to(tl.int16, bitcast=True) ^ -32768).to(tl.bfloat16, bitcast=True)
        sum = tl.dot(x, y, sum)
        pa += K * A1
        pb += K * B0
    tl.store(c + rows[:, None] * LDC + columns[None, :], sum)


@gluon.jit
def tile(p, STEP: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    down = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    right = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    return gl.load(p + down[:, None] * STEP + right[None, :])


@gluon.jit
def explicit(a, b, c, k, A0: gl.constexpr, A1: gl.constexpr, B0: gl.constexpr, B1: gl.constexpr, LDC: gl.constexpr,
             M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, LAYOUT_A: gl.constexpr, LAYOUT_B: gl.constexpr):
    """One tile after the other through shared memory whose layout the kernel chooses."""
    load: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    sums: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    rows = gl.program_id(0) * M
    columns = gl.program_id(1) * N
    sa = gl.allocate_shared_memory(a.dtype.element_ty, [K, M] if A0 == 1 else [M, K], LAYOUT_A)
    sb = gl.allocate_shared_memory(b.dtype.element_ty, [N, K] if B0 == 1 else [K, N], LAYOUT_B)
    sum = gl.zeros([M, N], gl.float32, sums)
    for i in range(0, k, K):
        if A0 == 1:
            sa.store(tile(a + i * A1 + rows, A1, K, M, load))
        else:
            sa.store(tile(a + rows * A0 + i, A0, M, K, load))
        if B0 == 1:
            sb.store(tile(b + columns * B1 + i, B1, N, K, load))
        else:
            sb.store(tile(b + i * B0 + columns, B0, K, N, load))
        fence_async_shared()
        sum = warpgroup_mma(sa.permute([1, 0]) if A0 == 1 else sa, sb.permute([1, 0]) if B0 == 1 else sb, sum)
    r = rows + gl.arange(0, M, gl.SliceLayout(1, sums))
    q = columns + gl.arange(0, N, gl.SliceLayout(0, sums))
    gl.store(c + r[:, None] * LDC + q[None, :], sum)


# What is turned, tile of C, depth of a tile, warps; then stages and whether A passes through registers, or the bytes of
# A's and B's swizzle.
PIPELINED = [
    ("a", 64, 128, 32, 4, 3, False),
    ("b", 64, 32, 64, 4, 2, False),
    ("ab", 64, 32, 32, 4, 2, False),
    ("", 64, 16, 16, 4, 2, False),
    ("", 128, 64, 32, 8, 2, True),
]
EXPLICIT = [
    ("a", 64, 64, 32, 4, 32, 64),
    ("a", 64, 32, 32, 4, 0, 0),
    ("b", 64, 32, 32, 4, 0, 0),
]


def layout(swizzle, rows, columns):
    """Of a matrix in shared memory. Without a swizzle it is tiles of 8 rows of 16 bytes, which follow each other down a column first."""
    if swizzle:
        return gl.NVMMASharedLayout(swizzle, 16, 2)
    down = [[1 << i, 0] for i in range(rows.bit_length() - 1)]
    right = [[0, 1 << i] for i in range(columns.bit_length() - 1)]
    return gl.SharedLinearLayout(right[:3] + down + right[3:], alignment=1024)


def write(out, name, kernel, source, turned, m, n, k, warps, more, options):
    constants = dict(A0=1 if "a" in turned else 4 * k, A1=2 * m if "a" in turned else 1,
                     B0=1 if "b" in turned else 2 * n, B1=4 * k if "b" in turned else 1, LDC=2 * n, M=m, N=n, K=k) | more
    signature = {"a": "*bf16", "b": "*bf16", "c": "*fp32", "k": "i32"} | {c: "constexpr" for c in constants}
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    compiled = triton.compile(source(kernel, signature, constants, attributes), target=GPUTarget("cuda", 90, 32),
                              options={"num_warps": warps} | options)
    head = (f"// {compiled.metadata.name} a={int('a' in turned)} b={int('b' in turned)} m={2 * m} n={2 * n} k={4 * k} tile={m}x{n} "
            f"threads={32 * warps} shared={compiled.metadata.shared} negated={int(more.get('NEGATED', False))} triton={triton.__version__}")
    (out / f"{name}.ptx").write_text(head + "\n" + compiled.asm["ptx"])
    print(head)


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "device/cuda/internal/ptx/testdata")
    out.mkdir(parents=True, exist_ok=True)
    for turned, m, n, k, warps, stages, negated in PIPELINED:
        name = f"pipelined-{turned or 'plain'}-{m}x{n}x{k}" + "-registers" * negated
        write(out, name, pipelined, ASTSource, turned, m, n, k, warps, dict(STAGES=stages, NEGATED=negated), dict(num_stages=stages))
    for turned, m, n, k, warps, swizzle_a, swizzle_b in EXPLICIT:
        name = f"explicit-{turned}-{m}x{n}x{k}-{swizzle_a}-{swizzle_b}"
        layouts = dict(LAYOUT_A=layout(swizzle_a, *((k, m) if "a" in turned else (m, k))),
                       LAYOUT_B=layout(swizzle_b, *((n, k) if "b" in turned else (k, n))))
        write(out, name, explicit, GluonASTSource, turned, m, n, k, warps, layouts, {})


main()
