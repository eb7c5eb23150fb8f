//go:build !linux

package cpu

func adviseHuge([]byte) {}

func populateWrite([]byte) bool { return false }
