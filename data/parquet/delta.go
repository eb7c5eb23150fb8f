package parquet

import "encoding/binary"

// deltas reads integers in the encoding DELTA_BINARY_PACKED: blocks of differences from the previous integer,
// minus the least difference in the block; a block is divided into miniblocks, each with a width of its own.
type deltas struct {
	data   []byte // after the current miniblock
	minis  int    // in a block
	size   int    // integers in a miniblock
	left   int64  // integers not yet returned
	last   uint64
	first  bool // last has not been returned either
	least  uint64
	widths []byte // of this block's miniblocks that are not yet begun
	packed []byte // the current miniblock
	width  int
	inMini int // integers in it that are not yet returned
	bit    int
}

// newDeltas reads the header. There may be up to most integers.
func newDeltas(data []byte, most int64) (deltas, error) {
	var header [4]uint64
	for i := range header {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return deltas{}, errValues
		}
		header[i], data = v, data[n:]
	}
	block, minis, count := header[0], header[1], header[2]
	if block == 0 || block > 1<<20 || minis == 0 || block%minis != 0 || block/minis%8 != 0 || count > uint64(most) {
		return deltas{}, damaged("a page declares %d differences in blocks of %d with %d miniblocks", count, block, minis)
	}
	return deltas{data: data, minis: int(minis), size: int(block / minis), left: int64(count), last: zigzag(header[3]), first: true}, nil
}

func zigzag(v uint64) uint64 { return v>>1 ^ -(v & 1) }

func (d *deltas) next() (int64, error) {
	if d.left == 0 {
		return 0, errValues
	}
	if d.left--; d.first {
		d.first = false
		return int64(d.last), nil
	}
	if d.inMini == 0 {
		if err := d.begin(); err != nil {
			return 0, err
		}
	}
	d.inMini--
	d.last += d.least + bits(d.packed, d.bit, d.width)
	d.bit += d.width
	return int64(d.last), nil
}

// begin starts the next miniblock.
func (d *deltas) begin() error {
	if len(d.widths) == 0 {
		least, n := binary.Uvarint(d.data)
		if n <= 0 || len(d.data)-n < d.minis {
			return errValues
		}
		d.least = zigzag(least)
		d.widths, d.data = d.data[n:n+d.minis], d.data[n+d.minis:]
	}
	d.width, d.widths = int(d.widths[0]), d.widths[1:]
	n := d.size / 8 * d.width
	if d.width > 64 || n > len(d.data) {
		return errValues
	}
	d.packed, d.data, d.bit, d.inMini = d.data[:n], d.data[n:], 0, d.size
	return nil
}

// afterIntegers returns what follows the integers. It decodes them from a copy of d: storing them would take more
// memory than their encoding.
func (d deltas) afterIntegers() ([]byte, error) {
	for d.left > 0 {
		if _, err := d.next(); err != nil {
			return nil, err
		}
	}
	return d.data, nil
}

// deltaNumbers are integers as values.
type deltaNumbers struct {
	deltas
	stored physical
}

func (d *deltaNumbers) next() (value, error) {
	v, err := d.deltas.next()
	if d.stored == int32s {
		v = int64(int32(v))
	}
	return value{bits: uint64(v)}, err
}

// deltaArrays are byte arrays after all their lengths: DELTA_LENGTH_BYTE_ARRAY.
type deltaArrays struct {
	lengths deltas
	data    []byte
}

func newDeltaArrays(data []byte, n int64) (*deltaArrays, error) {
	lengths, err := newDeltas(data, n)
	if err != nil {
		return nil, err
	}
	rest, err := lengths.afterIntegers()
	return &deltaArrays{lengths, rest}, err
}

func (d *deltaArrays) next() (value, error) {
	n, err := d.lengths.next()
	if err == nil && (n < 0 || n > int64(len(d.data))) {
		err = damaged("a value of %d bytes in a page with %d left", n, len(d.data))
	}
	if err != nil {
		return value{}, err
	}
	v := d.data[:n:n]
	d.data = d.data[n:]
	return value{text: v}, nil
}

// frontCoded are byte arrays that share a prefix with the one before: DELTA_BYTE_ARRAY.
type frontCoded struct {
	prefixes deltas
	suffixes *deltaArrays
	last     []byte
}

func newFrontCoded(data []byte, n int64) (*frontCoded, error) {
	prefixes, err := newDeltas(data, n)
	if err != nil {
		return nil, err
	}
	rest, err := prefixes.afterIntegers()
	if err != nil {
		return nil, err
	}
	suffixes, err := newDeltaArrays(rest, n)
	return &frontCoded{prefixes: prefixes, suffixes: suffixes}, err
}

func (f *frontCoded) next() (value, error) {
	n, err := f.prefixes.next()
	if err != nil {
		return value{}, err
	}
	suffix, err := f.suffixes.next()
	if err == nil && (n < 0 || n > int64(len(f.last))) {
		err = damaged("a value shares %d bytes with the previous one, which has %d", n, len(f.last))
	}
	if err != nil {
		return value{}, err
	}
	f.last = append(f.last[:n], suffix.text...)
	return value{text: f.last}, nil
}
