#!/usr/bin/env bash
# Fetches NVIDIA's kernel compiler from PyPI, so that the CUDA kernels can be
# compiled where there is no GPU:
#
#   export ATHANOR_CUDA_LIBS=$(tools/fetch-nvrtc.sh [DIR])
#   go test ./device/cuda/kernels
#
# DIR (default: ~/.cache/athanor/nvrtc) keeps it. Where it cannot be had a
# notice goes to standard error and nothing to standard output; the test then
# skips itself.
set -uo pipefail
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/athanor/nvrtc}
version=13.0.88
libs=$dir/$version/nvidia/cu13/lib
if [ ! -e "$libs/libnvrtc.so.13" ]; then
  temporary=$(mktemp -d) && trap 'rm -rf "$temporary"' EXIT
  mkdir -p "$dir/$version"
  if ! { timeout 300 python3 -m pip download -q --no-deps -d "$temporary" "nvidia-cuda-nvrtc==$version" &&
    python3 -m zipfile -e "$temporary"/nvidia_cuda_nvrtc-*.whl "$dir/$version"; } >&2; then
    echo "notice: nvidia-cuda-nvrtc $version could not be fetched; kernels are not compiled" >&2
    exit 0
  fi
fi
echo "$libs"
