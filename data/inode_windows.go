package data

import "os"

// inodeOf returns what the file system itself says about a file: nothing here.
func inodeOf(*os.File) (string, error) { return "", nil }
