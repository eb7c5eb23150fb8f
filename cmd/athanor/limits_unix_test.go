//go:build linux || darwin

package main

import (
	"errors"
	"os"
	"strconv"
	"syscall"

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

// nobody is the user that an administrator becomes to drop its rights.
const nobody = 65534

// dropRights makes a child run as nobody if it would be the administrator, who may
// write everywhere.
func dropRights() error {
	if os.Getenv(plainUser) == "" || os.Geteuid() != 0 {
		return nil
	}
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody))
}
