package parquet

import "encoding/binary"

// hybrid reads the RLE encoding of small integers: runs of one value, and runs of values packed into bits.
// Levels, indices into dictionaries and booleans are stored this way.
type hybrid struct {
	data   []byte // after the current run
	width  int    // bits of a value, at most 32
	left   int64  // values left in the current run
	value  uint32 // of a run of one value
	packed []byte // a packed run; nil: the run is not packed
	bit    int    // in packed
}

func (h *hybrid) next() (uint32, error) {
	for h.left == 0 {
		if err := h.begin(); err != nil {
			return 0, err
		}
	}
	h.left--
	if h.packed == nil {
		return h.value, nil
	}
	v := bits(h.packed, h.bit, h.width)
	h.bit += h.width
	return uint32(v), nil
}

// begin starts the next run.
func (h *hybrid) begin() error {
	head, n := binary.Uvarint(h.data)
	if n <= 0 || head>>1 > 1<<32 {
		return damaged("a run of levels, indices or booleans is truncated")
	}
	h.data = h.data[n:]
	if head&1 == 1 && h.width > 0 { // groups of eight; the last may be cut off
		n := min(int(head>>1)*h.width, len(h.data))
		h.packed, h.data, h.bit = h.data[:n], h.data[n:], 0
		h.left = int64(n * 8 / h.width)
		return nil
	}
	if h.left = int64(head >> 1); head&1 == 1 {
		h.left *= 8
	}
	h.packed, h.value = nil, 0
	size := (h.width + 7) / 8
	if size > len(h.data) {
		return damaged("a run of levels, indices or booleans is truncated")
	}
	for i, b := range h.data[:size] {
		h.value |= uint32(b) << (8 * i)
	}
	h.data = h.data[size:]
	return nil
}

// bits returns width <= 64 bits from bit at on. Bytes are filled from their lowest bit.
func bits(data []byte, at, width int) (v uint64) {
	for got := 0; got < width; {
		shift := (at + got) % 8
		v |= uint64(data[(at+got)/8]>>shift) << got
		got += 8 - shift
	}
	if width < 64 {
		v &= 1<<width - 1
	}
	return v
}
