package parquet

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Reader reads the rows of a file. It is for one goroutine.
type Reader struct {
	in     io.ReaderAt
	size   int64 // bytes
	most   int64 // bytes of memory for pages, and of a row as JSON
	top    []*view
	wanted []*column // below the views that may be asked for
	groups []rowGroup
	rows   int64 // in all groups

	group  int   // the current row group; -1 before the first
	row    int64 // in it
	passed int64 // rows, including the current one

	held  int64  // bytes of buffers for pages
	raw   []byte // a compressed page
	zstd  *zstd.Decoder
	items int // elements of lists in the current row
}

// rowGroup is a range of rows, with the chunks of the wanted columns.
type rowGroup struct {
	rows   int64
	chunks []chunk
}

const magic = "PAR1"

// maxFooter bounds the metadata of a file, in bytes.
const maxFooter = 64 << 20

// Open reads the metadata of a file of size bytes, from which the named columns will be asked for: names at the
// top level, some or all of which the file may lack. Later, pages take up to most bytes of memory at a time,
// and so does a row.
func Open(in io.ReaderAt, size, most int64, names ...string) (*Reader, error) {
	end := make([]byte, 8)
	if size < 12 {
		return nil, damaged("it is not a Parquet file: it has only %d bytes", size)
	}
	if _, err := in.ReadAt(end, size-8); err != nil {
		return nil, err
	}
	switch string(end[4:]) {
	case magic:
	case "PARE":
		return nil, fmt.Errorf("an encrypted file is %w; hint: decrypt it", ErrNotSupported)
	default:
		return nil, damaged("it is not a Parquet file, or is truncated: it does not end with %s", magic)
	}
	length := int64(binary.LittleEndian.Uint32(end))
	if length > size-12 || length > maxFooter {
		return nil, damaged("metadata of %d bytes in a file of %d", length, size)
	}
	r := &Reader{in: in, most: most, size: size, group: -1}
	return r, r.footer(io.NewSectionReader(in, size-8-length, length), names)
}

// Names returns the names of all columns at the top level.
func (r *Reader) Names() (names []string) {
	for _, v := range r.top {
		names = append(names, v.name)
	}
	return names
}

// Rows returns the number of rows in the file.
func (r *Reader) Rows() int64 { return r.rows }

// Row returns the number of the current row, counted from 1.
func (r *Reader) Row() int64 { return r.passed }

// maxElements bounds the elements of a schema, maxWanted the columns that are read, each of which has a buffer, maxGroups row
// groups, and maxChunks the chunks of these columns in all groups, each of which is kept.
const maxElements, maxWanted, maxGroups, maxChunks = 1 << 16, 1 << 12, 1 << 17, 1 << 21

// footer reads the metadata of the file. The schema comes before the row groups.
func (r *Reader) footer(in io.Reader, names []string) error {
	t := &thrift{in: bufio.NewReader(in)}
	rows := int64(0)
	var s *schema
	t.fields(func(f field) {
		switch f.id {
		case 2:
			if s != nil {
				f.fail(damaged("the metadata has two schemas"))
				return
			}
			s = r.readSchema(f, names)
		case 3:
			rows = f.int()
		case 4:
			f.list(func(f field) { r.readGroup(f, s) })
		default:
			f.skip()
		}
	})
	switch {
	case t.err != nil:
		return t.err
	case s == nil:
		return damaged("the metadata has no schema")
	case rows != r.rows:
		return damaged("it has %d rows, but its row groups have %d", rows, r.rows)
	}
	return nil
}

func (r *Reader) readSchema(f field, names []string) *schema {
	s := &schema{}
	f.list(func(f field) {
		if len(s.elements) == maxElements {
			f.fail(damaged("a schema of more than %d elements", maxElements))
			return
		}
		s.elements = append(s.elements, readElement(f))
	})
	if f.err != nil {
		return nil
	}
	var err error
	if r.top, err = s.top(); err != nil {
		f.fail(err)
		return nil
	}
	for _, v := range r.top {
		if slices.Contains(names, v.name) {
			r.wanted = append(r.wanted, v.columns...)
		}
	}
	if n := len(r.wanted); n > maxWanted {
		f.fail(damaged("%d columns to read, more than %d", n, maxWanted))
	}
	for _, c := range r.wanted {
		c.file, c.wanted = r, true
	}
	return s
}

func (r *Reader) readGroup(f field, s *schema) {
	if s == nil || len(r.groups) == maxGroups || len(r.groups)*len(r.wanted) > maxChunks {
		f.fail(damaged("there are row groups before the schema, or more than %d of them, or more than %d columns to read in them", maxGroups, maxChunks))
		return
	}
	g := rowGroup{}
	f.structure(func(f field) {
		switch f.id {
		case 1:
			i := 0
			n := f.list(func(f field) {
				if i < len(s.columns) && s.columns[i].wanted {
					g.chunks = append(g.chunks, r.readChunk(f))
				} else {
					f.skip()
				}
				i++
			})
			if n != int64(len(s.columns)) {
				f.fail(damaged("a row group has %d columns, not %d", n, len(s.columns)))
			}
		case 3:
			g.rows = f.int()
		default:
			f.skip()
		}
	})
	if len(g.chunks) != len(r.wanted) || g.rows < 0 || g.rows > math.MaxInt64-r.rows {
		f.fail(damaged("row group %d has %d rows and %d of the columns to read, not %d", len(r.groups)+1, g.rows, len(g.chunks), len(r.wanted)))
	}
	r.rows += g.rows
	r.groups = append(r.groups, g)
}

func (r *Reader) readChunk(f field) (c chunk) {
	dictionary := int64(0)
	f.structure(func(f field) {
		switch f.id {
		case 1: // the path of a file
			if f.text() != "" {
				f.fail(unsupported("a column in another file"))
			}
		case 3:
			f.structure(into(map[int16]*int64{4: &c.codec, 5: &c.entries, 7: &c.size, 9: &c.first, 11: &dictionary}))
		case 8:
			f.fail(unsupported("an encrypted column"))
		default:
			f.skip()
		}
	})
	if dictionary > 0 && dictionary < c.first { // some writers say 0 if there is none
		c.first = dictionary
	}
	if c.entries == 0 { // some writers give no offset then
		return chunk{}
	}
	if c.first < int64(len(magic)) || c.size < 0 || c.first > r.size || c.size > r.size-c.first || c.entries < 0 {
		f.fail(damaged("a column of %d entries in %d bytes from byte %d on, in a file of %d", c.entries, c.size, c.first, r.size))
	}
	return c
}

// Next goes to the next row. It returns io.EOF after the last.
func (r *Reader) Next() error {
	r.row++
	for r.group < 0 || r.group < len(r.groups) && r.row >= r.groups[r.group].rows {
		if r.group >= 0 {
			if err := r.ended(); err != nil {
				return err
			}
		}
		if r.group++; r.group == len(r.groups) {
			break
		}
		r.row = 0
		for i, c := range r.wanted {
			c.begin(r.groups[r.group].chunks[i])
		}
	}
	if r.group == len(r.groups) {
		return io.EOF
	}
	r.passed++
	r.items = 0
	return nil
}

// ended checks that columns whose last row was read have no more.
func (r *Reader) ended() error {
	for _, c := range r.wanted {
		if c.in == nil || c.row < r.groups[r.group].rows {
			continue
		}
		more, err := c.load()
		if more {
			err = damaged("a row group has %d rows, but its columns have more", c.row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
