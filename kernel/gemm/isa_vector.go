//go:build amd64 || arm64

package gemm

// inVectors converts whole vectors in assembly and the ends of rows in Go. The sizes are bytes per element.
func inVectors(c *convert, lanes int, vectors, rest func(*convert), srcSize, dstSize uintptr) {
	cols := c.cols
	if c.cols /= lanes; c.cols > 0 {
		vectors(c)
	}
	done := c.cols * lanes
	c.src, c.dst, c.cols = at(c.src, done, srcSize), at(c.dst, done, dstSize), cols-done
	if c.cols > 0 {
		rest(c)
	}
}
