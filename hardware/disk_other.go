//go:build !unix

package hardware

import "errors"

func freeDisk(string) (int64, error) { return 0, errors.ErrUnsupported }
