// Package bounded reads whole files that users name, up to a limit on their size,
// whatever the path turns out to be.
package bounded

import (
	"fmt"
	"io"
	"os"

	"github.com/athanor-llm/athanor/internal/size"
)

// ReadFile is os.ReadFile of at most the given number of bytes; a larger file is an
// error. It does not rely on the file system's sizes: devices and pipes have none.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %s; hint: check that it is the right file", path, size.Format(most))
	}
	return text, err
}
