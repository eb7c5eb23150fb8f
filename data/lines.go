package data

import (
	"bytes"
	"errors"
	"io"
)

// Reading rows of JSON one after the other: lines of a file, or the elements of the one array that it is.

// lineReader reads lines of up to about most bytes, or such elements of a JSON array, in linear time.
type lineReader struct {
	from       io.Reader
	most       int64 // longest line in bytes
	buffer     []byte
	start, end int   // buffer[start:end] is not returned yet
	searched   int   // no newline in buffer[start:searched]
	err        error // from the last read; kept until the buffer is used up
	lineNumber int
	long       func(begun []byte) bool // whether the caller goes on with a line of more than longLine bytes that begins so; nil: never
	ask        int                     // it is asked when a line has more bytes than this
	table      bool                    // it is a row of a table
	array      *nesting                // where the lines are elements of an array; nil: they are lines
}

func newLineReader(from io.Reader, most int64, long func(begun []byte) bool) *lineReader {
	return &lineReader{from: from, most: most, buffer: make([]byte, 256<<10), long: long, ask: longLine}
}

// errLong means that a line has begun that the caller reads itself, see more.
var errLong = errors.New("a long line")

// next returns the next line without its newline, valid until the next call. It
// returns io.EOF after the last.
func (r *lineReader) next() ([]byte, error) {
	if r.array != nil && r.array.closed {
		return nil, r.checkRest()
	}
	for {
		if i := r.lineEnd(); i >= 0 {
			line := r.buffer[r.start : r.searched+i]
			r.start = r.searched + i + 1
			r.searched = r.start
			r.lineNumber++
			r.ask = longLine
			return line, nil
		}
		r.searched = r.end
		if r.err != nil {
			if r.err == io.EOF && r.array == nil && r.start < r.end {
				line := r.buffer[r.start:r.end]
				r.start = r.end
				r.lineNumber++
				return line, nil
			}
			return nil, r.broken()
		}
		if r.end-r.start > r.ask && r.long != nil {
			r.ask = 2 * (r.end - r.start)
			if r.long(r.buffer[r.start:r.end]) {
				return nil, errLong
			}
		}
		if int64(r.end-r.start) > r.most {
			return nil, tooLong(r.most)
		}
		if r.end == len(r.buffer) {
			r.makeRoom()
		}
		r.read()
	}
}

// lineEnd returns where the line ends, counted from r.searched; -1: beyond what has been read.
func (r *lineReader) lineEnd() int {
	unread := r.buffer[r.searched:r.end]
	if r.array != nil {
		return r.array.elementEnd(unread)
	}
	return bytes.IndexByte(unread, '\n')
}

// place is a format for the number of a line.
func (r *lineReader) place() string {
	switch {
	case r.array != nil:
		return "element %d of the array"
	case r.table:
		return "row %d"
	}
	return "line %d"
}

// checkRest returns io.EOF if nothing but white space follows the array.
func (r *lineReader) checkRest() error {
	for {
		if len(bytes.TrimSpace(r.buffer[r.start:r.end])) > 0 {
			return errors.New("there is more after the array; hint: write one array, or one object per line")
		}
		if r.err != nil {
			return r.err
		}
		r.start, r.end = 0, 0
		r.read()
	}
}

// nesting is how deep in an array of JSON a place is.
type nesting struct {
	depth           int  // of lists and objects within the array
	quoted, escaped bool // within a string, and behind its backslash
	closed          bool // behind the array
}

// elementEnd returns the index of the comma or bracket behind an element, of which text is all or a further part; -1: it goes on.
func (n *nesting) elementEnd(text []byte) int {
	for i, b := range text {
		switch {
		case n.escaped:
			n.escaped = false
		case n.quoted:
			n.escaped, n.quoted = b == '\\', b != '"'
		case b == '"':
			n.quoted = true
		case b == '{' || b == '[':
			n.depth++
		case n.depth == 0 && (b == ',' || b == ']'):
			n.closed = b == ']'
			return i
		case b == '}' || b == ']':
			n.depth = max(n.depth-1, 0)
		}
	}
	return -1
}

// copyLine writes a line of which next has found no end to a file, and passes over it.
func (r *lineReader) copyLine(to io.Writer) error {
	for {
		n := r.lineEnd()
		end := r.end
		if n >= 0 {
			end = r.searched + n
		}
		if _, err := to.Write(r.buffer[r.start:end]); err != nil {
			return err
		}
		switch {
		case n >= 0:
			r.start = end + 1
		case r.err == nil:
			r.start, r.end, r.searched = 0, 0, 0
			r.read()
			continue
		case r.err == io.EOF && r.array == nil:
			r.start = end
		default:
			return r.broken()
		}
		r.searched, r.ask = r.start, longLine
		r.lineNumber++
		return nil
	}
}

// broken returns why there is no more.
func (r *lineReader) broken() error {
	if r.err == io.EOF && r.array != nil {
		return errors.New("the array does not end; hint: check that the file is complete")
	}
	return r.err
}

// read reads more into the buffer, which has room.
func (r *lineReader) read() {
	n, err := r.from.Read(r.buffer[r.end:])
	r.end += n
	r.err = err
}

// take passes over the next n bytes of a line.
func (r *lineReader) take(n int) {
	r.start += n
	r.searched = max(r.searched, r.start)
}

// more returns at least n bytes of the rest of a line and what follows it, or all that is left.
func (r *lineReader) more(n int) ([]byte, error) {
	for r.end-r.start < n && r.err == nil {
		if r.end == len(r.buffer) {
			r.makeRoom()
		}
		r.read()
	}
	if r.err != nil && r.err != io.EOF {
		return nil, r.err
	}
	return r.buffer[r.start:r.end], nil
}

// makeRoom moves the unfinished line to the front of the buffer, doubling the buffer
// if the line fills more than half of it.
func (r *lineReader) makeRoom() {
	into := r.buffer
	if r.end-r.start > len(r.buffer)/2 {
		into = make([]byte, 2*len(r.buffer))
	}
	n := copy(into, r.buffer[r.start:r.end])
	r.buffer, r.start, r.end, r.searched = into, 0, n, r.searched-r.start
}
