#!/usr/bin/env bash
# Proves that a refactoring changes nothing: replays some fifty configurations with the binary of another commit and with
# that of the working tree, and compares the programs' text, the plans, and the losses and gradient norms of first steps,
# to the last bit.
#
#   tools/replay.sh [BASE]      BASE is a commit, HEAD by default; its recording is kept in runs/replay/
#   ONLY=REGEXP tools/replay.sh replays only the configurations whose names match
#
# A plan depends on the machine that is described, never on this one; losses depend on this processor's kernels, so both
# sides are recorded here. Exits with 1 and names the configurations that differ; their outputs are then in runs/replay/.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
root=$PWD
here=$root/runs/replay
base=$(git rev-parse --verify "${1:-HEAD}^{commit}") || exit 2
mkdir -p "$here"

# One line per configuration: its name, |, what to do, | and the arguments. `plan` records the report, the plan and each
# rank's program; `train` the metrics of each step, without times; `text` what is printed.
configurations() {
  local f l='layers: 4, width: 128, heads: 4, vocabulary: 2048' seq='sequence_length=256 global_batch=8'
  for f in gpt2 gpt_neox opt phi phi3 llama mistral mixtral qwen2 qwen3 qwen3_moe gemma3_text olmo2 olmo3 olmoe smollm3 stablelm starcoder2 granite gpt_oss; do
    local more=
    case $f in mixtral | qwen3_moe | olmoe | gpt_oss) more=', experts: 4, active_experts: 2' ;; esac
    echo "family-$f|plan|{type: $f, $l$more} $seq hardware.name=l4 limits.device=16MiB"
  done
  local m="{type: llama, $l, kv_heads: 2}"
  echo "fp32|plan|$m $seq hardware.name=l4 precision=fp32 limits.device=24MiB"
  echo "memory-ample|plan|$m $seq hardware.name=h100"
  echo "memory-least|plan|$m $seq hardware.name=l4 limits.device=5MiB"
  echo "disk|plan|$m $seq hardware.name=l4/pcie3 limits.device=6MiB limits.host=16MiB plan.state=disk"
  echo "moments-bf16|plan|$m $seq hardware.name=h100 precision=bf16 optimizer_state=bf16_moments limits.device=16MiB"
  echo "state-bf16|plan|$m $seq hardware.name=h100 precision=bf16 optimizer_state=bf16"
  echo "clip-none|plan|$m $seq hardware.name=l4 gradient_clipping=0 limits.device=12MiB"
  echo "ranks-2|plan|$m $seq hardware.name=a100-80 ranks=2"
  echo "ranks-4-little|plan|$m $seq hardware.name=l4 ranks=4 limits.device=24MiB"
  echo "pipeline|plan|$m $seq hardware.name=l4 ranks=2 plan.pipeline=2 limits.device=40MiB"
  echo "pipeline-zb|plan|${m/layers: 4/layers: 8} $seq hardware.name=l4 ranks=4 plan.pipeline=4 plan.schedule=zb-v"
  echo "slices|plan|$m sequence_length=1024 global_batch=4 hardware.name=l4 ranks=2 precision=fp32 plan.pipeline=2 plan.slices=4"
  echo "recompute|plan|$m $seq hardware.name=l4 plan.recompute=full limits.device=16MiB"
  echo "swap|plan|$m sequence_length=2048 global_batch=4 hardware.name=l4 plan.swap=0.5 plan.swap_tier=host"
  echo "group|plan|$m $seq hardware.name=l4 plan.micro_batch=2 plan.group=4 plan.weights=host plan.state=host"
  echo "policy-zero3|plan|$m $seq hardware.name=elixir-paper-40 ranks=2 --policy zero-3"
  echo "policy-elixir|plan|$m $seq hardware.name=elixir-paper-40 ranks=2 --policy elixir-paper"
  echo "policy-memo|plan|$m $seq hardware.name=a100-80 --policy memo-paper"
  echo "window|plan|{type: mistral, $l, window: 64} $seq hardware.name=l4 limits.device=16MiB"
  echo "documents|plan|$m $seq documents=separate hardware.name=l4 limits.device=16MiB"
  echo "preference|plan|$m $seq preference.beta=0.1 hardware.name=l4 limits.device=16MiB"
  echo "lora-qlora|plan|llama-3.2-1b sequence_length=512 global_batch=4 lora.rank=8 quantize=nf4 hardware.name=rtx4060ti limits.device=2GiB"
  echo "gpt2-124m|plan|gpt2 sequence_length=1024 global_batch=8 hardware.name=l4 limits.device=2GiB"
  echo "longest|text|plan --json --max-sequence $m sequence_length=256 global_batch=2 hardware.name=l4 limits.device=12MiB"
  echo "explain|text|plan --json --explain $m $seq hardware.name=l4 limits.device=8MiB"
  echo "misfit|text|plan --json $m $seq hardware.name=l4 limits.device=100KiB"
  echo "timeline|text|simulate --json $m $seq hardware.name=l4 limits.device=16MiB"
  for f in gpt2 llama gemma3_text qwen3_moe gpt_oss; do
    local more=
    case $f in qwen3_moe | gpt_oss) more=', experts: 4, active_experts: 2' ;; esac
    echo "train-$f|train|model={type: $f, layers: 2, width: 32, heads: 4$more} limits.device=900KiB"
  done
  m='model={type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2}'
  echo "train-bf16|train|$m precision=bf16 optimizer_state=bf16"
  echo "train-host|train|$m plan.weights=host plan.state=host plan.micro_batch=2"
  echo "train-disk|train|$m plan.state=disk optimizer_state=bf16_moments"
  echo "train-ranks|train|$m device=cpu ranks=2"
  echo "train-pipeline|train|$m device=cpu ranks=2 plan.pipeline=2"
  echo "train-documents|train|$m documents=separate"
  echo "train-pairs|pairs|$m preference.beta=0.3"
  echo "train-lora|lora|$m lora.rank=4"
  echo "train-qlora|lora|$m lora.rank=4 quantize=nf4 precision=bf16"
  echo "generate|generate|$m"
}

texts() { # what runs read: the same on both sides
  mkdir -p "$1"
  local i
  for i in $(seq 1 400); do echo "The quick brown fox number $i jumps over $((i * 7 % 31)) lazy dogs and the $((i % 5)) cats say nothing."; done >"$1/corpus.txt"
  for i in $(seq 1 60); do echo "{\"prompt\": \"number $i?\", \"chosen\": \"it is $((i * 7 % 31))\", \"rejected\": \"it is $((i * 5 % 17)), or not\"}"; done >"$1/pairs.jsonl"
}

# Removes what is measured (seconds, rates, memory that is free now) from a run's metrics, and alerts, which tell of it.
steps() { sed 's/"alerts":\[{.*}\]//' "$1/metrics.jsonl" | grep -o '"step":[0-9]*\|"loss":[^,}]*\|"grad_norm":[^,}]*\|"val_loss":[^,}]*\|"reward[a-z_]*":[^,}]*'; }

# Runs one configuration with BINARY; its outputs are files in OUT/NAME.
replay() { # BINARY OUT NAME VERB ARGS
  local bin=$1 out=$2/$3 verb=$4 list
  mkdir "$out" "$2/work/$3"
  cd "$2/work/$3" || return
  mapfile -t list < <(grep -oE '([^ {]|\{[^}]*\})+' <<<"$5") # braces keep their spaces
  local run=(train run.yaml "${list[@]}" "out=run")
  printf '%s\n' "data: ../../text/corpus.txt" "tokenizer: bpe-300" "sequence_length: 64" "global_batch: 4" "learning_rate: 1.0e-2" \
    "schedule: cosine" "warmup_steps: 1" "max_steps: 4" "eval_batches: 2" "eval_every: 2" "validation_fraction: 0.1" >run.yaml
  case $verb in
  plan) "$bin" plan --json "${list[@]}" --out "$out/plan.json" --dump "$out/program" >"$out/report" 2>log
    local code=$?
    sed -i '/^  "disk_wear": {$/,/^  },$/d' "$out/report" # reports of older commits have none
    (exit $code) ;;
  text) "$bin" "${list[@]}" >"$out/report" 2>log ;;
  train) "$bin" "${run[@]}" >log 2>&1 ;;
  pairs) "$bin" "${run[@]}" data=../../text/pairs.jsonl >log 2>&1 ;;
  lora) "$bin" train run.yaml "${list[0]}" out=base >log 2>&1 && "$bin" "${run[@]}" model=base/checkpoint-4 tokenizer=base/checkpoint-4 >>log 2>&1 ;;
  generate)
    "$bin" train run.yaml "${list[0]}" out=base >log 2>&1
    for precision in fp32 bf16; do "$bin" generate base/checkpoint-4 --prompt "The quick" --max-tokens 40 --precision $precision 2>>log; done >"$out/text" ;;
  esac
  echo "exit $?" >"$out/exit"
  if [ -f run/metrics.jsonl ]; then steps run >"$out/steps"; fi
  rm -rf run base
}

record() { # BINARY OUT
  rm -rf "$2"
  mkdir -p "$2/work"
  texts "$2/text"
  export -f replay steps
  configurations | grep -E "^[^|]*(${ONLY:-.})[^|]*\|" | tr '|\n' '\0\0' | xargs -0 -n 3 -P "$(nproc)" bash -c 'replay "$@"' - "$1" "$2"
  (cd "$2" && find . -type f ! -path './text/*' ! -path './work/*' ! -name sums | LC_ALL=C sort | xargs sha256sum >sums)
}

if [ ! -f "$here/$base/sums" ]; then
  tree=$(mktemp -d)
  trap 'git worktree remove --force "$tree" 2>/dev/null' EXIT
  git worktree add -q --detach "$tree" "$base" && (cd "$tree" && go build -o "$here/athanor-base" ./cmd/athanor) || exit 2
  ONLY='' record "$here/athanor-base" "$here/$base"
fi
go build -o "$here/athanor-now" ./cmd/athanor || exit 2
record "$here/athanor-now" "$here/now"
n=$(wc -l <"$here/now/sums")
names=$(cut -d/ -f2 "$here/now/sums" | sort -u | sed 's,.*,/&/,')
different=$(diff <(grep -F "$names" "$here/$base/sums") <(grep -F "$names" "$here/now/sums") | sed -n 's/^[<>] [0-9a-f]*  //p' | sort -u)
failed=$(grep -L 'exit [03]' "$here"/now/*/exit) # 3 is the answer where nothing fits
if [ -z "$different$failed" ] && [ "$n" -gt 0 ]; then
  echo "replay: $n outputs are those of $base"
else
  printf '%s\n' "replay: differ from $base in $here, or failed:" "$different" "$failed"
  exit 1
fi
