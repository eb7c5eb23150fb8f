package data

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/size"
)

// Compressed files.
//
// Approach: a stream of bytes is decompressed between the file and whatever reads its format, so formats need
// not know about it. Files are never decompressed as a whole: a file of kilobytes may hold terabytes. Progress
// counts compressed bytes, since their total is known.

// packing is how a file is compressed as a whole.
type packing uint8

const (
	plain packing = iota
	gzipped
	zstandard
)

// packings lists what is read: the extension after that of the format, and how compressed data begins.
var packings = [...]struct{ name, extension, magic string }{
	gzipped:   {"gzip", ".gz", "\x1f\x8b"},
	zstandard: {"zstd", ".zst", "\x28\xb5\x2f\xfd"},
}

func (p packing) String() string { return packings[p].name }

// packingOf returns how the file of that name is compressed, and its name without the extension that says so.
func packingOf(name string) (packing, string) {
	for p := gzipped; int(p) < len(packings); p++ {
		if rest, is := strings.CutSuffix(name, packings[p].extension); is {
			return p, rest
		}
	}
	return plain, name
}

// refuseOther returns an error if text begins as what is not text does.
func refuseOther(start []byte) error {
	if is, hint := bounded.Begins(start, true); is != "" {
		return fmt.Errorf("it begins like %s, not like text; hint: %s", is, hint)
	}
	for _, p := range packings[gzipped:] {
		if strings.HasPrefix(string(start), p.magic) {
			return fmt.Errorf("it begins like %s data, not like text: it is compressed without %s at the end of its name, or twice; "+
				"hint: rename or decompress it", p.name, p.extension)
		}
	}
	return nil
}

// maxWindow is how far a zstd stream may refer back, in bytes, all of which are in memory: what the program
// zstd accepts without being asked for more. 2 MiB is usual, 128 MiB the most without --long.
const maxWindow = 128 << 20

// errTooWide reports a window above maxWindow.
var errTooWide = fmt.Errorf("its window is larger than %s; hint: compress it again without --long: zstd -dc --long=31 OLD.zst | zstd -o NEW.zst", size.Format(maxWindow))

// unpacker is a stream of decompressed bytes.
type unpacker struct {
	io.Reader
	packing packing
	content func(error) bool // is it an error of what is in the file?
	close   func()           // nil: there is nothing to free
}

// unpack returns the decompressed content of a file that from reads. Several gzip members or zstd frames are
// read as one, with their checksums verified. The caller closes it.
func (r *reader) unpack(p packing, from io.Reader) (*unpacker, error) {
	u := &unpacker{Reader: from, packing: p, content: r.content}
	switch p {
	case gzipped:
		z, err := gzip.NewReader(from)
		if err != nil {
			return nil, u.explain(err)
		}
		u.Reader = z
	case zstandard:
		in := bufio.NewReader(from)
		if _, err := in.Peek(4); err != nil { // the decoder would mistake fewer bytes for the end of the previous frame
			return nil, u.explain(err)
		}
		// For a stream, the limit applies to windows, and to frames that are a single window.
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, u.explain(err)
		}
		u.Reader, u.close = z, z.Close
	}
	return u, nil
}

func (u *unpacker) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if err != nil && err != io.EOF && u.packing != plain {
		err = u.explain(err)
	}
	return n, err
}

// explain says what a decompressor's error means for the file. System errors pass unchanged.
func (u *unpacker) explain(err error) error {
	if err == io.EOF { // before the first byte
		err = io.ErrUnexpectedEOF
	}
	switch {
	case !u.content(err):
		return err
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		err = errTooWide
	case errors.Is(err, zstd.ErrUnknownDictionary):
		err = fmt.Errorf("compression with a dictionary is %w; hint: decompress the file", ErrNotSupported)
	default:
		err = fmt.Errorf("%w; hint: check that the file is complete, and compressed", err)
	}
	return fmt.Errorf("%v: %w", u.packing, err)
}

// Close frees the decompressor's memory; it leaves the file open.
func (u *unpacker) Close() {
	if u.close != nil {
		u.close()
	}
}
