//go:build !unix

package hardware

import "errors"

// FreeDisk is not implemented on this system.
func FreeDisk(string) (int64, error) { return 0, errors.ErrUnsupported }
