package cli

import "github.com/athanor-llm/athanor/internal/build"

// Version describes this program: which build it is, and of what.
func Version(program string) string { return program + " " + build.Text() }
