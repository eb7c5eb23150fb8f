package train

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/internal/filelock"
)

// lockFolder locks a run's folder against training by other processes, until the
// file is closed or the process ends in any way. The file remains: if it were
// removed, two processes could lock two files of that name. File systems without
// locks are used unlocked.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, outError(err)
	}
	if held, err := filelock.Try(f); !held && err == nil {
		f.Close()
		return nil, fmt.Errorf("%s: another process trains there; hint: wait for it or end it, or set `out` to another folder", dir)
	}
	return f, nil
}
