//go:build !amd64

package pool

// pause does nothing where no instruction for it is wired up: the loops are right without it.
func pause() {}
