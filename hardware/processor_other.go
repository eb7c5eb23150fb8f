//go:build !(linux || darwin || windows)

package hardware

func processor() string { return "" }
