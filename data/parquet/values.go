package parquet

import "encoding/binary"

// value is a value of a column.
type value struct {
	text []byte // of arrays of bytes; valid until the next value
	bits uint64 // of all others; integers with their sign extended
}

// decoder yields the values of a page.
type decoder interface {
	next() (value, error)
}

var errValues = damaged("a page has fewer values than it says")

// Encodings of values.
const (
	plain             = 0
	plainDictionary   = 2 // the older name of dictionaryIndices
	runs              = 3
	deltaPacked       = 5
	deltaLengths      = 6
	deltaStrings      = 7
	dictionaryIndices = 8
	byteStreamSplit   = 9
)

// decoder returns the decoder of a page with at most n values.
func (c *column) decoder(encoding int64, data []byte, n int64) (decoder, error) {
	numbers := c.stored == int32s || c.stored == int64s
	switch {
	case encoding == plain:
		return c.plain(data), nil
	case encoding == plainDictionary || encoding == dictionaryIndices:
		if len(data) == 0 || data[0] > 32 {
			return nil, damaged("indices into a dictionary have no width, or one of more than 32 bits")
		}
		return &indexed{c.dictionary, hybrid{data: data[1:], width: int(data[0])}}, nil
	case encoding == runs && c.stored == booleans:
		if len(data) < 4 {
			return nil, errValues
		}
		return &truths{hybrid{data: data[4:], width: 1}}, nil
	case encoding == deltaPacked && numbers:
		d, err := newDeltas(data, n)
		return &deltaNumbers{d, c.stored}, err
	case encoding == deltaLengths && c.stored == byteArrays:
		return newDeltaArrays(data, n)
	case encoding == deltaStrings && (c.stored == byteArrays || c.stored == fixedArrays):
		return newFrontCoded(data, n)
	case encoding == byteStreamSplit && c.width() > 0:
		return &split{column: c, data: data, value: make([]byte, c.width())}, nil
	}
	return nil, damaged("values of type %d in the encoding %d", c.stored, encoding)
}

// width returns the bytes that each value takes; 0 if that varies, or is one bit.
func (c *column) width() int {
	return [...]int{int32s: 4, int64s: 8, int96s: 12, floats: 4, doubles: 8, fixedArrays: c.fixed}[c.stored]
}

func (c *column) plain(data []byte) decoder {
	switch c.stored {
	case booleans:
		return &truths{hybrid{packed: data, width: 1, left: int64(len(data)) * 8}}
	case byteArrays:
		return &arrays{data}
	default:
		return &numbers{c, data}
	}
}

// arrays are byte arrays, each after its length.
type arrays struct{ data []byte }

func (a *arrays) next() (value, error) {
	if len(a.data) < 4 {
		return value{}, errValues
	}
	n := int64(binary.LittleEndian.Uint32(a.data))
	if n > int64(len(a.data)-4) {
		return value{}, damaged("a value of %d bytes in a page with %d left", n, len(a.data)-4)
	}
	v := a.data[4 : 4+n : 4+n]
	a.data = a.data[4+n:]
	return value{text: v}, nil
}

// numbers are values of equal width.
type numbers struct {
	*column
	data []byte
}

func (d *numbers) next() (value, error) {
	n := d.width()
	if len(d.data) < n {
		return value{}, errValues
	}
	v := d.data[:n:n]
	d.data = d.data[n:]
	return d.fixedValue(v), nil
}

// fixedValue reads a value of c.width() bytes.
func (c *column) fixedValue(b []byte) value {
	switch c.stored {
	case int32s:
		return value{bits: uint64(int32(binary.LittleEndian.Uint32(b)))}
	case floats:
		return value{bits: uint64(binary.LittleEndian.Uint32(b))}
	case int64s, doubles:
		return value{bits: binary.LittleEndian.Uint64(b)}
	default:
		return value{text: b}
	}
}

// truths are booleans: bits, or runs of them.
type truths struct{ hybrid }

func (t *truths) next() (value, error) {
	bit, err := t.hybrid.next()
	return value{bits: uint64(bit)}, err
}

// split are values of equal width, stored as all first bytes, then all second bytes, and so on.
type split struct {
	*column
	data  []byte
	value []byte
	at    int // the next value
}

func (s *split) next() (value, error) {
	n := len(s.data) / len(s.value)
	if s.at >= n {
		return value{}, errValues
	}
	for i := range s.value {
		s.value[i] = s.data[i*n+s.at]
	}
	s.at++
	return s.fixedValue(s.value), nil
}

// indexed are values of a dictionary.
type indexed struct {
	dictionary []value
	indices    hybrid
}

func (d *indexed) next() (value, error) {
	i, err := d.indices.next()
	if err == nil && int64(i) >= int64(len(d.dictionary)) {
		err = damaged("a value refers to entry %d of a dictionary of %d", i, len(d.dictionary))
	}
	if err != nil {
		return value{}, err
	}
	return d.dictionary[i], nil
}
