//go:build !(linux || darwin || windows)

package sysmem

import "errors"

func system() (Info, error) { return Info{}, errors.ErrUnsupported }

func systemCores() float64 { return 0 }

func systemAddresses() int64 { return 0 }

func systemMapped() int64 { return 0 }
