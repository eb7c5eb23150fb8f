//go:build !linux || !(amd64 || arm64) || nocuda

package nv

// Open fails: there is no other way to open libraries here yet, and a build with the tag nocuda needs no loader.
func Open(string) (Library, error) { return nil, errSystem }

func openGlobal(string) error { return nil }
