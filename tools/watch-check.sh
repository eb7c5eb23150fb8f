#!/usr/bin/env bash
# Drives the page of `athanor watch` in a real browser while a run goes on: half a minute. Where there is no Chromium, or
# Playwright cannot be had, it says so and ends with code 0.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
  echo "skipped: there is no Chromium"; exit 0
fi
python=${XDG_CACHE_HOME:-$HOME/.cache}/athanor-tools/playwright/bin/python
if ! "$python" -c 'import playwright' 2>/dev/null; then
  folder=$(dirname "$(dirname "$python")")
  if ! { python3 -m venv "$folder" && timeout 120 "$folder/bin/pip" install -q playwright; } >/dev/null 2>&1; then
    echo "skipped: Playwright cannot be installed"; exit 0
  fi
fi
work=$(mktemp -d)
trap 'kill "$run" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
go build -o "$work/athanor" ./cmd/athanor
cat > "$work/live.yaml" <<CONFIG
model: {type: llama, layers: 2, width: 64, heads: 2}
data: [$(go env GOROOT)/src/net/http/*.go]
tokenizer: bpe-512
sequence_length: 64
global_batch: 4
learning_rate: 0.003
max_steps: 1000000
max_time: 10m
sample: {prompt: "func ", tokens: 20}
out: $work/live
CONFIG
"$work/athanor" train "$work/live.yaml" >"$work/log" 2>&1 &
run=$!
for _ in $(seq 300); do
  if [ "$(cat "$work/live/metrics.jsonl" 2>/dev/null | wc -l)" -gt 5 ]; then break; fi
  kill -0 "$run" || { cat "$work/log"; exit 1; }
  sleep 0.2
done
"$python" tools/watch_browser.py "$work/athanor" "$work/live" --live live "$@"
