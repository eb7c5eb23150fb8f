package safetensors

// Reading and printing the header.
//
// Approach: read the declared length only if the file is that long, read the JSON token by token (a map would hide
// duplicate names), then sort the tensors by offset and require that each begins where the previous one ends and that
// the last ends with the file. So one check excludes overlaps, holes and ranges outside the file.
//
// Known weakness: the format has no checksums; a flipped bit in a weight goes unnoticed here (package checkpoint has a
// manifest for that).

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/internal/bounded"
)

const (
	maxHeader   = 100_000_000 // bytes, the reference implementation's limit
	metadataKey = "__metadata__"
)

// entry is a tensor and its place in the data, bytes [begin, end).
type entry struct {
	Info
	begin, end int64
}

// readHeader returns the tensors in file order, the metadata and the offset at which the data begins.
func readHeader(r io.ReaderAt, size int64) (entries []entry, metadata map[string]string, base int64, err error) {
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return nil, nil, 0, fmt.Errorf("%w: %d bytes are too short for a header", ErrCorrupt, size)
	}
	if err := readFull(r, prefix[:], 0); err != nil {
		return nil, nil, 0, err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader || int64(n) > size-8 {
		start := make([]byte, min(size, bounded.LongestBeginning))
		if err := readFull(r, start, 0); err != nil {
			return nil, nil, 0, err
		}
		if is, hint := bounded.Begins(start, false); is != "" {
			return nil, nil, 0, fmt.Errorf("%w: it is %s; hint: %s", ErrCorrupt, is, hint)
		}
	}
	switch {
	case n > maxHeader:
		return nil, nil, 0, fmt.Errorf("%w: the header has %d bytes, the limit is %d", ErrCorrupt, n, maxHeader)
	case int64(n) > size-8:
		return nil, nil, 0, fmt.Errorf("%w: the header has %d bytes and the whole file %d: is the file truncated?", ErrCorrupt, n, size)
	}
	text := make([]byte, n)
	if err := readFull(r, text, 8); err != nil {
		return nil, nil, 0, err
	}
	base = 8 + int64(n)
	entries, metadata, err = parseHeader(text)
	if err == nil {
		err = checkPlaces(entries, size-base)
	}
	if err != nil {
		return nil, nil, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return entries, metadata, base, nil
}

func parseHeader(text []byte) (entries []entry, metadata map[string]string, err error) {
	if len(text) == 0 || text[0] != '{' {
		return nil, nil, fmt.Errorf("the header is not a JSON object")
	}
	if !utf8.Valid(text) {
		return nil, nil, fmt.Errorf("the header is not UTF-8")
	}
	dec := newDecoder(text)
	err = object(dec, func(name string) error {
		if name == metadataKey {
			metadata, err = parseStrings(dec)
			return err
		}
		e, err := parseEntry(dec, name)
		entries = append(entries, e)
		return err
	})
	if err == nil {
		err = onlySpace(dec)
	}
	return entries, metadata, err
}

// checkPlaces sorts the entries by offset and checks that they tile [0, size).
func checkPlaces(entries []entry, size int64) error {
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	at := int64(0)
	for _, e := range entries {
		if err := e.check(); err != nil {
			return err
		}
		switch {
		case e.begin > at:
			return fmt.Errorf("tensor %.80q: there is a gap of %d bytes before its data", e.Name, e.begin-at)
		case e.begin < at:
			return fmt.Errorf("tensor %.80q: its data overlaps that of the previous tensor", e.Name)
		case e.end > size:
			return fmt.Errorf("tensor %.80q: its data ends at byte %d of the data, which has %d: is the file truncated?", e.Name, e.end, size)
		case e.end-e.begin != e.Bytes():
			return fmt.Errorf("tensor %.80q: it has %d bytes of data for %s%v", e.Name, e.end-e.begin, e.DType, e.Shape)
		}
		at = e.end
	}
	if at != size {
		return fmt.Errorf("there are %d bytes after the last tensor", size-at)
	}
	return nil
}

func parseEntry(dec *json.Decoder, name string) (entry, error) {
	e := entry{Info: Info{Name: name}, begin: -1}
	haveShape := false
	err := object(dec, func(key string) (err error) {
		switch key {
		case "dtype":
			var s string
			s, err = stringToken(dec)
			e.DType = DType(s)
		case "shape":
			haveShape = true
			e.Shape, err = parseInts(dec)
		case "data_offsets":
			var at []int
			if at, err = parseInts(dec); err == nil && (len(at) != 2 || at[0] > at[1]) {
				err = fmt.Errorf("data_offsets is %.20v, not [begin, end]", at)
			}
			if err == nil {
				e.begin, e.end = int64(at[0]), int64(at[1])
			}
		default:
			err = fmt.Errorf("unknown key %.80q", key)
		}
		return err
	})
	if err == nil && (e.DType == "" || !haveShape || e.begin < 0) {
		err = fmt.Errorf("dtype, shape or data_offsets is missing")
	}
	if err != nil {
		err = fmt.Errorf("tensor %.80q: %w", name, err)
	}
	return e, err
}

// printHeader returns length and header, padded with spaces so that the data begins at a multiple of 8.
func printHeader(metadata map[string]string, entries []entry) []byte {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	if len(metadata) > 0 {
		b.WriteString(quote(metadataKey) + ":{")
		for i, k := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quote(k) + ":" + quote(metadata[k]))
		}
		b.WriteByte('}')
	}
	for i, e := range entries {
		if i > 0 || len(metadata) > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `%s:{"dtype":%s,"shape":[`, quote(e.Name), quote(string(e.DType)))
		for j, d := range e.Shape {
			if j > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Itoa(d))
		}
		fmt.Fprintf(&b, `],"data_offsets":[%d,%d]}`, e.begin, e.end)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes()
}

// quote prints a JSON string; names that are not UTF-8 have been rejected before.
func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func readFull(r io.ReaderAt, p []byte, at int64) error {
	n, err := r.ReadAt(p, at)
	switch {
	case n == len(p):
		return nil
	case err == io.EOF:
		return fmt.Errorf("%w: the file ends at byte %d, while %d bytes were being read from byte %d on", ErrCorrupt, at+int64(n), len(p), at)
	}
	return err
}
