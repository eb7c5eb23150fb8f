// Package paths expands what a shell would expand in the paths that people write into
// configurations.
package paths

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Expand replaces $NAME and ${NAME} by environment variables, $GOROOT, also written
// $(go env GOROOT), by the root of the Go tree, and then ~ before the first / by the
// user's home. A variable that is not set is an error.
func Expand(path string) (string, error) {
	path = strings.ReplaceAll(path, "$(go env GOROOT)", "$GOROOT")
	var missing error
	out := os.Expand(path, func(name string) string {
		if name == "GOROOT" {
			root, err := goroot()
			if err != nil {
				missing = fmt.Errorf("%q: %w", path, err)
			}
			return root
		}
		value, ok := os.LookupEnv(name)
		if !ok && missing == nil {
			missing = fmt.Errorf("%q: the environment variable %s is not set; hint: set it, or write out the full path",
				path, name)
		}
		return value
	})
	if missing == nil && (out == "~" || strings.HasPrefix(out, "~/")) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%q: %w; hint: write out the full path", path, err)
		}
		out = home + out[1:]
	}
	return out, missing
}

// goroot finds the Go tree: the variable, the tree that built this program, or
// what the go command says.
func goroot() (string, error) {
	hasSource := func(root string) bool {
		if root == "" {
			return false
		}
		info, err := os.Stat(filepath.Join(root, "src"))
		return err == nil && info.IsDir()
	}
	if root := os.Getenv("GOROOT"); root != "" {
		if !hasSource(root) {
			return "", fmt.Errorf("GOROOT is %s, which has no folder src; "+
				"hint: unset GOROOT, point it to a Go tree, or name another corpus, data=path/to/**/*.txt", root)
		}
		return root, nil
	}
	//lint:ignore SA1019 it is the builder's tree; here it is checked to exist
	if root := runtime.GOROOT(); hasSource(root) {
		return root, nil
	}
	if out, err := exec.Command("go", "env", "GOROOT").Output(); err == nil {
		if root := strings.TrimSpace(string(out)); hasSource(root) {
			return root, nil
		}
	}
	return "", errors.New("there is no Go tree: GOROOT is not set, and no go command was found that names one; " +
		"hint: name another corpus, data=path/to/**/*.txt")
}

// Exists reports whether there is a file or folder of a name.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
