package mpi

import (
	"errors"
	"strings"
)

// A handle is a number or, in Open MPI, the address of a variable with a name.
type handle struct {
	number uintptr
	symbol string
}

// abi is what the binaries of some MPI libraries have in common.
type abi struct {
	name                      string
	comm, bytes, errorsReturn handle
	serialized                int32 // MPI_THREAD_SERIALIZED
	suits                     func(l *Library) bool
}

// abis are the binaries that there are, each after those that it could be mistaken for. Sources: mpi.h of the MPI ABI
// working group's stubs, version 1.0; MPICH 4.2, src/include/mpi.h.in; Open MPI 5.0, ompi/include/mpi.h.in.
var abis = []abi{
	{
		name: "the standard ABI", comm: handle{number: 0x101}, bytes: handle{number: 0x247}, errorsReturn: handle{number: 0x143},
		serialized: 2048, suits: isStandard,
	},
	{
		name: "its own ABI", comm: handle{symbol: "ompi_mpi_comm_world"}, bytes: handle{symbol: "ompi_mpi_byte"},
		errorsReturn: handle{symbol: "ompi_mpi_errors_return"},
		serialized:   2, suits: func(l *Library) bool { return strings.Contains(l.Version, "Open MPI") },
	},
	{
		name: "the ABI of MPICH", comm: handle{number: 0x44000000}, bytes: handle{number: 0x4c00010d}, errorsReturn: handle{number: 0x54000001},
		serialized: 2, suits: func(l *Library) bool {
			return strings.Contains(l.Version, "MPICH") || strings.Contains(l.Version, "Intel(R) MPI") || strings.Contains(l.Version, "MVAPICH")
		},
	},
}

// isStandard asks the library whether it has the standard ABI, version 1. Libraries that know the question and have
// another ABI say so.
func isStandard(l *Library) bool {
	if l.call.abiVersion == nil {
		return false
	}
	version := &l.room.numbers
	return l.call.abiVersion(addr(&version[0]), addr(&version[1])) == 0 && version[0] == 1
}

// value returns a handle's value in a library.
func (h handle) value(l *Library) (uintptr, error) {
	if h.symbol == "" {
		return h.number, nil
	}
	return l.find(h.symbol)
}

// choose sets the library's ABI, and the handles that it needs.
func (l *Library) choose() error {
	for i := range abis {
		if a := &abis[i]; a.suits(l) {
			var errs [3]error
			l.abi = a
			l.comm, errs[0] = a.comm.value(l)
			l.bytes, errs[1] = a.bytes.value(l)
			l.errorsReturn, errs[2] = a.errorsReturn.value(l)
			return errors.Join(errs[:]...)
		}
	}
	return errABI
}

var errABI = errors.New("its binary interface is not known: neither the standard one of MPI 5, nor that of MPICH or Open MPI")
