package checkpoint

// Parted is a disk that several processes see, each of which reads a part of a file that is checked: a large checkpoint is
// checked as fast as all of them can read.
type Parted struct {
	Disk
	Others // nil: there are none
}

// Others are the other processes, counted from 1.
type Others interface {
	// Processes returns how many there are, this one included.
	Processes() int
	// Sees reports whether all see a file.
	Sees(path string) (bool, error)
	// Sum has one of them read n bytes of a file, and returns what waits for their checksum.
	Sum(process int, path string, offset, n int64) (wait func() (uint32, error))
}

// worthParting is how many bytes a process must get: it reads so many in the time of a few messages.
const worthParting = 4 << 20

// sum returns the checksum of a file. A part that another process could not read is read here: then this process says what
// is wrong with it, if anything is.
func (p Parted) sum(path string, source Source) (sum uint32, err error) {
	size, n := source.Size(), int64(1)
	if p.Others != nil {
		n = min(int64(p.Processes()), size/worthParting)
	}
	if n < 2 {
		return sumOf(source, 0, size)
	}
	if sees, err := p.Sees(path); err != nil || !sees {
		return sumOf(source, 0, size)
	}
	waits := make([]func() (uint32, error), n)
	for k := int64(1); k < n; k++ {
		waits[k] = p.Sum(int(k), path, k*size/n, (k+1)*size/n-k*size/n)
	}
	sum, err = sumOf(source, 0, size/n)
	for k := int64(1); k < n; k++ { // all are waited for, also if one is lost
		first, length := k*size/n, (k+1)*size/n-k*size/n
		part, failed := waits[k]()
		if failed != nil && err == nil {
			part, err = sumOf(source, first, length)
		}
		sum = joinedSum(sum, part, length)
	}
	return sum, err
}
