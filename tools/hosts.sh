#!/usr/bin/env bash
# Trains on one host and on several, joined by a network of a given rate, and prints what was predicted and measured.
#
#   tools/hosts.sh ATHANOR CONFIG [key=value ...]       HOSTS=2 RATES="1gbit 10gbit" by default
#
# The hosts are network namespaces of this machine with a core each, in turn; two are joined directly, more by a switch (a bridge). What goes between
# them goes through the kernel's TCP and links that are held to the rate (tc tbf), but through no cable. Needs root, ip, tc and idle cores.
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
last=$((${HOSTS:-2} - 1))

clean() {
	kill $(jobs -p) 2>/dev/null || true
	for i in net $(seq 0 $last); do ip netns del athanor-$i 2>/dev/null || true; done
	rm -rf "$dir"
}
trap clean EXIT

ip netns add athanor-net
ip -n athanor-net link add switch type bridge
ip -n athanor-net link set switch up
others=
for i in $(seq 0 $last); do
	ip netns add athanor-$i
	if [ $last -gt 1 ]; then
		ip link add e0 netns athanor-$i type veth peer name e$i netns athanor-net
		ip -n athanor-net link set e$i master switch up
	elif [ $i -eq 1 ]; then
		ip link add e0 netns athanor-0 type veth peer name e0 netns athanor-1
	fi
done
for i in $(seq 0 $last); do
	ip -n athanor-$i addr add 10.90.0.$((i + 1))/24 dev e0
	ip -n athanor-$i link set e0 up
	ip -n athanor-$i link set lo up
	if [ $i -gt 0 ]; then
		others=$others${others:+,}10.90.0.$((i + 1))
		mkdir "$dir/$i"
		HOME=$dir/$i ip netns exec athanor-$i taskset -c $((i % $(nproc))) "$athanor" serve --disk "$dir/$i" 2>"$dir/serve-$i.log" &
	fi
done

# hold RATE holds all links to it, also towards hosts if several may send to one.
hold() {
	for i in $(seq 0 $last); do
		tc -n athanor-$i qdisc replace dev e0 root tbf rate "$1" burst "${BURST:-20kb}" latency 50ms
		if [ $last -gt 1 ]; then tc -n athanor-net qdisc replace dev e$i root tbf rate "$1" burst "${BURST:-20kb}" latency 50ms; fi
	done
}

# train NAME key=value ... prints a row.
train() {
	local name=$1
	shift
	HOME=$dir ip netns exec athanor-0 taskset -c 0 "$athanor" train --json "$config" out="$dir/run" "$@" >"$dir/result.json" 2>"$dir/train.log" ||
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
	hold "$rate"
	rm -rf "$dir/.cache" # the network is measured anew
	train "${HOSTS:-2} hosts, $rate" hosts="[$others]" "$@"
	train "${HOSTS:-2} hosts, $rate, replicas" hosts="[$others]" plan.pipeline=1 "$@"
done
