//go:build !linux

package cpu

import (
	"errors"
	"os"
)

func adviseHuge([]byte) {}

func populateWrite([]byte) bool { return false }

func openDirect(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func allocate(f *os.File, size int64) error { return allocateByWriting(f, size) }
