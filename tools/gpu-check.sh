#!/usr/bin/env bash
# Checks and measures the CUDA backend on a machine with a GPU.
#
#   tools/gpu-check.sh build [DIR]   where Go is: makes the binaries it needs
#   tools/gpu-check.sh [DIR [PART]]  where the GPU is: needs DIR, this repository
#                                    and NVIDIA's libraries; no Go
#
# PARTs, each of which ends within 8 minutes and prints a table last:
#
#   checks   all of the next five (the default)
#   agree    kernels, products, models, plans, ranks against their oracles
#   resume   a training run that is killed again and again, beside one that is not
#   hosts    a run with a rank in another process, over TCP, beside one with one rank
#   cluster  NCCL: its symbols, a communicator of one GPU, wires on the fake; a run over TCP, and over NCCL where there are two GPUs
#   sanitize some of them under compute-sanitizer
#   rates    what links, products and attention reach
#   share    ranks that share sequences or matrices on one card beside one rank, fp32 and bf16 (also in agree)
#   speed    training steps of GPT-2 124M and Llama-3.2-1B, 1024 and 4096 tokens
#   fp8      products in FP8 against their oracles; steps of Llama-3.2-1B and Llama-3-8B in FP8 beside bf16
#   large    those of GPT-2 1.5B and Llama-3-8B
#   text     text from GPT-2 124M and Llama-3.2-1B, the latter also in 2 GB of memory
#   offload  Llama-3-8B within 24 GB of the GPU's memory and 128 GB of the host's,
#            all in fp32 or, if that fails, moments in bf16; LAYERS=N: so many of its layers
#
# PyTorch, where there is one, is measured beside. DIR is gpu-check.bin unless
# given; full logs are in $OUT (default: gpu-check.out). A part gives up what it has
# no time for after $LIMIT seconds (default: 470). With ONLY=REGEX only what has such a
# name in the table runs: ONLY='gpt2-xl-4096' large. With DRY=1 checks run on a fake GPU
# and steps are toys on the CPU, which shows that the script works.
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
chmod +x "$dir"/* 2>/dev/null # which a copy may have lost
what=${2:-checks}
dry=${DRY:-}
limit_all=${LIMIT:-470}
out=${OUT:-$root/gpu-check.out}
mkdir -p "$out" && out=$(cd "$out" && pwd)
begin=$SECONDS
: >"$out/results.txt"

# Folders of NVIDIA's wheels beside PyTorch, if there are any.
wheels=$(python3 -c '
import glob, os
try:
    import nvidia
    print(":".join(d for p in nvidia.__path__ for d in glob.glob(os.path.join(p, "*", "lib"))))
except ImportError: pass' 2>/dev/null)
export ATHANOR_CUDA_LIBS=${ATHANOR_CUDA_LIBS:-$wheels}
[ -n "$dry" ] || export ATHANOR_TEST_GPU=1 ATHANOR_TESTS=all
has_torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch") and "yes" or "")' 2>/dev/null)
# Tests have several ranks on one GPU, each with six streams, none of which may
# wait behind another's.
export CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_DEVICE_MAX_COPY_CONNECTIONS=32
# While somebody has it open, the driver does not let go of the GPU, whose start
# every command would wait for anew.
[ -r /dev/nvidia0 ] && exec 9</dev/nvidia0

# reason LOG: the line that tells best why a command failed.
reason() {
  { grep -E 'panic:|[Ee]rror|differ|hint:|_test.go:[0-9]+:|FAIL' "$1" | grep -vE ': seeds? (from )?[0-9]+$'; tail -1 "$1"; } | head -1 | sed 's/^ *//' | cut -c1-150
}

# result LINE: said now, if this should not come to its end, and once more there.
result() {
  echo "$1" >>"$out/results.txt"
  echo "$1" >&2
}

# asked NAME: reports whether a part is to run.
asked() { [[ $1 =~ ${ONLY:-} ]]; }

# part NAME SECONDS FOLDER COMMAND...: runs a command in a folder, within its
# limit and within what is left of the script's.
part() {
  local name=$1 limit=$2 folder=$3 left=$((limit_all - SECONDS + begin)) start=$SECONDS status
  shift 3
  asked "$name" || return 0
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    result "$(printf '%-34s no time left' "$name")"
    return
  fi
  (cd "$root/$folder" && timeout -k 5 "$limit" "$@") >"$out/$name.log" 2>&1
  status=$?
  case $status in
    0) status=ok; grep -q -- '--- SKIP' "$out/$name.log" && status="ok, with parts skipped" ;;
    137) [ $((SECONDS - start)) -lt "$limit" ] && status="FAILED: killed, as the system does where memory is short" || status="FAILED: over $limit s" ;;
    124) status="FAILED: over $limit s" ;;
    *) status="FAILED ($status): $(reason "$out/$name.log")" ;;
  esac
  result "$(printf '%-34s %4d s  %s' "$name" $((SECONDS - start)) "$status")"
}

test_of() { # test_of NAME SECONDS PACKAGE PATTERN [FLAG...]
  part "$1" "$2" "$3" "$dir/$(basename "$3").test" -test.v -test.run "$4" -test.timeout "$(($2 - 3))s" "${@:5}"
}

checks() {
  part machine 20 . bash -c 'nproc; free -g; df -h . /tmp; ulimit -a; grep -E "^Node|present|managed" /proc/zoneinfo'
  [ -n "$dry" ] || part card 20 . nvidia-smi
  part doctor 40 . "$dir/athanor" doctor
  test_of libraries 30 device/cuda/nv .
  agree
  [ -n "$dry" ] || sanitize
  wait
  resume
  hosts
  rates
}

# aside runs a part beside others: most of their time is the oracles', on the CPU. Where some twenty
# open the GPU at the same moment, the driver takes half a minute and refuses some.
aside() {
  while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
  "$@" &
}

# agree compares with oracles. The longest come first.
agree() {
  aside test_of products 120 device/cuda 'TestLibrary|TestDerives|TestTiles|TestRelay$|TestRelayLarge|TestOwnSums|TestTunedBits|TestWholePacks|TestSumRows'
  aside test_of shapes 150 device/cuda 'TestModelShapes'
  aside test_of cuts 120 device/cuda 'TestCuts|TestSequenceSlices|TestDocumentsAreSkipped'
  aside test_of torch-fixtures 120 device/cuda 'TestTraining|TestPreference|TestQuantizedMixture|TestGPTOSS|TestSinks'
  aside test_of plans 120 device/cuda TestPlansChangeNothing
  aside test_of heads 150 device/cuda TestEveryHead
  aside test_of attention 150 device/cuda 'TestOperators/attention(_at|,_other_cards)?$|TestHugeScores|TestAttentionWaits|TestAttentionFits'
  aside test_of attention-bwd 150 device/cuda 'TestOperators/attention_bwd'
  aside test_of experts 150 device/cuda 'TestOperators/(expert|route)|TestExpertTiles|TestManyTiles|TestPackedExperts|TestRouteSpecial'
  aside test_of delta 150 device/cuda 'TestOperators/(delta|short_conv|decay|gate)|TestCuts/(short_conv|decay|gate)|TestDeltaLaunches'
  aside test_of operators 150 device/cuda 'TestOperators|TestUpdatesAlike|TestEmbedded|TestLossOfOddSequences' -test.skip 'TestOperators/(attention|linear|expert|route|delta|short_conv|decay|gate)'
  aside test_of linear 150 device/cuda 'TestOperators/linear|TestNF4'
  aside test_of compile 120 device/cuda/kernels 'TestCompile|TestTarget' -test.short
  aside test_of device 90 device/cuda 'TestArgs|TestOrder|TestTimes|TestStarts|TestClock|TestAhead|TestStrided|TestErrors|TestRefuses|TestGives|TestSteady|TestCache|TestSlices|TestDone|TestKernelFails|TestIssued|TestProbe$|TestSkippedStep|TestPinned|TestTransfer'
  aside test_of generate 60 device/cuda TestGenerate
  aside test_of find 60 device/cuda 'TestRealLibraries|TestCards|TestProbeChild|TestPlaces|TestNothing|TestWrongLibrary'
  # Ranks of one context must not wait for it when a kernel is loaded. Nor are there others beside them: a GPU gives
  # each process its turn, and ranks that wait for each other hundreds of times would lose one each time.
  wait
  local -x CUDA_MODULE_LOADING=EAGER CUDA_MODULE_DATA_LOADING=EAGER
  test_of collectives 60 device/cuda 'TestCollectives'
  test_of lost 60 device/cuda 'TestLost|TestHostLost|TestLeaving|TestDisagree'
  test_of ranks 60 device/cuda 'TestRanksChangeNothing|TestRanksAhead|TestRankLost'
  share
}

share() {
  local -x CUDA_MODULE_LOADING=EAGER CUDA_MODULE_DATA_LOADING=EAGER # see agree
  test_of share 90 device/cuda "TestSharedSequences|TestSharedMatrices"
}

sanitize() {
  command -v compute-sanitizer >/dev/null || return
  local ops
  for ops in attention linear expert 'delta|short_conv' 'layernorm|embed|cross_entropy|route|adamw'; do
    aside part "memcheck-${ops%%|*}" 120 device/cuda compute-sanitizer --error-exitcode 9 "$dir/cuda.test" -test.run "TestOperators/($ops)"
  done
  # It saves and restores registers that products in flight write: only what it says of hazards counts, not the results.
  aside part racecheck 150 device/cuda bash -c 'compute-sanitizer --tool racecheck "$0" -test.run TestOperators/attention | tee /dev/stderr | grep -q "SUMMARY: 0 hazards"' "$dir/cuda.test"
}

# resume trains a small GPT on this repository's Go files: to the end, and killed until it is there, each time within
# another limit of memory. Both must leave the same weights.
resume() {
  local device=cuda config=$out/resume.yaml
  [ -n "$dry" ] && device=cpu
  printf '%s\n' 'model: {type: gpt2, layers: 4, width: 256, heads: 4}' 'data: "**/*.go"' 'tokenizer: bpe-300' 'sequence_length: 256' 'global_batch: 8' \
    'learning_rate: 1.0e-3' 'max_steps: 120' 'save_every: 5' 'precision: bf16' "device: $device" "out: $out/whole" >"$config"
  part resume 150 . python3 -c '
import glob, random, subprocess, sys, time

athanor, config, out = sys.argv[1:]
seed = time.time_ns()
draw = random.Random(seed)
print("seed", seed, flush=True)

def train(folder, limit, kill=False):
    """One process, killed some time after it has saved something new. Returns its status."""
    saved = lambda: max(glob.glob(folder + "/checkpoint-*"), key=lambda p: int(p.rpartition("-")[2]), default="")
    had = saved()
    run = subprocess.Popen([athanor, "train", config, "out=" + folder, "limits.device=" + limit])
    while kill and run.poll() is None and saved() == had:
        time.sleep(0.01)
    if kill:
        time.sleep(draw.uniform(0, 0.3))
        run.kill()
    return run.wait()

if train(out + "/whole", "4GiB"):
    sys.exit("the run that nobody kills failed")
kills = 0
while (status := train(out + "/killed", draw.choice(["60MiB", "100MiB", "4GiB"]), kills < 4)) != 0:
    if status != -9:
        sys.exit(f"status {status} after {kills} kills")
    kills += 1
weights = [open(f"{out}/{run}/checkpoint-120/model.safetensors", "rb").read() for run in ("whole", "killed")]
if weights[0] != weights[1]:
    sys.exit(f"the weights differ after {kills} kills")
print(f"RATE killed {kills} times: the same {len(weights[0])} bytes of weights")' "$dir/athanor" "$config" "$out"
}

# hosts trains a small GPT on one rank, and in a pipeline with a second one in another process, which is the same
# to the bit where no parameter is at both ends. Both have the same GPU here.
hosts() {
  local device=cuda config=$out/hosts.yaml
  [ -n "$dry" ] && device=cpu
  printf '%s\n' 'model: {type: llama, layers: 4, width: 256, heads: 4, feed_forward: 768, tied: false}' 'data: "**/*.go"' 'tokenizer: bpe-300' 'sequence_length: 256' 'global_batch: 8' \
    'learning_rate: 1.0e-3' 'max_steps: 30' 'precision: bf16' "device: $device" 'limits: {device: 2GiB, host: 8GiB}' "out: $out/one" >"$config"
  part hosts 120 . python3 -c '
import os, secrets, socket, subprocess, sys

athanor, config, out = sys.argv[1:]
os.environ["ATHANOR_KEY"] = secrets.token_hex(16)
with socket.socket() as s: # a free port
    s.bind(("127.0.0.1", 0))
    at = "127.0.0.1:%d" % s.getsockname()[1]
host = subprocess.Popen([athanor, "serve", "--listen", at, "--disk", out], stderr=subprocess.PIPE, text=True)
print(host.stderr.readline(), flush=True) # it listens
runs = {"one": [], "stages": ["hosts=" + at, "plan.pipeline=2"], "replicas": ["hosts=" + at, "plan.pipeline=1"]}
for name, own in runs.items():
    if status := subprocess.call([athanor, "train", config, "out=" + out + "/" + name, *own]):
        host.kill()
        print(host.stderr.read())
        sys.exit(f"{name} ended with status {status}")
host.kill()
weights = {name: open(f"{out}/{name}/checkpoint-30/model.safetensors", "rb").read() for name in runs}
if weights["one"] != weights["stages"]:
    sys.exit("the weights of a pipeline over two processes are others than those of one rank")
print("RATE a pipeline over two processes: the same", len(weights["one"]), "bytes of weights")' "$dir/athanor" "$config" "$out"
}

# cluster checks what GPUs of several hosts need. With two GPUs, two processes with one each train over NCCL and over TCP, and
# must leave the same weights.
cluster() {
  test_of nccl 30 device/cuda/nv NCCL
  test_of communicator 60 device/cuda TestRealWire
  ATHANOR_TEST_GPU='' ATHANOR_TESTS='' test_of wires 120 device/cuda 'TestWire'
  hosts
  local device=cuda config=$out/wires-run.yaml
  [ -n "$dry" ] && device=cpu
  [ -n "$dry" ] || [ "$(nvidia-smi -L | wc -l)" -ge 2 ] || return 0
  printf '%s\n' 'model: {type: llama, layers: 4, width: 256, heads: 4, feed_forward: 768, tied: false}' 'data: "**/*.go"' 'tokenizer: bpe-300' 'sequence_length: 256' 'global_batch: 8' \
    'learning_rate: 1.0e-3' 'max_steps: 30' 'precision: bf16' "device: $device" 'limits: {device: 2GiB, host: 8GiB}' 'plan: {pipeline: 1}' "out: $out/wires-tcp" >"$config"
  part wires-run 150 . python3 -c '
import os, secrets, socket, subprocess, sys

athanor, config, out = sys.argv[1:]
os.environ["ATHANOR_KEY"] = secrets.token_hex(16)
for name, library in ("tcp", {"ATHANOR_NCCL": "none"}), ("nccl", {}):
    with socket.socket() as s: # a free port
        s.bind(("127.0.0.1", 0))
        at = "127.0.0.1:%d" % s.getsockname()[1]
    host = subprocess.Popen([athanor, "serve", "--listen", at, "--disk", out], stderr=subprocess.PIPE, text=True, env=os.environ | library | {"CUDA_VISIBLE_DEVICES": "1"})
    print(host.stderr.readline(), flush=True) # it listens
    status = subprocess.call([athanor, "train", config, "out=" + out + "/wires-" + name, "hosts=" + at], env=os.environ | library | {"CUDA_VISIBLE_DEVICES": "0"})
    host.kill()
    if status:
        print(host.stderr.read())
        sys.exit(f"over {name}: status {status}")
weights = [open(f"{out}/wires-{name}/checkpoint-30/model.safetensors", "rb").read() for name in ("tcp", "nccl")]
if weights[0] != weights[1]:
    sys.exit("over NCCL the weights are others than over TCP")
print("RATE two processes over NCCL and over TCP: the same", len(weights[0]), "bytes of weights")' "$dir/athanor" "$config" "$out"
}

# rates measures, one thing at a time.
rates() {
  test_of rate-links 30 device/cuda TestRateLinks
  test_of rate-product 40 device/cuda 'TestRateProduct|TestRateLogits'
  test_of rate-bytes 30 device/cuda TestRateBytes
  test_of rate-algorithms 60 device/cuda TestRateAlgorithms
  test_of rate-attention 120 device/cuda TestRateAttention
  test_of rate-delta 40 device/cuda TestRateDelta
  test_of rate-gpt2 90 device/cuda TestRateGPT2
  test_of rate-sums 40 device/cuda TestRateSums
  test_of rate-experts 40 device/cuda TestRateExperts
  [ -n "$dry" ] || torch rates 60 rates
}

torch() { # torch NAME SECONDS ARGUMENT...
  asked "torch-$1" || return 0
  if [ -z "$has_torch" ]; then
    result "$(printf '%-34s        no PyTorch here' "torch-$1")"
    return
  fi
  part "torch-$1" "$2" . python3 tools/gpu_torch.py "${@:3}"
}

# Models by name, as configurations have them.
declare -A shapes=(
  [gpt2]='{type: gpt2, layers: 12, width: 768, heads: 12, vocabulary: 50257, max_positions: 4096}'
  [gpt2-xl]='{type: gpt2, layers: 48, width: 1600, heads: 25, vocabulary: 50257, max_positions: 4096}'
  [llama-3.2-1b]='{type: llama, layers: 16, width: 2048, heads: 32, kv_heads: 8, feed_forward: 8192, vocabulary: 128256, rope_theta: 500000, tied: true, max_positions: 8192}'
  [llama-3-8b]='{type: llama, layers: 32, width: 4096, heads: 32, kv_heads: 8, feed_forward: 14336, vocabulary: 128256, rope_theta: 500000, tied: false, max_positions: 8192}'
)

# toy SHAPE: a small model of the same kind.
toy() { sed -E 's/layers: [0-9]+/layers: 2/; s/width: [0-9]+/width: 64/; s/heads: [0-9]+, [vk]/heads: 4, &/; s/heads: 4, heads: [0-9]+/heads: 4/; s/kv_heads: [0-9]+/kv_heads: 2/; s/feed_forward: [0-9]+/feed_forward: 128/; s/vocabulary: [0-9]+/vocabulary: 4096/' <<<"$1"; }

# step NAME LENGTH BATCH SECONDS: a training step with the plan that is chosen, measured and predicted,
# and PyTorch's. Each has so many seconds.
step() {
  ours "$1-$2" "$@" 0
  theirs "$1-$2" "$4" step "${@:1:3}" 0
}

# ours ID NAME LENGTH BATCH SECONDS LAYERS [KEY=VALUE...]
ours() {
  local id=$1 name=$2 length=$3 batch=$4 limit=$5 layers=$6 device=cuda steps=9
  asked "$id" || return 0
  [ "$name" = llama-3-8b ] && steps=3 # of seconds
  shift 6
  local config=$out/$id.yaml shape=${shapes[$name]}
  [ "$layers" -gt 0 ] && shape=$(sed "s/layers: [0-9]*/layers: $layers/" <<<"$shape")
  if [ -n "$dry" ]; then
    device=cpu length=32 batch=2
    shape=$(toy "$shape")
    set -- "${@/limits.device=*/limits.device=3MB}"
  fi
  printf 'model: %s\nsequence_length: %d\nglobal_batch: %d\nout: %s\nprecision: bf16\ndevice: %s\n' \
    "$shape" "$length" "$batch" "$out/run" "$device" >"$config"
  part "$id" "$limit" . "$dir/athanor" bench step "$config" "$@" --json --steps $steps --warmup 1
}

# theirs ID SECONDS VERB NAME LENGTH BATCH LAYERS: PyTorch's step, with everything on the host if the verb is offload.
theirs() {
  if [ -n "$dry" ]; then
    torch "$1" 120 dry
  else
    torch "$1" "$2" "${@:3}"
  fi
}

# product is what all steps are a fraction of.
product() { test_of rate-product 40 device/cuda TestRateProduct; }

speed() {
  product
  step gpt2 1024 32 130 # the first one probes the machine
  step llama-3.2-1b 4096 4 100
  step gpt2 4096 8 80
  step llama-3.2-1b 1024 16 80
}

large() {
  product
  step gpt2-xl 1024 16 120 # the first one probes the machine
  step llama-3-8b 4096 4 160 # 8 billion numbers are put in place first
  step gpt2-xl 4096 4 80
  step llama-3-8b 1024 16 130
}

# fp8 puts steps in FP8 beside those in bf16: rows of the table, one below the other.
fp8() {
  test_of fp8-products 100 device/cuda FP8
  product
  local name
  for name in llama-3.2-1b llama-3-8b; do
    ours "$name-4096" "$name" 4096 4 120 0
    ours "$name-4096-fp8" "$name" 4096 4 120 0 precision=fp8
  done
}

# grow GB: virtual machines may get their memory as they use it and show little before,
# which plans would be made for. Touches it until the system shows so much or no more comes.
grow() {
  [ -n "$dry" ] || part memory 90 . python3 -c '
import mmap, sys, time

def number(path):
    try:
        return int(open(path).read())
    except (OSError, ValueError):  # "max"
        return 1 << 62

def shown(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith(name + ":"))

def left():
    group = "/sys/fs/cgroup/memory."
    return min(shown("MemAvailable"), number(group + "max") - number(group + "current") % (1 << 62))

want, held, total, last = int(sys.argv[1]) * 10**9, [], shown("MemTotal"), time.monotonic()
print(f"{total / 1e9:.1f} GB shown", flush=True)
while total < want and time.monotonic() - last < 10:
    if left() > 4 << 30:
        m = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        m.madvise(mmap.MADV_HUGEPAGE)
        m[::4096] = b"x" * (1 << 18)
        held.append(m)
        last = time.monotonic()
    else:
        time.sleep(0.1)
    if shown("MemTotal") > total:
        total, last = shown("MemTotal"), time.monotonic()
print(f"{total / 1e9:.1f} GB shown after {len(held)} GiB were touched")' "$1"
}

# text generates after a prompt, from random weights that a run of one step saves.
text() {
  local name device=cuda
  [ -n "$dry" ] && device=cpu
  for name in gpt2 llama-3.2-1b; do
    asked "text-$name" || continue
    local shape=${shapes[$name]} tokens=128
    [ -n "$dry" ] && shape=$(toy "$shape") tokens=8
    printf '%s\n' "model: $shape" 'data: "**/*.go"' 'tokenizer: bpe-4096' 'sequence_length: 256' 'global_batch: 1' 'learning_rate: 1.0e-3' 'max_steps: 1' 'eval_batches: 1' \
      'precision: bf16' 'optimizer_state: bf16' "device: $device" "out: $out/text-$name" >"$out/text-$name.yaml"
    part "text-$name-folder" 120 . "$dir/athanor" train "$out/text-$name.yaml"
    local measure=(python3 tools/generation.py "$dir/athanor" "$out/text-$name/checkpoint-1" --device "$device" --precision bf16 --tokens "$tokens")
    part "text-$name" 80 . "${measure[@]}"
    [ "$name" = gpt2 ] || part "text-$name-limited" 80 . "${measure[@]}" --device-memory 2GB
  done
}

# Weights, gradients and moments of all layers are 128 GB in fp32. PyTorch has all of it in bf16 where the host
# cannot hold that; here some of it is on the GPU.
offload() {
  local id=llama-3-8b-4096-limited-${LAYERS:-all} layers=${LAYERS:-0}
  product
  grow 132
  ours "$id" llama-3-8b 4096 8 250 "$layers" limits.device=24GB limits.disk=0 optimizer_state=fp32
  if grep -q '^llama.*FAILED' "$out/results.txt"; then
    mv "$out/$id.log" "$out/fp32.log"
    result "once more with moments in bf16:"
    ours "$id" llama-3-8b 4096 8 200 "$layers" limits.device=24GB limits.disk=0 optimizer_state=bf16_moments
  fi
  theirs "$id" 150 offload llama-3-8b 4096 8 "$layers"
}

case $what in
  checks | speed | fp8 | large | offload) "$what" ;;
  agree | share | sanitize | resume | hosts | cluster | rates | text) "$what"; wait ;;
  *) echo "unknown part $what; hint: checks, agree, share, sanitize, resume, hosts, cluster, rates, speed, fp8, large, text or offload" >&2; exit 2 ;;
esac

echo
grep -ho 'Name:[^ ]* [^:]*' "$out"/find.log 2>/dev/null | head -1
if [[ $what =~ ^(checks|agree|share|sanitize|resume|hosts|cluster|rates|text)$ ]]; then
  grep -h '^RATE' "$out"/*.log | cut -c6-
else
  python3 tools/gpu_table.py "$out" || result "table                              FAILED: python3 is needed for it"
fi
echo "--- $what ($((SECONDS - begin)) s in all; logs in $out)"
cat "$out/results.txt"
! grep -q FAILED "$out/results.txt"
