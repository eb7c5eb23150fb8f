package parquet

import (
	"encoding/binary"
	"slices"
)

// A writer of files that no library would write.

// member is a field of a structure; its value is an int, a string, a bool, a structure, or a list of ints or structures.
type member struct {
	id    int
	value any
}

type structure []member

// compact appends a structure in Thrift's compact protocol.
func (s structure) compact(dst []byte) []byte {
	last := 0
	for _, m := range s {
		if delta := m.id - last; delta > 0 && delta < 16 {
			dst = append(dst, byte(delta)<<4|kindOf(m.value))
		} else {
			dst = binary.AppendVarint(append(dst, kindOf(m.value)), int64(m.id))
		}
		last = m.id
		dst = appendCompact(dst, m.value)
	}
	return append(dst, 0)
}

func kindOf(v any) byte {
	switch v := v.(type) {
	case int:
		return isI64
	case string:
		return isBinary
	case bool:
		if v {
			return isTrue
		}
		return isFalse
	case structure:
		return isStruct
	default:
		return isList
	}
}

func appendCompact(dst []byte, v any) []byte {
	switch v := v.(type) {
	case int:
		return binary.AppendVarint(dst, int64(v))
	case string:
		return append(binary.AppendUvarint(dst, uint64(len(v))), v...)
	case structure:
		return v.compact(dst)
	case []structure:
		dst = binary.AppendUvarint(append(dst, 0xf0|isStruct), uint64(len(v)))
		for _, s := range v {
			dst = s.compact(dst)
		}
	}
	return dst
}

// Elements of schemas.
func root(children int) structure { return structure{{4, "schema"}, {5, children}} }

func leafOf(name string, stored physical, repetition int) structure {
	return structure{{1, int(stored)}, {3, repetition}, {4, name}}
}

func groupOf(name string, repetition, children int, converted ...int) structure {
	s := structure{{3, repetition}, {4, name}, {5, children}}
	if len(converted) > 0 {
		s = append(s, member{6, converted[0]})
	}
	return s
}

// pages are those of a column.
type pages struct {
	data    []byte
	entries int
	codec   int
}

// page is a data page of version 1: its entries, and a body which is as large as it says unless size is given.
func page(entries, encoding int, body []byte, size ...int) []byte {
	return pageOf(dataPage, len(body), body, member{5, structure{{1, entries}, {2, encoding}, {3, runs}, {4, runs}}}, size...)
}

func dictionary(entries int, body []byte, size ...int) []byte {
	return pageOf(dictionaryPage, len(body), body, member{7, structure{{1, entries}, {2, plain}}}, size...)
}

func pageOf(kind, compressed int, body []byte, m member, size ...int) []byte {
	whole := append(size, len(body))[0]
	return append(structure{{1, kind}, {2, whole}, {3, compressed}, m}.compact(nil), body...)
}

// run is n times a value that takes a byte; levels are runs behind their length.
func run(n int, v byte) []byte { return append(binary.AppendUvarint(nil, uint64(n)<<1), v) }

func levelsOf(runs ...[]byte) []byte {
	all := slices.Concat(runs...)
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(all))), all...)
}

func plainText(text string) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// file is a file with one row group.
func file(schema []structure, rows int, columns ...pages) []byte {
	out := []byte(magic)
	var chunks []structure
	for _, c := range columns {
		chunks = append(chunks, structure{{2, len(out)}, {3, structure{{4, c.codec}, {5, c.entries}, {7, len(c.data)}, {9, len(out)}}}})
		out = append(out, c.data...)
	}
	return finish(out, structure{{1, 2}, {2, schema}, {3, rows}, {4, []structure{{{1, chunks}, {2, len(out)}, {3, rows}}}}})
}

// finish appends the metadata.
func finish(out []byte, metadata structure) []byte {
	footer := metadata.compact(nil)
	out = binary.LittleEndian.AppendUint32(append(out, footer...), uint32(len(footer)))
	return append(out, magic...)
}
