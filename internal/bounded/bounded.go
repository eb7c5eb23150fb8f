// Package bounded reads files that people name: whole, but no more than such a file
// can sensibly have, whatever it turns out to be.
package bounded

import (
	"fmt"
	"io"
	"os"

	"github.com/athanor-llm/athanor/internal/size"
)

// ReadFile is os.ReadFile of at most so many bytes; a larger file is an error. It does
// not trust what the file system says of sizes: devices and pipes have none.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %s; hint: is it the right file?", path, size.Format(most))
	}
	return text, err
}
