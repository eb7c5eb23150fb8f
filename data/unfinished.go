package data

// Token files that were interrupted.
//
// Approach: reading a corpus is much faster than encoding it, and always yields the same pieces. So a token file that is not complete
// says after each piece how many pieces its tokens are of. A build that is asked to stop, or is killed, leaves this file. The next
// one, which gets its lock, reads all pieces, but encodes only the others.
//
// Example: 90 of 100 GB are encoded when the job's time is over. The next start reads these 90 GB, and encodes 10.
//
// Known weakness: what a power cut leaves is often not whole, and then begun again.

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/internal/filelock"
)

// unfinished is how far a build came, in the place of the file's header.
type unfinished struct {
	Key    string `json:"key"`
	Width  int    `json:"width"`
	Count  int64  `json:"count"`  // tokens
	Tokens uint32 `json:"tokens"` // their checksum
	Pieces int64  `json:"pieces"` // of the corpus that they are of
	Text   uint32 `json:"text"`   // checksum of the text of these pieces
	Bytes  int64  `json:"bytes"`  // of that text
}

// errOtherPieces means that the corpus was read in other pieces than before, so that the build has to begin again.
var errOtherPieces = errors.New("the corpus is in other pieces")

// add counts a piece.
func (u *unfinished) add(text []byte) {
	u.Pieces++
	u.Bytes += int64(len(text))
	u.Text = crc32.Update(u.Text, castagnoli, text)
}

// same reports whether as many pieces as before were of the same text.
func (u *unfinished) same(now *unfinished) bool {
	return u.Pieces == now.Pieces && u.Bytes == now.Bytes && u.Text == now.Text
}

// leave writes how far the build of out came.
func (u *unfinished) leave(out *os.File, h *header) error {
	u.Key, u.Width, u.Count, u.Tokens = hex.EncodeToString(h.key[:]), h.width, h.count, h.checksum
	text, err := json.Marshal(u)
	if err != nil {
		return err
	}
	page := make([]byte, headerSize)
	if copy(page, text) < len(text) {
		return fmt.Errorf("%d bytes do not fit into the header", len(text))
	}
	_, err = out.WriteAt(page, 0)
	return err
}

// goOn takes over the tokens in the file in, if they are whole and of the same key: it copies how far they are to h and
// content, and leaves the file at their end.
func goOn(in *os.File, h *header, content io.Writer) (*unfinished, error) {
	page := make([]byte, headerSize)
	if _, err := in.ReadAt(page, 0); err != nil {
		return nil, err
	}
	end := headerSize
	for end > 0 && page[end-1] == 0 {
		end--
	}
	u := &unfinished{}
	if err := json.Unmarshal(page[:end], u); err != nil {
		return nil, err
	}
	if u.Key != hex.EncodeToString(h.key[:]) || u.Width != 2 && u.Width != 4 || u.Count < 0 || u.Count > 1<<60 {
		return nil, errOtherPieces
	}
	if _, err := in.Seek(headerSize, io.SeekStart); err != nil {
		return nil, err
	}
	sum := crc32.New(castagnoli)
	if _, err := io.CopyN(io.MultiWriter(sum, content), in, u.Count*int64(u.Width)); err != nil {
		return nil, err
	}
	if sum.Sum32() != u.Tokens {
		return nil, errOtherPieces
	}
	h.width, h.count, h.checksum = u.Width, u.Count, u.Tokens
	return u, in.Truncate(headerSize + u.Count*int64(u.Width))
}

// takeOver opens and locks what a build of a token file left that is not under way any more; nil: there is nothing.
func takeOver(dir, name string) *os.File {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), name+".") || !strings.HasSuffix(e.Name(), temporary) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		held, _ := filelock.Try(f)
		own, err := f.Stat()
		there, err2 := os.Stat(f.Name()) // not renamed meanwhile
		if held && err == nil && err2 == nil && os.SameFile(own, there) {
			return f
		}
		f.Close()
	}
	return nil
}
