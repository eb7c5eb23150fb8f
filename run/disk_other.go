//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package run

import "path/filepath"

// diskOf names the disk that a path is on.
func diskOf(path string) string {
	abs, err := filepath.Abs(existing(path))
	if err != nil {
		return path
	}
	return filepath.VolumeName(abs)
}
