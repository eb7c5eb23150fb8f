//go:build !unix

package data

import (
	"io"
	"os"
)

// mapFile reads size bytes of a file into memory, where mapping is not implemented.
func mapFile(in *os.File, size int64) (content []byte, unmap func() error, err error) {
	content = make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(in, 0, size), content); err != nil {
		return nil, nil, err
	}
	return content, func() error { return nil }, nil
}
