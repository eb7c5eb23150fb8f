//go:build unix

package main

import (
	"os"
	"syscall"
)

// warnings returns the signals with which batch systems announce that a job's time is nearly over, such as
// Slurm's --signal=USR1@600.
func warnings() []os.Signal { return []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2} }
