package parquet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Thrift's compact protocol, of which Parquet's metadata is made.
//
// Approach: a structure is a list of fields, each with a number and a type; the reader hands each to a function, which
// takes what it knows in the form it expects and skips the rest. The first error is kept, and ends all loops.
// Source: thrift-compact-protocol.md of github.com/apache/thrift.

// Types of fields. A field that is a boolean has its value in its type.
const (
	isTrue, isFalse              = 1, 2
	isByte, isI16, isI32, isI64  = 3, 4, 5, 6
	isDouble, isBinary, isList   = 7, 8, 9
	isSet, isMap, isStruct, uuid = 10, 11, 12, 13
)

// maxDepth bounds how deeply structures, lists and schemas may be nested.
const maxDepth = 64

type thrift struct {
	in    *bufio.Reader
	err   error // the first
	depth int
}

// field is a field of a structure or an element of a list. Exactly one of its methods is called.
type field struct {
	*thrift
	id   int16 // 0 in a list
	kind byte
}

func (t *thrift) fail(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = damaged("the metadata is truncated")
	}
	if t.err == nil {
		t.err = err
	}
}

func (t *thrift) byte() byte {
	if t.err != nil {
		return 0
	}
	b, err := t.in.ReadByte()
	if err != nil {
		t.fail(err)
	}
	return b
}

func (t *thrift) varint() (v uint64) {
	for shift := 0; shift < 64; shift += 7 {
		b := t.byte()
		if v |= uint64(b&0x7f) << shift; b < 0x80 {
			return v
		}
	}
	t.fail(damaged("a number of more than 64 bits in the metadata"))
	return 0
}

func (t *thrift) zigzag() int64 {
	v := t.varint()
	return int64(v>>1) ^ -int64(v&1)
}

// discard passes over n bytes.
func (t *thrift) discard(n uint64) {
	for n > 0 && t.err == nil {
		part := min(n, 1<<20)
		if _, err := t.in.Discard(int(part)); err != nil {
			t.fail(err)
		}
		n -= part
	}
}

// fields calls each for every field of a structure.
func (t *thrift) fields(each func(field)) {
	if t.depth++; t.depth > maxDepth {
		t.fail(damaged("the metadata is nested too deeply"))
	}
	for id := int16(0); ; {
		head := t.byte()
		if t.err != nil || head == 0 {
			break
		}
		if delta := int16(head >> 4); delta != 0 {
			id += delta
		} else {
			id = int16(t.zigzag())
		}
		if t.err == nil {
			each(field{t, id, head & 15})
		}
	}
	t.depth--
}

// expect reports whether the field has one of the types.
func (f field) expect(kinds ...byte) bool {
	for _, k := range kinds {
		if f.kind == k {
			return f.err == nil
		}
	}
	f.fail(damaged("field %d of the metadata has the type %d", f.id, f.kind))
	return false
}

func (f field) int() int64 {
	switch {
	case !f.expect(isByte, isI16, isI32, isI64):
		return 0
	case f.kind == isByte:
		return int64(int8(f.byte()))
	default:
		return f.zigzag()
	}
}

func (f field) bool() bool { return f.expect(isTrue, isFalse) && f.kind == isTrue }

// maxName bounds the names in metadata, in bytes.
const maxName = 64 << 10

func (f field) text() string {
	if !f.expect(isBinary) {
		return ""
	}
	n := f.varint()
	if n > maxName {
		f.fail(damaged("a name of %d bytes in the metadata", n))
		return ""
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(f.in, text); err != nil {
		f.fail(err)
	}
	return string(text)
}

func (f field) structure(each func(field)) {
	if f.expect(isStruct) {
		f.fields(each)
	}
}

// list calls each for every element of a list, and returns their number. The declared number is not trusted beforehand.
func (f field) list(each func(field)) (n int64) {
	if !f.expect(isList, isSet) {
		return 0
	}
	head := f.byte()
	count := uint64(head >> 4)
	if count == 15 {
		count = f.varint()
	}
	f.elements(count, head&15, each)
	return int64(count)
}

func (t *thrift) elements(count uint64, kind byte, each func(field)) {
	if t.depth++; t.depth > maxDepth {
		t.fail(damaged("the metadata is nested too deeply"))
	}
	for ; count > 0 && t.err == nil; count-- {
		element := field{t, 0, kind}
		if kind == isTrue || kind == isFalse { // here they are bytes
			element.kind = isFalse
			if t.byte() == isTrue {
				element.kind = isTrue
			}
		}
		each(element)
	}
	t.depth--
}

// skip passes over a field that nothing asks for.
func (f field) skip() {
	switch f.kind {
	case isTrue, isFalse:
	case isByte:
		f.byte()
	case isI16, isI32, isI64:
		f.varint()
	case isDouble:
		f.discard(8)
	case uuid:
		f.discard(16)
	case isBinary:
		f.discard(f.varint())
	case isList, isSet:
		f.list(field.skip)
	case isMap:
		f.skipMap()
	case isStruct:
		f.fields(field.skip)
	default:
		f.fail(damaged("field %d of the metadata has the unknown type %d", f.id, f.kind))
	}
}

func (f field) skipMap() {
	count := f.varint()
	if count == 0 {
		return
	}
	kinds := f.byte()
	f.elements(count, kinds>>4, func(key field) {
		key.skip()
		f.elements(1, kinds&15, field.skip)
	})
}

// damaged is the error for a file that does not conform to the format.
func damaged(format string, args ...any) error {
	return fmt.Errorf(format+"; hint: check that the file is complete; copy it again, or write it again", args...)
}

// into returns a function that reads the fields that to lists to where they belong, and skips the others.
func into(to map[int16]*int64) func(field) {
	return func(f field) {
		if n := to[f.id]; n != nil {
			*n = f.int()
		} else {
			f.skip()
		}
	}
}
