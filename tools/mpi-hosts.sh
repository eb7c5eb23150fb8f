#!/usr/bin/env bash
# Says over what two processes on two hosts exchange bytes, MPI or TCP, and what both take, at given rates of the network.
#
#   tools/mpi-hosts.sh ATHANOR MPIEXEC CONFIG [key=value ...]       RATES="1gbit 10gbit" by default
#
# MPIEXEC is that of MPICH (Hydra). The hosts are two cores of this machine, each in a network namespace with a name of its own,
# joined by a link that is held to the rate (tc tbf). MPI libraries would find the memory that they share, so UCX and
# libfabric are told to use TCP. Needs root, ip, tc and two idle cores.
set -euo pipefail
if [ $# -lt 3 ]; then
	sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
athanor=$(realpath "$1") mpiexec=$(realpath "$2") config=$(realpath "$3")
shift 3
mpi=$(realpath "$(dirname "$mpiexec")/../lib/libmpi_abi.so.1")
dir=$(mktemp -d)
clean() {
	kill $(jobs -p) 2>/dev/null || true
	ip netns del athanor-a 2>/dev/null || true
	ip netns del athanor-b 2>/dev/null || true
	rm -rf "$dir"
}
trap clean EXIT

# mpiexec starts its proxies by this, from within a namespace: it returns to that of this script first.
sleep 3600 &
outside=/proc/$!/ns
cat >"$dir/ssh" <<END
#!/usr/bin/env bash
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in 10.91.0.1) host=athanor-a core=0 ;; *) host=athanor-b core=1 ;; esac
shift
exec nsenter --net=$outside/net --mount=$outside/mnt ip netns exec \$host unshare --uts taskset -c \$core sh -c "hostname \$host; \$*"
END
chmod +x "$dir/ssh"
ip netns add athanor-a
ip netns add athanor-b
ip link add e0 netns athanor-a type veth peer name e0 netns athanor-b
ip -n athanor-a addr add 10.91.0.1/24 dev e0
ip -n athanor-b addr add 10.91.0.2/24 dev e0
for host in athanor-a athanor-b; do
	ip -n $host link set e0 up
	ip -n $host link set lo up
	tc -n $host qdisc add dev e0 root tbf rate 1gbit burst 20kb latency 50ms
done
sleep 2 # until the link is seen to be up
export HOME=$dir XDG_CACHE_HOME= UCX_TLS=tcp,self FI_PROVIDER=tcp MPIR_CVAR_NOLOCAL=1
for rate in ${RATES:-1gbit 10gbit}; do
	for host in athanor-a athanor-b; do tc -n $host qdisc change dev e0 root tbf rate "$rate" burst 20kb latency 50ms; done
	for library in "" none "$mpi"; do # what is chosen, then each
		rm -rf "$dir/.cache" "$dir/run" # the network is another one
		ATHANOR_MPI=$library ip netns exec athanor-a unshare --uts sh -c 'hostname athanor-a; exec "$@"' sh "$mpiexec" -iface e0 -launcher ssh -launcher-exec "$dir/ssh" \
			-hosts 10.91.0.1,10.91.0.2 -n 2 -ppn 1 "$athanor" train "$config" ranks=2 out="$dir/run" "$@" >"$dir/log" 2>&1 || { tail -5 "$dir/log"; exit 1; }
		echo "$rate: $(grep -o 'bytes go over.*' "$dir/log"); $(grep -o 'step time: .*' "$dir/log" || true)"
	done
done
