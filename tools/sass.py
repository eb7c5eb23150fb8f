#!/usr/bin/env python3
"""Compiles a CUDA kernel's unit and counts the instructions of its loops, by kind.

  export ATHANOR_CUDA_LIBS=$(tools/fetch-nvrtc.sh)
  tools/sass.py attention_mma HEAD=64 [DEFINE=VALUE ...] [--arch sm_90] [--without TEXT] [--dump FILE]

It needs NVRTC and, in the path or named by $NVDISASM, nvdisasm (PyPI:
nvidia-cuda-nvdisasm). A loop is what lies between a label and the last branch
back to it; only the innermost ones with tensor instructions are told, or, where
a kernel has none, the whole kernel. What is counted is text: both sides of a
branch, whether they run or not. --without leaves out lines of the kernel in which a
text occurs: ') hide(' tells what tiles of attention take that are not masked.
"""
import argparse, collections, ctypes, glob, os, re, subprocess, sys, tempfile

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "device", "cuda", "kernels")
kinds = [  # name, opcodes
    ("HGMMA", "HGMMA"), ("HMMA", "HMMA"), ("WARPGROUP", "WARPGROUP"), ("LDSM", "LDSM"), ("LDS", "LDS"), ("STS", "STS"), ("LDGSTS", "LDGSTS"), ("LDG", "LDG|LD"), ("STG", "STG|ST"),
    ("local", "LDL|STL"), ("FFMA", "FFMA"), ("FADD/FMUL", "FADD|FMUL"), ("FMNMX", "FMNMX|FMNMX3"), ("MUFU", "MUFU"),
    ("convert", "F2FP|F2F|I2F|I2FP|F2I"), ("SHFL", "SHFL|VOTE"), ("BAR", "BAR|DEPBAR|LDGDEPBAR|WARPSYNC|BSYNC|BSSY"),
    ("select", "FSEL|SEL|ISETP|FSETP|PLOP3|P2R|R2P"), ("branch", "BRA|EXIT|CALL|RET"), ("other", ".*"),
]


def source(unit):
    table = open(os.path.join(root, "kernels.go")).read()
    parts = re.search(r'"%s": \{(.*?)\}' % unit, table)
    names = ["prelude.cuh"] + (re.findall(r'"([^"]+)"', parts.group(1)) if parts else []) + [unit + ".cu"]
    return "".join('#line 1 "%s"\n%s' % (n, open(os.path.join(root, n)).read()) for n in names)


def compile(unit, defines, arch, without):
    libs = os.environ.get("ATHANOR_CUDA_LIBS", "")
    for path in glob.glob(os.path.join(libs, "libnvrtc-builtins.so.1*")):
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    found = glob.glob(os.path.join(libs, "libnvrtc.so.1*"))
    if not found:
        sys.exit("no libnvrtc in ATHANOR_CUDA_LIBS=%r; hint: export ATHANOR_CUDA_LIBS=$(tools/fetch-nvrtc.sh)" % libs)
    lib = ctypes.CDLL(found[0])
    options = ["--gpu-architecture=" + arch, "--std=c++17", "--fmad=true", "-default-device"] + ["-D" + d for d in defines]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = "".join(l for l in source(unit).splitlines(True) if not without or without not in l)
    lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), (unit + ".cu").encode(), 0, None, None)
    code = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*[o.encode() for o in options]))
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    if log.value:
        print(log.value.decode(), file=sys.stderr)
    if code:
        sys.exit(1)
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


def count(lines):
    out = collections.Counter()
    for op in lines:
        name = op.split(".")[0]
        if name not in ("NOP", ""):
            out[next(k for k, ops in kinds if re.fullmatch(ops, name))] += 1
    return out


def loops(code):
    """Innermost loops with tensor instructions: lists of opcodes."""
    labels, ops, back = {}, [], []
    for line in code:
        if m := re.match(r"(\.L_x_\d+):", line):
            labels[m[1]] = len(ops)
        elif m := re.search(r"\*/\s+(@!?U?P[T0-9]+ )?([A-Z][A-Z0-9_.]*)(.*)", line):
            target = re.search(r"`\((\.L_x_\d+)\)", m[3])
            if m[2].startswith("BRA") and target and target[1] in labels:
                back.append((labels[target[1]], len(ops) + 1))
            ops.append(m[2])
    ends = {}
    for a, b in back:
        ends[a] = max(b, ends.get(a, 0))
    spans = [(a, b) for a, b in ends.items() if any(o.startswith(("HMMA", "HGMMA")) for o in ops[a:b]) and "EXIT" not in ops[a:b]]
    spans = [s for s in spans if not any(t != s and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    return [ops[a:b] for a, b in spans] or [ops]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("unit"), p.add_argument("defines", nargs="*"), p.add_argument("--arch", default="sm_90"), p.add_argument("--without"), p.add_argument("--dump")
    a = p.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(compile(a.unit, a.defines, a.arch, a.without)), f.flush()
        text = subprocess.run([os.environ.get("NVDISASM", "nvdisasm"), "-c", f.name], capture_output=True, text=True, check=True).stdout
    if a.dump:
        open(a.dump, "w").write(text)
    for part in re.split(r"//-+ \.text\.", text)[1:]:
        name, lines = part.split(None, 1)[0], part.split("\n")
        registers = max([int(r) for r in re.findall(r"\bR(\d+)\b", part)] + [0]) + 1
        for loop in loops(lines):
            c = count(loop)
            print("%-10s R%-4d %5d  " % (name, registers, sum(c.values())) + "  ".join("%s %d" % (k, c[k]) for k, _ in kinds if c[k]))


main()
