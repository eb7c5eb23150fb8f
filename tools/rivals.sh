#!/bin/sh
# Training steps of Athanor and of PyTorch, in turn, as a table of ratios.
#   tools/rivals.sh PYTHON BINARY [--minutes 8] [--only gpt2-b4t256] [--llmc FOLDER] ...
#   tools/rivals.sh PYTHON BINARY --matrix [--seed N] [--count 24] ...    drawn configurations instead of chosen ones
# PYTHON has torch 2.x; BINARY is what `go build ./cmd/athanor` makes.
if [ $# -lt 2 ]; then
	sed -n '2,5s/^# //p' "$0" >&2
	exit 2
fi
python=$1 binary=$2
shift 2
verb=pair
if [ "${1-}" = --matrix ]; then
	verb=matrix
	shift
fi
exec "$python" "$(dirname "$0")/rivals.py" $verb --ours "$binary" "$@"
