"""Matrix products of Athanor and of oneDNN, in turn, as a table of ratios.

  gemm.py ATHANOR ONEDNN [--rounds 3] [--milliseconds 300] [--cores 2]

ONEDNN is built of tools/onednn.cc. The shapes and forms are those of
`athanor bench`; of each, the median over the rounds of ours over theirs.
"""

import argparse
import json
import math
import os
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("athanor")
parser.add_argument("onednn")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--milliseconds", type=int, default=300)
parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
args = parser.parse_args()

theirs = subprocess.Popen([os.path.abspath(args.onednn)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(args.cores)))


def onednn(kind, form, m, n, k):
    print(kind, form, m, n, k, args.milliseconds, file=theirs.stdin, flush=True)
    return float(theirs.stdout.readline())


def ours(shape, op, kind):
    out = subprocess.run([args.athanor, "bench", "--json", "--cores", str(args.cores), "--match", f"{op} {shape} {kind}",
                          "--time", f"{args.milliseconds}ms"], check=True, capture_output=True, text=True).stdout
    k = json.loads(out)["kernels"][0]
    return k["seconds"], k["fraction"]


print(f"{'product':22} {'type':5} {'ours GFLOP/s':>12} {'of peak':>8} {'oneDNN':>8} {'ratio':>6}")
ratios = {"f32": [], "bf16": []}
for kind in ratios:
    for m, n, k in [(1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (1024, 50304, 768), (64, 50304, 768)]:
        for form, op in [("NT", "linear"), ("NN", "linear"), ("TN", "linear_dw")]:
            shape = f"{m},{n},{k} {form}"
            mine, other, share = [], [], []
            for _ in range(args.rounds):
                seconds, fraction = ours(shape, op, kind)
                mine.append(seconds), share.append(fraction)
                other.append(onednn(kind, form, m, n, k))
            ratio = statistics.median(b / a for a, b in zip(mine, other))
            ratios[kind].append(ratio)
            rate = 2 * m * n * k / 1e9
            print(f"{shape:22} {kind:5} {rate / statistics.median(mine):12.1f} {100 * statistics.median(share):6.1f} % "
                  f"{rate / statistics.median(other):8.1f} {ratio:6.2f}", flush=True)
    mean = math.exp(statistics.fmean(math.log(r) for r in ratios[kind]))
    print(f"{kind}: geometric mean {mean:.3f}, least {min(ratios[kind]):.2f}", flush=True)
