// Package mpi carries bytes between the processes of a run over the MPI library that has started them, without cgo.
//
//	lib, err := mpi.Find("Open MPI")          load the library, if there is one; nothing has been said to others yet
//	world, err := lib.Init()                  in all processes at the same time
//	stream := world.Stream(process, tag)      both ends open it; what one writes the other reads
//	err = world.Finalize()                    in all processes
//
// MPI only moves bytes. It has no type for bf16 and promises no order of sums, so sums are added by our own kernels in
// the ranks' order, and their bits do not depend on who carried them (package device/cpu).
//
// Every MPI library has binaries of its own: what MPI_COMM_WORLD is differs, as do the sizes of handles. The table abis
// has the ones that there are: the standard ABI of MPI 5, which all new libraries have; that of MPICH, which Intel MPI,
// MVAPICH and Cray share; that of Open MPI. A dozen functions are used, none of which waits: whoever exchanges
// bytes polls anyway (link.Pipe), so no thread has to be kept for MPI, which would take a core. Calls come from any
// thread, one at a time, so the library must have MPI_THREAD_SERIALIZED.
//
// Bytes are copied to and from buffers of this package, which live as long as the world: the library never has an
// address of an arena, which may be gone when a run has failed.
//
// What libraries below MPI do to a process is undone or forbidden: handlers that they install for signals, which Go
// must have on a stack of its own, are put back after Init; UCX and others are told not to install more.
//
// Known weakness: messages are copied once more on each side than they would have to be.
package mpi

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"
)

// Library is a loaded MPI library.
type Library struct {
	Version string // as it says
	Path    string
	abi     *abi
	call    procedures
	find    func(symbol string) (uintptr, error)
	room    *room

	comm, bytes, errorsReturn uintptr // MPI_COMM_WORLD, MPI_BYTE, MPI_ERRORS_RETURN
}

// Name says what the library is.
func (l *Library) Name() string { return fmt.Sprintf("%s (%s)", l.Version, l.abi.name) }

// room is where calls put what they return: it is on the heap, where addresses stay what they are.
type room struct {
	text    [16 << 10]byte // more than any library's MPI_MAX_LIBRARY_VERSION_STRING
	numbers [3]int32
}

// procedures are the library's functions.
type procedures struct {
	initThread, rank, size, setErrhandler, version, isend, irecv, iprobe, test, finalize, exit procedure
	abiVersion                                                                                 procedure // nil: the library is older
}

// procedure is a function of the library. The result is 0 for success.
type procedure func(args ...uintptr) int32

// World is the processes that one launcher has started. Its methods are safe for concurrent use.
type World struct {
	Rank, Size int
	lib        *Library

	mu      sync.Mutex // one thread calls at a time
	over    error      // why no more calls are made
	streams map[end]*Stream
	flag    int32     // of the latest call
	status  [8]uint64 // MPI_Status, of which the largest has 32 bytes
}

// Init joins the world. It waits for all processes.
func (l *Library) Init() (*World, error) {
	restore := keepHandlers()
	defer restore()
	provided, rank, size := &l.room.numbers[0], &l.room.numbers[1], &l.room.numbers[2]
	if err := failed("MPI_Init_thread", l.call.initThread(0, 0, uintptr(l.abi.serialized), addr(provided))); err != nil {
		return nil, err
	}
	if *provided < l.abi.serialized {
		return nil, fmt.Errorf("%s cannot be called from several threads; hint: set %s=none to go without it", l.Version, Variable)
	}
	err := errors.Join(
		failed("MPI_Comm_set_errhandler", l.call.setErrhandler(l.comm, l.errorsReturn)),
		failed("MPI_Comm_rank", l.call.rank(l.comm, addr(rank))),
		failed("MPI_Comm_size", l.call.size(l.comm, addr(size))))
	w := &World{Rank: int(*rank), Size: int(*size), lib: l, streams: map[end]*Stream{}}
	return w, err
}

// Finalize leaves the world. Nothing may be on its way.
func (w *World) Finalize() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over != nil {
		return nil
	}
	w.over = errors.New("mpi: the world has ended")
	return failed("MPI_Finalize", w.lib.call.finalize())
}

// exitLimit is how long the library may take to see the process end.
const exitLimit = 10 * time.Second

// Exit ends the process after Finalize, as C would: MPICH tells its launcher only then, by a function that C calls when a
// process exits, that nothing has gone wrong; else mpiexec may kill the others.
func (w *World) Exit(code int) {
	time.AfterFunc(exitLimit, func() { os.Exit(code) })
	w.lib.call.exit(uintptr(code))
}

// failed returns the error of a call.
func failed(name string, code int32) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("mpi: %s fails with error %d", name, code)
}

// addr returns the address of *p, which must be part of something on the heap that lives until the library no longer
// uses it: of a Library, a World or a Stream.
func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
