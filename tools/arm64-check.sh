#!/usr/bin/env bash
# Vets the packages with assembly for arm64 and runs most of their tests, and some of the models', under qemu, in some
# minutes; with -short in one:
#
#   tools/arm64-check.sh [FLAG OF GO TEST ...]
#
# Where qemu-aarch64-static is missing (Debian: package qemu-user-static) a notice goes to standard error.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOOS=linux GOARCH=arm64
go vet ./kernel/...
if ! command -v qemu-aarch64-static >/dev/null; then
  echo "notice: qemu-aarch64-static is missing; nothing is run as arm64" >&2
  exit 0
fi
more=("$@")
check() { timeout 300 go test -exec qemu-aarch64-static "${more[@]}" "$@"; }
check ./kernel/internal/... ./kernel/pool ./kernel/simd
check -run '/^neon$' -skip '^TestSplit$' ./kernel/gemm
check -run '^(TestGradients|TestInPlace|TestAdamW.*)$' ./kernel
check -run '^TestFast$/^NEON$' ./kernel
check -run '^TestGradients$' ./session # beside PyTorch's, for a model of each family
