//go:build !unix

package main

import "os"

// warnings returns the signals with which batch systems announce that a job's time is nearly over: there are none.
func warnings() []os.Signal { return nil }
