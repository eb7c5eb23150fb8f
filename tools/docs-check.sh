#!/usr/bin/env bash
# Runs every command of athanor and athanor-lab that the documents show, so that none names a verb, a flag or a key that is
# not there. What takes seconds runs, with little work where its work can be chosen; of the rest (GPUs, other hosts, a hub's
# files, hours) verb, flags and keys are parsed. A line per command says which, and why.
#
#   tools/docs-check.sh          needs Go only; some five minutes on two cores
#   ONLY=REGEXP tools/docs-check.sh   only the commands that match
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/" ./cmd/athanor ./cmd/athanor-lab || exit 2
failed=0

# shown prints each command that a document shows, as FILE:LINE:COMMAND: from code blocks, comments of examples and
# text in backquotes.
shown() {
  # shellcheck disable=SC2046
  awk '
    FNR == 1 { fenced = 0; held = "" }
    /^ *```/ { fenced = !fenced; next }
    {
      line = $0
      sub(/^# ? ? ?/, "", line)
      whole = fenced || $0 ~ /^(    |#)/ || held != ""
      if (held != "") { sub(/^ +/, " ", line); line = held line; held = "" }
      if (whole) {
        text = line; sub(/^ *(\$ )?/, "", text); sub(/^go run \.\/cmd\//, "", text); sub(/^\.\//, "", text)
        if (text ~ /^athanor(-lab)? +[a-z-]/) {
          if (text ~ /\\$/) { held = substr(line, 1, length(line) - 1); next }
          print FILENAME ":" FNR ":" text
          next
        }
      }
      while (match(line, /`athanor(-lab)? [^`]+`/)) {
        print FILENAME ":" FNR ":" substr(line, RSTART + 1, RLENGTH - 2)
        line = substr(line, RSTART + RLENGTH)
      }
    }' $(git ls-files '*.md' 'examples/*.yaml')
}

# filled replaces what stands for a user's files, and drops comments, pipes and what is optional.
filled() {
  sed -E "s# +\#.*##; s# [|>].*##; s#\[[^]]*\]##g; s#\.\.\. --calls#gpt2 --calls#
    s# (CONFIG(\.yaml)?|base\.yaml|prefer\.yaml)( |\$)# $dir/tiny.yaml\3#; s#\bADAPTER FOLDER\b#$dir/adapter $dir/merged#; s#\bFOLDER NEW\b#$dir/run/checkpoint-2 $dir/new-$RANDOM#
    s#runs/[a-z0-9-]*/checkpoint-\.\.\.#$dir/run/checkpoint-2#; s#(eval|generate|chat|--tokenizer) FOLDER\b#\1 $dir/run/checkpoint-2#
    s#\bFILE\.csv\b#lab/pack/testdata/example.12.csv#; s#schedule NAME\b#schedule 1f1b#; s#--out plan\.json#--out $dir/plan.json#; s#\b(prompts|texts)\.jsonl#$dir/\1.jsonl#g" <<<"$1"
}

# more prints the arguments that make a command's work small, or fails if the command is only parsed.
more() {
  case "$*" in
  *" -"*hosts* | *checkpoint* | *" data"*jsonl*) [[ $* == *"$dir/run"* ]] || return 1 ;;
  esac
  case "$*" in
  "athanor keys"* | "athanor doctor"* | "athanor --version" | "athanor probe") ;;
  "athanor train $dir"* | "athanor train examples/quickstart.yaml"*) echo "max_steps=2 eval_batches=1 out=$dir/out-$RANDOM" ;;
  "athanor plan "*--max-sequence*) [[ $* == *"$dir"* ]] && echo "hardware.name=l4 limits.device=12MiB" ;;
  "athanor plan $dir"* | "athanor plan "*hardware.name=* | "athanor data $dir"*) ;;
  "athanor generate $dir"*) echo "--max-tokens 4" ;;
  "athanor chat $dir"* | "athanor merge $dir"* | "athanor export $dir"*) ;;
  "athanor eval $dir"*) echo "README.md --batches 1 --sequence 32" ;;
  "athanor bench step $dir"*) echo "--steps 1 --warmup 0" ;;
  "athanor bench step "[a-z]*) [[ $4 != examples/* ]] && echo "--layers 1 --width 64 --heads 4 --kv-heads 4 --feed-forward 64 --vocabulary 256 -b 1 -t 16 --steps 1 --warmup 0" ;;
  "athanor bench budgets $dir"* | "athanor-lab bench swap $dir"*) echo "--count 2 --steps 1" ;;
  "athanor-lab bench sweep $dir"*) echo "--count 2 --steps 1 --plans 2 $([[ $* == *--links* ]] || echo --links 0 --rank-counts 1)" ;;
  "athanor-lab bench policies") echo "--models gpt2 --hardware elixir-paper-40 --gpus 1 --batch 1 --sequence 64" ;;
  "athanor bench" | "athanor bench -"*) echo "--match embed --cores 1 --time 1ms" ;;
  "athanor-lab pack "*csv*) echo "--timeout 20s" ;;
  "athanor-lab schedule "* | "athanor-lab scale"*) ;;
  *) return 1 ;;
  esac
}

# parsed checks verb, flags and keys of a command without running it.
parsed() {
  "$dir/$1" "${@:2}" --help || return
  local arg
  for arg in "${@:3}"; do
    if [[ $arg =~ ^([a-z][a-z_0-9.]*)= ]]; then "$dir/athanor" keys "${BASH_REMATCH[1]}" || return; fi
  done
}

# expected prints the exit code that a document shows: 3 where the lines after the command, up to the end of their block, say
# that the model does not fit.
expected() { # FILE:LINE
  awk -v first="${1##*:}" 'FNR > first && /^ *```/ { exit } FNR > first && /^athanor: .*does not fit/ { code = 3; exit } END { print code + 0 }' "${1%:*}"
}

check() { # FILE:LINE COMMAND
  local -a words=()
  eval "words=($(filled "$2"))" || words=()
  local what=parsed extra code want=0
  parsed "${words[@]}" >"$dir/log" 2>&1 </dev/null
  code=$?
  if ((code == 0)) && extra=$(more "${words[@]}"); then
    # shellcheck disable=SC2086
    timeout 60 "$dir/${words[0]}" "${words[@]:1}" $extra >"$dir/log" 2>&1 <<<"What is a program?"
    code=$? what=ran
    ((code == 124)) && code=$(expected "$1") what="ran (ended after a minute)"
    want=$(expected "$1")
  fi
  if ((code != want)); then
    printf 'FAILED  %s: %s\n' "$1" "$2" && sed 's/^/        /' "$dir/log" | tail -20
    failed=1
  else
    printf '%-7s %s: %s\n' "$what" "$1" "$2"
  fi
}

cat >"$dir/tiny.yaml" <<END
model: {type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2}
data: $PWD/docs/guide.md
tokenizer: bpe-300
sequence_length: 32
global_batch: 4
max_steps: 2
eval_batches: 1
learning_rate: 1.0e-3
out: $dir/run
END
"$dir/athanor" train "$dir/tiny.yaml" >"$dir/log" 2>&1 &&
  "$dir/athanor" train "$dir/tiny.yaml" model="$dir/run/checkpoint-2" lora.rank=2 out="$dir/lora" >>"$dir/log" 2>&1 || { cat "$dir/log"; exit 2; }
ln -s "$dir/lora/checkpoint-2" "$dir/adapter"
echo '{"prompt": "Once"}' >"$dir/prompts.jsonl"
echo '{% for m in messages %}{{ m.content }}{% endfor %}' >"$dir/run/checkpoint-2/chat_template.jinja"

while IFS=: read -r file line command; do
  [[ $command =~ ${ONLY:-} ]] && check "$file:$line" "$command"
done < <(shown | sort -t: -k3 -u)

# A verb of the laboratory is nowhere named as one of athanor.
for verb in pack schedule scale 'bench sweep' 'bench swap' 'bench policies'; do
  if git grep -nE "\bathanor $verb\b" -- ':!tools/docs-check.sh' ':!*_test.go'; then
    echo "FAILED  $verb is a verb of athanor-lab" && failed=1
  fi
done
exit $failed
