#!/usr/bin/env bash
# Checks and measures the CUDA backend on a machine with a GPU.
#
#   tools/gpu-check.sh build [DIR]   where Go is: makes the binaries it needs
#   tools/gpu-check.sh [DIR]         where the GPU is: needs DIR, this
#                                    repository and NVIDIA's libraries; no Go
#
# DIR is gpu-check.bin unless given. Every part has a time limit; all of it ends
# within 8 minutes. The table comes last; full logs are in $OUT (default:
# gpu-check.out). PyTorch, where there is one, is measured beside.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD

if [ "${1:-}" = build ]; then
  set -e
  dir=${2:-gpu-check.bin}
  mkdir -p "$dir"
  export CGO_ENABLED=0
  go build -trimpath -ldflags=-s -o "$dir/athanor" ./cmd/athanor
  for p in device/cuda device/cuda/kernels device/cuda/nv; do
    go test -c -trimpath -ldflags=-s -o "$dir/$(basename "$p").test" "./$p"
  done
  ls -l "$dir"
  exit
fi

dir=$(cd "${1:-gpu-check.bin}" && pwd) || exit 2
out=${OUT:-$root/gpu-check.out}
mkdir -p "$out" && out=$(cd "$out" && pwd)
begin=$SECONDS
results=()

# Folders of NVIDIA's wheels beside PyTorch, if there are any.
wheels=$(python3 -c '
import glob, os
try:
    import nvidia
    print(":".join(d for p in nvidia.__path__ for d in glob.glob(os.path.join(p, "*", "lib"))))
except ImportError: pass' 2>/dev/null)
export ATHANOR_CUDA_LIBS=${ATHANOR_CUDA_LIBS:-$wheels}
export ATHANOR_TEST_GPU=1
# Tests have several ranks on one GPU, each with six streams, none of which may
# wait behind another's.
export CUDA_DEVICE_MAX_CONNECTIONS=32

# part NAME SECONDS FOLDER COMMAND...: runs a command in a folder, within its
# limit and within what is left of the 8 minutes.
part() {
  local name=$1 limit=$2 folder=$3 left=$((470 - SECONDS + begin)) start=$SECONDS status
  shift 3
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    results+=("$(printf '%-34s no time left' "$name")")
    return
  fi
  (cd "$root/$folder" && timeout -k 5 "$limit" "$@") >"$out/$name.log" 2>&1
  status=$?
  case $status in
    0) status=ok; grep -q -- '--- SKIP' "$out/$name.log" && status="ok, with parts skipped" ;;
    124 | 137) status="FAILED: over $limit s" ;;
    *) status="FAILED ($status): $(grep -m1 -E 'seed|panic:|Error|error|differ|FAIL' "$out/$name.log" | cut -c1-150)" ;;
  esac
  results+=("$(printf '%-34s %4d s  %s' "$name" $((SECONDS - start)) "$status")")
}

test_of() { # test_of NAME SECONDS PACKAGE PATTERN
  part "$1" "$2" "$3" "$dir/$(basename "$3").test" -test.v -test.run "$4" -test.timeout "$2s"
}

part card 20 . nvidia-smi
part doctor 40 . "$dir/athanor" doctor
test_of libraries 30 device/cuda/nv .
test_of find 30 device/cuda 'TestRealLibraries|TestCards|TestProbeChild'
test_of compile 60 device/cuda/kernels TestCompile
test_of device 60 device/cuda 'TestArgs|TestOrder|TestStrided|TestErrors|TestRefuses|TestGives|TestSteady|TestCache|TestSlices|TestDone|TestKernelFails|TestProbe$'
test_of operators 150 device/cuda TestOperators
test_of products 40 device/cuda TestLibrary
test_of cuts 60 device/cuda 'TestCuts|TestSequenceSlices'
test_of torch-fixtures 60 device/cuda TestTraining
test_of plans 60 device/cuda TestPlansChangeNothing
test_of fabric 40 device/cuda 'TestCollectives|TestLost|TestLeaving|TestDisagree'
test_of ranks 60 device/cuda 'TestRanksChangeNothing|TestRankLost'
test_of generate 40 device/cuda TestGenerate
test_of rate-links 30 device/cuda TestRateLinks
test_of rate-product 40 device/cuda TestRateProduct
test_of rate-attention 60 device/cuda TestRateAttention
test_of rate-gpt2 90 device/cuda TestRateGPT2
if python3 -c 'import torch' 2>/dev/null; then
  part pytorch 100 . python3 tools/gpu_torch.py
fi
if command -v compute-sanitizer >/dev/null; then
  part sanitizer 60 device/cuda compute-sanitizer --error-exitcode 9 "$dir/cuda.test" -test.run 'TestOperators/(attention|layernorm|embed_bwd|cross_entropy)'
fi

echo
head -c 300 "$out/find.log" | grep -o 'Name:[^ ]* [^:]*' | head -1
echo "--- rates"
cat "$out"/*.log | grep '^RATE' | cut -c6-
echo "--- checks ($((SECONDS - begin)) s in all; logs in $out)"
printf '%s\n' "${results[@]}"
printf '%s\n' "${results[@]}" | grep -q FAILED && exit 1
exit 0
