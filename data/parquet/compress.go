package parquet

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// Codecs with which pages are compressed.
const (
	uncompressed = 0
	snappyBlocks = 1
	gzipped      = 2
	zstandard    = 6
	lz4Raw       = 7
)

var otherCodecs = map[int64]string{3: "LZO", 4: "Brotli", 5: "LZ4 in Hadoop's frames"}

// checkCodec refuses codecs that are not read.
func checkCodec(codec int64) error {
	switch codec {
	case uncompressed, snappyBlocks, gzipped, zstandard, lz4Raw:
		return nil
	}
	what := otherCodecs[codec]
	if what == "" {
		return damaged("the compression codec %d is unknown", codec)
	}
	return fmt.Errorf("compression with %s is %w; hint: write the file with zstd", what, ErrNotSupported)
}

// decompress fills out, whose length is the one that the page declares, and takes no more memory.
func (r *Reader) decompress(codec int64, out, in []byte) (err error) {
	n := 0
	switch codec {
	case snappyBlocks:
		if n, err = snappy.DecodedLen(in); err == nil && n == len(out) {
			_, err = snappy.Decode(out, in)
		}
	case gzipped:
		n, err = gunzip(out, in)
	case zstandard:
		n, err = r.unzstd(out, in)
	case lz4Raw:
		n, err = unlz4(out, in)
	}
	switch {
	case err != nil:
		return damaged("decompressing a page: %v", err)
	case n != len(out):
		return damaged("a page has %d bytes, but declares %d", n, len(out))
	}
	return nil
}

func gunzip(out, in []byte) (int, error) {
	z, err := gzip.NewReader(bytes.NewReader(in))
	if err != nil {
		return 0, err
	}
	n, err := io.ReadFull(z, out)
	if err != nil {
		return n, err
	}
	if more, err := z.Read(make([]byte, 1)); more > 0 || err != io.EOF { // it also verifies the checksum
		return n, fmt.Errorf("more than %d bytes, or a wrong checksum", n)
	}
	return n, nil
}

func (r *Reader) unzstd(out, in []byte) (n int, err error) {
	if r.zstd == nil {
		r.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return 0, err
		}
	}
	whole, err := r.zstd.DecodeAll(in, out[:0:len(out)])
	return len(whole), err
}

// unlz4 decodes an LZ4 block: literals and copies of earlier output, alternately. The last sequence has no
// copy. Source: lz4_Block_format.md of github.com/lz4/lz4.
func unlz4(out, in []byte) (n int, err error) {
	cut := errors.New("the LZ4 data is truncated, or too long")
	length := func(n int) int { // 15 continues in bytes, the last of which is not 255
		for more := n == 15; more && len(in) > 0; in = in[1:] {
			n += int(in[0])
			more = in[0] == 255
		}
		return n
	}
	for len(in) > 0 {
		token := in[0]
		in = in[1:]
		literals := length(int(token >> 4))
		if literals > len(in) || literals > len(out)-n {
			return n, cut
		}
		n += copy(out[n:], in[:literals])
		if in = in[literals:]; len(in) == 0 {
			break
		}
		if len(in) < 2 {
			return n, cut
		}
		back := int(binary.LittleEndian.Uint16(in))
		in = in[2:]
		copies := length(int(token&15)) + 4
		if back == 0 || back > n || copies > len(out)-n {
			return n, cut
		}
		for range copies { // source and destination may overlap
			out[n] = out[n-back]
			n++
		}
	}
	return n, nil
}
