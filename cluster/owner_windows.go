package cluster

import "os"

// private returns an error unless a file exists: the folder's rights are those of the run.
func private(path string) error {
	_, err := os.Lstat(path)
	return err
}
