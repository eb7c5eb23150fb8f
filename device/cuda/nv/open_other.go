//go:build !linux || !(amd64 || arm64)

package nv

// Open fails: there is no other way to open libraries here yet.
func Open(string) (Library, error) { return nil, errSystem }

func openGlobal(string) error { return nil }
