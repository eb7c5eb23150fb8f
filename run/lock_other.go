//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package run

import "os"

// lockFolder does nothing: this system has no flock.
func lockFolder(string) (*os.File, error) { return nil, nil }
