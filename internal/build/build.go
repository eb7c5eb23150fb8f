// Package build says which build of Athanor this process is.
package build

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Text is the version, the commit that it was built from and its date, as far as the go command recorded them, and the
// platform that it was built for.
func Text() string { return text() }

var text = sync.OnceValue(func() string {
	text := "unknown version"
	if info, ok := debug.ReadBuildInfo(); ok {
		said := map[string]string{}
		for _, s := range info.Settings {
			said[s.Key] = s.Value
		}
		text = info.Main.Version
		if commit := said["vcs.revision"]; commit != "" {
			text += ", commit " + commit
		}
		if date, _, ok := strings.Cut(said["vcs.time"], "T"); ok {
			text += " of " + date
		}
		if said["vcs.modified"] == "true" {
			text += " with changes"
		}
	}
	return fmt.Sprintf("%s, built with %s for %s/%s", text, runtime.Version(), runtime.GOOS, runtime.GOARCH)
})
