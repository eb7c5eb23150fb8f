package cluster

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/mpi"
	"github.com/athanor-llm/athanor/machine"
)

// The run's processes exchange bytes over MPI if MPI has started them, all have loaded the same library, and it calls
// them by the numbers that the launcher has given. Else they have connections.

// findMPI loads the MPI library that belongs to a launcher; nil if there is none. note is told why there is none where one is to be
// expected.
func (l *Launch) findMPI(note func(string)) *mpi.Library {
	lib, err := mpi.Find(l.Source)
	if err != nil {
		note(fmt.Sprintf("note: no MPI library of %s can be used, so connections are: %v; hint: name the library in %s, or set it to none", l.Source, err, mpi.Variable))
	}
	return lib
}

// versionOf names a library, "" if there is none.
func versionOf(lib *mpi.Library) string {
	if lib == nil {
		return ""
	}
	return lib.Name()
}

// enter joins the MPI world, for which all processes are needed. It gives up when one is gone.
func (l *Launch) enter(lib *mpi.Library, gone func() error) (*mpi.World, error) {
	type entered struct {
		world *mpi.World
		err   error
	}
	done := make(chan entered, 1)
	go func() {
		w, err := lib.Init()
		done <- entered{w, err}
	}()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case e := <-done:
			if e.err == nil && (e.world.Rank != l.Rank || e.world.Size != l.Size) {
				e.err = fmt.Errorf("%s says that this is process %d of %d, but %s that it is process %d of %d; hint: name the library of the launcher in %s, or set it to none",
					lib.Name(), e.world.Rank, e.world.Size, l.Source, l.Rank, l.Size, mpi.Variable)
			}
			return e.world, e.err
		case <-tick.C:
			if err := gone(); err != nil {
				return nil, err
			}
		}
	}
}

// linksOver returns how ranks exchange bytes over a world. The hosts of a run are its processes, by number.
func linksOver(w *mpi.World) link.Open {
	tag := func(from, to int, k link.Kind) int { return (from*machine.MaxRanks+to)*int(link.NumKinds) + int(k) }
	return func(process, own, other int, k link.Kind) (link.Carrier, error) {
		if max(own, other) >= machine.MaxRanks {
			return nil, errors.New("there are no tags for so many ranks")
		}
		return w.Stream(process, tag(own, other, k), tag(other, own, k)), nil
	}
}

// leaveLimit is how long leaving may take: libraries keep their cores busy while they wait for the others, who may have
// to wait for these cores. mpiexec kills all if one is gone without having left.
const leaveLimit = time.Minute

// leave ends a world that all leave at the same time; one that somebody does not leave is left alone.
func (l *Launch) leave(w *mpi.World) {
	if w == nil {
		return
	}
	done := make(chan error, 1)
	go func() { done <- w.Finalize() }()
	select {
	case err := <-done: // the launcher says what is wrong
		if err == nil {
			l.left = w
		}
	case <-time.After(leaveLimit):
	}
}

// Exit ends this process, when its part of the run has ended, in the way that its launcher takes for a good end.
func (l *Launch) Exit(code int) {
	if l.left != nil {
		l.left.Exit(code)
	}
	os.Exit(code)
}
