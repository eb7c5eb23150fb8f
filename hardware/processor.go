package hardware

import "strings"

// Processor returns the processor's model name, or "cpu" if it is unknown.
func Processor() string {
	if name := strings.TrimSpace(processor()); name != "" {
		return name
	}
	return "cpu"
}
