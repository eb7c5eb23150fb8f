//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package machine

import "path/filepath"

// diskOf identifies the disk that holds a path.
func diskOf(path string) string {
	abs, err := filepath.Abs(existing(path))
	if err != nil {
		return path
	}
	return filepath.VolumeName(abs)
}
