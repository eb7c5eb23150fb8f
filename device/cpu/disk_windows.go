package cpu

import (
	"crypto/rand"
	"os"

	"golang.org/x/sys/windows"
)

// openHidden creates a file with a unique name, which is deleted when the file is closed or the process
// ends. It is not opened for direct I/O.
func openHidden(path string) (f *os.File, direct bool, err error) {
	path += "-" + rand.Text()
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, false, err
	}
	const access = windows.GENERIC_READ | windows.GENERIC_WRITE | windows.DELETE
	const kind = windows.FILE_ATTRIBUTE_TEMPORARY | windows.FILE_FLAG_DELETE_ON_CLOSE
	h, err := windows.CreateFile(name, access, 0, nil, windows.CREATE_NEW, kind, 0)
	if err != nil {
		return nil, false, &os.PathError{Op: "create", Path: path, Err: err}
	}
	return os.NewFile(uintptr(h), path), false, nil
}
