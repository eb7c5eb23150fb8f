package mpi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Variable is the environment variable that names the library, or says none.
const Variable = "ATHANOR_MPI"

// libraries are the names under which the libraries of a launcher are installed, the best first.
var libraries = map[string][]string{
	"MPICH":    {"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12"},
	"Open MPI": {"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.40"},
}

// Starts reports whether a launcher, by the name that package cluster gives it, starts processes that have MPI.
func Starts(launcher string) bool { return libraries[launcher] != nil }

// Find loads the library that belongs to a launcher, by the name that package cluster gives it, or the one that
// ATHANOR_MPI names; nil if there is none to look for. An error says why it cannot be used.
func Find(launcher string) (*Library, error) {
	own := os.Getenv(Variable)
	names := libraries[launcher]
	switch {
	case own == "none", own == "" && names == nil:
		return nil, nil
	case own != "":
		return load(own)
	}
	var errs []error
	for _, dir := range folders() {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); dir != "" && err != nil {
				continue
			}
			l, err := load(path)
			if err == nil {
				return l, nil
			}
			errs = append(errs, err)
		}
	}
	return nil, errors.Join(errs...)
}

// folders are where a launcher's library may be: beside the launcher, by what it says and by where its processes and
// commands are, and where the loader looks.
func folders() (list []string) {
	if dir := os.Getenv("OMPI_LIBDIR_LOC"); dir != "" {
		list = append(list, dir)
	}
	if parent, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid())); err == nil {
		list = append(list, filepath.Join(filepath.Dir(parent), "..", "lib"))
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "mpiexec")); err == nil {
			list = append(list, filepath.Join(dir, "..", "lib"))
		}
	}
	return append(list, "")
}

// load loads a library and finds out what it is.
func load(path string) (*Library, error) {
	quiet()
	find, err := open(path)
	if err != nil {
		return nil, err
	}
	l := &Library{Path: path, find: find, room: new(room)}
	p := &l.call
	for _, f := range []struct {
		name string
		to   *procedure
	}{
		{"MPI_Init_thread", &p.initThread}, {"MPI_Comm_rank", &p.rank}, {"MPI_Comm_size", &p.size}, {"MPI_Comm_set_errhandler", &p.setErrhandler},
		{"MPI_Get_library_version", &p.version}, {"MPI_Isend", &p.isend}, {"MPI_Irecv", &p.irecv}, {"MPI_Iprobe", &p.iprobe},
		{"MPI_Test", &p.test}, {"MPI_Finalize", &p.finalize}, {"exit", &p.exit},
	} {
		at, err := find(f.name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		*f.to = procedureAt(at)
	}
	if at, err := find("MPI_Abi_get_version"); err == nil {
		p.abiVersion = procedureAt(at)
	}
	n, text := &l.room.numbers[0], &l.room.text
	if err := failed("MPI_Get_library_version", p.version(addr(&text[0]), addr(n))); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	l.Version = summary(string(text[:max(0, min(int(*n), len(text)))]))
	if err := l.choose(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// summary returns the first line of a version, such as "Open MPI v5.0.11, package: ...", up to the first comma, in which
// spaces are single.
func summary(version string) string {
	line, _, _ := strings.Cut(strings.Trim(version, "\x00"), "\n")
	line, _, _ = strings.Cut(line, ",")
	return strings.ReplaceAll(strings.Join(strings.Fields(line), " "), " Version:", "")
}

// quieted are variables that keep what is below MPI from installing handlers for signals and from watching allocations.
var quieted = [][2]string{
	{"UCX_ERROR_SIGNALS", ""}, {"UCX_MEM_EVENTS", "n"}, {"OMPI_MCA_opal_signal", ""}, {"IPATH_NO_BACKTRACE", "1"}, {"HFI_NO_BACKTRACE", "1"},
}
