#!/usr/bin/env bash
# Writes cluster/testdata: what real launchers put into the environment of a process, of the variables that say which one it
# is. What TestFound expects follows from the files. Needs srun of a running Slurm, torchrun, and the commands in MPICH and OPENMPI.
#
#   MPICH=/path/bin/mpiexec OPENMPI=/path/bin/mpiexec TORCHRUN=/path/bin/torchrun tools/launchers.sh
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/cluster/testdata dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mpich=${MPICH:-mpiexec.mpich} torch=${TORCHRUN:-torchrun}
openmpi="${OPENMPI:-mpiexec.openmpi} --oversubscribe"
[ "$(id -u)" -ne 0 ] || openmpi="$openmpi --allow-run-as-root"
cat >"$dir/say" <<'END'
#!/bin/sh
env | grep -E "^(OMPI_COMM|PMI_|PMIX_RANK|MPI_LOCAL|RANK=|LOCAL_|WORLD_SIZE|MASTER_|TORCHELASTIC_(RUN_ID|USE)|GROUP_|SLURM_(JOB_ID|STEP|PROCID|LOCALID|NODEID|NTASKS|TASKS_PER_NODE|JOB_NODELIST|NODELIST))" | sort >"$1.$$"
END
chmod +x "$dir/say"

# keep NAME COMMAND ... keeps what one of the processes says.
keep() {
	local name=$1
	shift
	"$@" "$dir/say" "$dir/$name" >/dev/null
	mv "$(ls "$dir/$name".* | tail -1)" "$out/$name.env"
}

# batch runs a command in a batch script, two as two nodes of torchrun would.
batch() { sbatch --wait --ntasks=4 --output=/dev/null --wrap="$*"; }
two() {
	local n
	for n in 0 1; do "$torch" --no-python --nproc-per-node 1 --nnodes 2 --node-rank $n --master-addr 127.0.0.1 --master-port 29512 "$@" & done
	wait
}

keep torchrun "$torch" --no-python --nproc-per-node 2 --standalone
keep torchrun-two two
keep torchrun-in-srun srun --ntasks=1 "$torch" --no-python --nproc-per-node 2 --standalone
keep mpich "$mpich" -n 2
keep mpich-in-sbatch batch "$mpich" -n 2
keep ompi $openmpi -n 2
keep ompi-in-sbatch batch $openmpi -n 2
keep srun srun --ntasks=4
keep srun-pmi2 srun --mpi=pmi2 --ntasks=2
keep sbatch batch
git diff --stat -- "$out"
