//go:build unix

package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const canLimitFiles = true

func limitFiles() error {
	text := os.Getenv(fileLimit)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: n})
}
