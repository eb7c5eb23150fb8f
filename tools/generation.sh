#!/usr/bin/env bash
# Measures every speed of generation on a CPU for which something is asked, beside what is asked, in about ten minutes. On a quiet machine:
#
#   PYTHON=python3 tools/generation.sh [PART...]   with torch, transformers and, for llama.cpp, llama-cpp-python; PARTs are
#
#   slots   32 sequences at once: at least 10 times the tokens/s of one, and products alone at least 0.7 of the step
#   block   weights of four times the device's memory, a link as slow as a T4's: at least 10 times as fast as one by one,
#           predicted within a tenth
#   beside  one sequence beside transformers and llama.cpp: tools/generation.py says what is asked
#
# All of it unless told. COUNT=1 shows that the script works.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/athanor" ./cmd/athanor
go test -c -o "$work/folder.test" ./folder
cd folder
for part in "${@:-slots block beside}"; do for each in $part; do
    began=$SECONDS
    case $each in
    slots)
        "$work/folder.test" -test.run '^$' -test.bench BenchmarkSlots -test.benchtime "$((40 * ${COUNT:-3} / 3))x" |
            awk '/^Benchmark/ { for (i = 3; i < NF; i += 2) is[$(i + 1)] = $i
                printf "%s: %.1f times (10 asked), products %.2f (0.7 asked), %.1f tokens/s alone\n", $1, is["times"], is["products"], is["tokens/s"] }' ;;
    block)
        "$work/folder.test" -test.run '^$' -test.bench BenchmarkBlock -test.benchtime "${COUNT:-4}x" |
            awk '/^Benchmark/ { for (i = 3; i < NF; i += 2) is[$(i + 1)] = $i
                printf "%s: %.1f times (10 asked), predicted / measured %.3f (0.9 to 1.1 asked)\n", $1, is["times"], is["predicted"] }' ;;
    beside)
        "${PYTHON:-python3}" ../tools/generation.py "$work/athanor" --precisions fp32,bf16,nf4 --prompts 16,172,512,3273 --tokens 32 --rounds "${COUNT:-3}" ;;
    *)
        echo "$each is none of slots, block and beside" >&2
        exit 2 ;;
    esac
    echo "$each took $((SECONDS - began)) s"
done; done
