#!/usr/bin/env bash
# Trains on one host and on two, joined by a network of a given rate, and prints what was predicted and measured.
#
#   tools/hosts.sh ATHANOR CONFIG [key=value ...]       RATES="1gbit 10gbit" by default
#
# The hosts are two cores of this machine, each in a network namespace of its own: what goes between them goes through the
# kernel's TCP and a link that is held to the rate (tc tbf), but through no cable. Needs root, ip, tc and two idle cores.
set -euo pipefail
if [ $# -lt 2 ]; then
	sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
athanor=$(realpath "$1") config=$(realpath "$2")
shift 2
dir=$(mktemp -d)
export ATHANOR_KEY=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
cd "$(dirname "$0")/.."

clean() {
	kill $(jobs -p) 2>/dev/null || true
	ip netns del athanor-a 2>/dev/null || true
	ip netns del athanor-b 2>/dev/null || true
	rm -rf "$dir"
}
trap clean EXIT

ip netns add athanor-a
ip netns add athanor-b
ip link add va netns athanor-a type veth peer name vb netns athanor-b
ip -n athanor-a addr add 10.90.0.1/24 dev va
ip -n athanor-b addr add 10.90.0.2/24 dev vb
for end in "athanor-a va" "athanor-b vb"; do
	set -- $end "$@"
	ip -n "$1" link set "$2" up
	ip -n "$1" link set lo up
	tc -n "$1" qdisc add dev "$2" root tbf rate 1gbit burst 20kb latency 50ms
	shift 2
done
mkdir "$dir/b"
HOME=$dir/b ip netns exec athanor-b taskset -c 1 "$athanor" serve --disk "$dir/b" 2>"$dir/serve.log" &

# train NAME key=value ... prints a row.
train() {
	local name=$1
	shift
	HOME=$dir ip netns exec athanor-a taskset -c 0 "$athanor" train --json "$config" out="$dir/run" "$@" >"$dir/result.json" 2>"$dir/train.log" ||
		{ tail -5 "$dir/train.log"; exit 1; }
	python3 - "$name" "$dir" <<'PY'
import json, sys
r = json.load(open(sys.argv[2] + "/result.json"))
tokens = r["tokens_per_second"] * r["step_seconds"]
p = r["plan"]
plan = f"micro-batch {p['micro_batch']} x {p['micro_batches']}"
if "pipeline" in p:
    plan = f"{p['pipeline']['schedule']}, {plan}"
elif p["ranks"] > 1:
    plan = "replicas, " + plan
print(f"{sys.argv[1]:<30} {tokens / r['measured_step_seconds']:9.1f} tokens/s   step {r['measured_step_seconds']:.4g} s, "
      f"predicted {r['step_seconds']:.4g} ({100 * (r['step_seconds'] / r['measured_step_seconds'] - 1):+.1f} %)   {plan}", flush=True)
PY
	rm -rf "$dir/run"
}

train "one host" "$@"
for rate in ${RATES:-1gbit 10gbit}; do
	tc -n athanor-a qdisc change dev va root tbf rate "$rate" burst "${BURST:-20kb}" latency 50ms
	tc -n athanor-b qdisc change dev vb root tbf rate "$rate" burst "${BURST:-20kb}" latency 50ms
	rm -rf "$dir/.cache" # the network is measured anew
	train "two, $rate" hosts=10.90.0.2 "$@"
	train "two, $rate, replicas" hosts=10.90.0.2 plan.pipeline=1 "$@"
done
