package parquet

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/athanor-llm/athanor/internal/size"
)

// column is a leaf of the schema, and how far it has been read in the current row group.
type column struct {
	stored         physical
	fixed          int // bytes of a value of fixedArrays
	maxRep, maxDef int
	wanted         bool

	file       *Reader
	chunk      chunk         // its pages in the current row group
	in         *bufio.Reader // of them; nil: not begun
	row        int64         // rows passed
	unread     int64         // entries in pages not yet begun
	inPage     int64         // entries after the current one in its page
	reps, defs hybrid
	page       []byte  // of the current page; the memory is kept for the next one
	data       []byte  // the values in it
	encoding   int64   // of these
	values     decoder // nil: none is read yet
	store      []byte  // of the dictionary
	dictionary []value // nil: none is read yet

	rep, def int  // levels of the current entry; 0 after the last
	loaded   bool // there is a current entry
}

// chunk is where the pages of a column in a row group are.
type chunk struct {
	first, size int64 // bytes
	entries     int64
	codec       int64
}

// begin goes to the beginning of a row group.
func (c *column) begin(chunk chunk) {
	c.file.held -= int64(len(c.dictionary)) * valueSize
	c.chunk, c.in = chunk, nil
	c.row, c.unread, c.inPage = 0, chunk.entries, 0
	c.dictionary, c.values, c.loaded = nil, nil, false
}

// load goes to the next entry, unless the current one has not been taken yet. ok is false at the end of the row group.
func (c *column) load() (ok bool, err error) {
	for !c.loaded && c.inPage == 0 {
		if c.unread == 0 {
			c.rep, c.def = 0, 0
			return false, nil
		}
		if err := c.nextPage(); err != nil {
			return false, err
		}
	}
	if c.loaded {
		return true, nil
	}
	if c.rep, err = level(&c.reps, c.maxRep); err == nil {
		c.def, err = level(&c.defs, c.maxDef)
	}
	c.inPage--
	c.loaded = err == nil
	return err == nil, err
}

func level(h *hybrid, most int) (int, error) {
	if most == 0 {
		return 0, nil
	}
	v, err := h.next()
	if err == nil && int64(v) > int64(most) {
		err = damaged("a level is %d, above the maximum of %d", v, most)
	}
	return int(v), err
}

// take returns the value of the current entry, if it has one, and finishes with the entry.
func (c *column) take() (v value, err error) {
	c.loaded = false
	if c.def < c.maxDef {
		return value{}, nil
	}
	if c.values == nil {
		if c.values, err = c.decoder(c.encoding, c.data, c.inPage+1); err != nil {
			return value{}, err
		}
	}
	return c.values.next()
}

// seek goes to the first entry of a row, which must not have been passed.
func (c *column) seek(row int64) error {
	if c.row > row {
		panic("parquet: a column is asked for twice in a row")
	}
	for ; ; c.row++ {
		switch ok, err := c.load(); {
		case err != nil:
			return err
		case !ok:
			return damaged("the data ends before the row group does")
		case c.rep != 0:
			return damaged("a row begins within a list")
		case c.row == row:
			return nil
		}
		for n, again := 0, true; again; again = c.rep > 0 {
			if n++; n > maxItems+1 { // as for rows that are read: a run of levels is short, but takes its time
				return errItems
			}
			if _, err := c.take(); err != nil {
				return err
			}
			if _, err := c.load(); err != nil {
				return err
			}
		}
	}
}

// Types of pages.
const dataPage, dictionaryPage, dataPageV2 = 0, 2, 3

// header is the header of a page.
type header struct {
	kind             int64
	size, compressed int64 // bytes
	checksum         uint32
	checked          bool // there is a checksum
	entries          int64
	encoding         int64
	levelEncodings   [2]int64 // of definitions and repetitions, in a page of version 1
	repetitions      int64    // bytes of levels in a page of version 2, which are not compressed
	definitions      int64
	plain            bool // a page of version 2 is not compressed
}

func (c *column) header() (h header, err error) {
	t := &thrift{in: c.in}
	h.levelEncodings = [2]int64{runs, runs}
	t.fields(func(f field) {
		switch f.id {
		case 1:
			h.kind = f.int()
		case 2:
			h.size = f.int()
		case 3:
			h.compressed = f.int()
		case 4:
			h.checksum, h.checked = uint32(f.int()), true
		case 5:
			f.structure(into(map[int16]*int64{1: &h.entries, 2: &h.encoding, 3: &h.levelEncodings[0], 4: &h.levelEncodings[1]}))
		case 7:
			f.structure(into(map[int16]*int64{1: &h.entries, 2: &h.encoding}))
		case 8:
			others := into(map[int16]*int64{1: &h.entries, 4: &h.encoding, 5: &h.definitions, 6: &h.repetitions})
			f.structure(func(f field) {
				if f.id == 7 {
					h.plain = !f.bool()
				} else {
					others(f)
				}
			})
		default:
			f.skip()
		}
	})
	levels := [2]int64{h.repetitions, h.definitions}
	switch {
	case t.err != nil:
		return h, t.err
	case max(h.size, h.entries) > math.MaxInt32: // in the format they have 32 bits
		return h, damaged("a page declares %d entries in %d bytes", h.entries, h.size)
	case min(h.size, h.compressed, h.entries, levels[0], levels[1]) < 0 || h.compressed > c.chunk.size ||
		levels[0] > h.size || levels[1] > h.size-levels[0] || levels[0]+levels[1] > h.compressed:
		return h, damaged("a page of %d bytes takes %d compressed in a column of %d, and its levels take %d", h.size, h.compressed, c.chunk.size, levels)
	}
	return h, nil
}

// nextPage reads a page: a dictionary, entries, or one to pass over.
func (c *column) nextPage() error {
	if c.in == nil {
		if err := checkCodec(c.chunk.codec); err != nil {
			return err
		}
		c.in = bufio.NewReader(io.NewSectionReader(c.file.in, c.chunk.first, c.chunk.size))
	}
	h, err := c.header()
	if err != nil {
		return err
	}
	switch h.kind {
	case dictionaryPage:
		return c.readDictionary(&h)
	case dataPage, dataPageV2:
		if h.entries > c.unread {
			return damaged("a page of %d entries where only %d are left", h.entries, c.unread)
		}
		if c.page, err = c.body(&h, c.page); err != nil {
			return err
		}
		c.unread, c.inPage = c.unread-h.entries, h.entries
		c.data, c.encoding, c.values = c.page, h.encoding, nil
		return c.divide(&h)
	}
	_, err = c.in.Discard(int(h.compressed))
	return cutOff(err)
}

// divide takes the levels from the front of the page. Those of a page of version 1 follow their length.
func (c *column) divide(h *header) (err error) {
	lengths := [2]int64{h.repetitions, h.definitions}
	for i, most := range []int{c.maxRep, c.maxDef} {
		n := lengths[i]
		if h.kind == dataPage && most > 0 {
			if h.levelEncodings[1-i] != runs {
				return unsupported("the encoding BIT_PACKED of levels")
			}
			if len(c.data) < 4 {
				return errValues
			}
			n = int64(binary.LittleEndian.Uint32(c.data))
			c.data = c.data[4:]
		}
		if n > int64(len(c.data)) {
			return damaged("%d bytes of levels in a page with only %d", n, len(c.data))
		}
		width := 0
		for 1<<width <= most {
			width++
		}
		*[]*hybrid{&c.reps, &c.defs}[i] = hybrid{data: c.data[:n], width: width}
		c.data = c.data[n:]
	}
	return nil
}

// valueSize is the memory that a value takes, without its text.
const valueSize = 32

func (c *column) readDictionary(h *header) (err error) {
	if c.dictionary != nil {
		return damaged("two dictionaries in a row group")
	}
	if c.store, err = c.body(h, c.store); err != nil {
		return err
	}
	// A value takes at least this many bytes of the page, and much more of memory.
	least := int64(4)
	if n := c.width(); n > 0 {
		least = int64(n)
	}
	if c.stored == booleans || h.entries > int64(len(c.store))/least {
		return damaged("a dictionary of %d values in %d bytes", h.entries, len(c.store))
	}
	if err := c.file.hold(h.entries * valueSize); err != nil { // until the next row group begins
		return err
	}
	c.dictionary = make([]value, h.entries)
	values := c.plain(c.store)
	for i := range c.dictionary {
		if c.dictionary[i], err = values.next(); err != nil {
			return err
		}
	}
	return nil
}

// body reads a page after its header. It uses the memory of into if that is large enough.
func (c *column) body(h *header, into []byte) ([]byte, error) {
	r := c.file
	into, err := r.room(into, h.size)
	if err != nil {
		return into[:0], err
	}
	raw := into
	direct := h.plain || c.chunk.codec == uncompressed
	switch {
	case direct && h.size != h.compressed:
		err = damaged("an uncompressed page of %d bytes takes %d in the file", h.size, h.compressed)
	case !direct:
		r.raw, err = r.room(r.raw, h.compressed)
		raw = r.raw
	}
	if err != nil {
		return into, err
	}
	if _, err := io.ReadFull(c.in, raw); err != nil {
		return into, cutOff(err)
	}
	if h.checked && crc32.ChecksumIEEE(raw) != h.checksum {
		return into, damaged("the checksum of a page is wrong")
	}
	if levels := h.repetitions + h.definitions; !direct {
		copy(into, raw[:levels])
		if h.size > levels {
			err = r.decompress(c.chunk.codec, into[levels:], raw[levels:])
		}
	}
	return into, err
}

// room returns a buffer of n bytes, the given one if it is large enough.
func (r *Reader) room(b []byte, n int64) ([]byte, error) {
	if n <= int64(cap(b)) {
		return b[:n], nil
	}
	if err := r.hold(n - int64(cap(b))); err != nil {
		return b, err
	}
	return make([]byte, n), nil
}

// hold counts memory that is allocated.
func (r *Reader) hold(n int64) error {
	if r.held+n > r.most {
		return fmt.Errorf("the pages take more than %s of memory at a time; hint: write the file with smaller pages", size.Format(r.most))
	}
	r.held += n
	return nil
}

// cutOff turns the end of a file into an error that says so.
func cutOff(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return damaged("the data is truncated")
	}
	return err
}
