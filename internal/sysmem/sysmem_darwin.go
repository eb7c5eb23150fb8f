package sysmem

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func system() (Info, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Info{}, fmt.Errorf("hw.memsize: %w", err)
	}
	var pages int64
	for _, name := range []string{"vm.page_free_count", "vm.page_pageable_external_count", "vm.page_purgeable_count"} {
		n, err := unix.SysctlUint32(name)
		if err != nil {
			return Info{}, fmt.Errorf("%s: %w", name, err)
		}
		pages += int64(n)
	}
	return Info{Total: int64(total), Available: min(pages*int64(os.Getpagesize()), int64(total))}, nil
}

func systemCores() float64 { return 0 }

func systemAddresses() int64 { return 0 }

func systemMapped() int64 { return 0 }
