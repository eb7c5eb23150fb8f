package data

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Rows that are long because their text is.
//
// Approach: the text is decoded and emitted in pieces while it is read. What the row means is decided by appendText, as for others, when it
// has ended and has a stand-in in the place of the text: the text was the document if now the stand-in is. Rows that are long for another
// reason are read whole. Where bad ones are left out, long ones are copied to a temporary file first, and read twice: of what is emitted
// nothing can be taken back.

// longLine is the size in bytes from which a line is not read whole if its text need not be. What one read brings of it is more.
const longLine = pieceSize

// standIn stands for a text, as JSON and decoded.
const standIn, standInText = `"\u0000"`, "\x00"

// longText returns where the text of a row begins of which only the beginning is known, in which it does not end; 0: nowhere.
func longText(begun []byte, names []string) int {
	s, found := lineScanner{line: begun}, len(names)
	if !s.take('{') {
		return 0
	}
	for first := true; ; first = false {
		key, err := s.key(first)
		if err != nil {
			return 0
		}
		name, start := slices.Index(names, key), s.at
		switch {
		case !s.atString():
			if s.skipValue() != nil {
				return 0
			}
		case s.skipString():
			if name >= 0 {
				found = min(found, name)
			}
		case name >= 0 && name <= found:
			return start
		default:
			return 0
		}
	}
}

// long adds the document of a row that lines has begun and that cannot be read whole; why is what lines has said of it.
func (r *reader) long(lines *lineReader, why error) error {
	number, place := lines.lineNumber+1, lines.place()
	switch {
	case why != errLong && !r.skipBad:
		return fmt.Errorf(place+": %w", number, why)
	case why != errLong:
		r.leaveOut(fmt.Errorf(place+": %w", number, why))
		return lines.copyLine(io.Discard)
	case !r.skipBad:
		return r.longRow(lines, &r.stats.JSONL)
	}
	defer collectOften()()
	spool, err := os.CreateTemp("", "athanor-row-*")
	if err != nil {
		return err
	}
	if os.Remove(spool.Name()) != nil { // without a name, a killed process leaves nothing; Windows has no such files
		defer os.Remove(spool.Name())
	}
	defer spool.Close()
	if err := lines.copyLine(spool); err != nil {
		return err
	}
	trial := &reader{ctx: r.ctx, cut: r.cut, emit: func(piece) error { return nil }, most: r.most, want: r.want, labels: r.labels, blind: r.blind, names: r.names}
	if err := trial.spooled(spool, lines, number); err != nil {
		if r.content(err) {
			r.leaveOut(err)
			return nil
		}
		return err
	}
	return r.spooled(spool, lines, number)
}

// spooled adds the document of a row that has been copied from lines.
func (r *reader) spooled(spool *os.File, lines *lineReader, number int) error {
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	again := newLineReader(spool, r.most, lines.long)
	again.lineNumber = number - 1
	if lines.array != nil {
		again.from, again.array = io.MultiReader(spool, strings.NewReader("]")), &nesting{}
	}
	line, err := again.next()
	if err == errLong {
		return r.longRow(again, &r.stats.JSONL)
	}
	if err == nil {
		err = r.object(line, &r.stats.JSONL)
	}
	if err != nil {
		err = fmt.Errorf(lines.place()+": %w", number, err)
	}
	return err
}

// longRow adds the document of the row that lines has begun and that has a longText.
func (r *reader) longRow(lines *lineReader, stats *FormatStats) error {
	number := lines.lineNumber + 1
	begun, _ := lines.more(0)
	at := longText(begun, r.names)
	row := slices.Concat(begun[:at], []byte(standIn))
	lines.take(at + 1)
	if lines.array != nil {
		*lines.array = nesting{depth: 1} // as behind the text
	}
	size, err := r.longString(lines, at+1)
	if err != nil {
		return fmt.Errorf(lines.place()+": %w", number, err)
	}
	rest, err := lines.next()
	if err != nil && err != io.EOF {
		return err
	}
	doc, err := appendText(nil, append(row, rest...), r.names, r.want)
	if err == nil && (string(doc.dst) != standInText || doc.given > 0) {
		err = errors.New("the text is long, and another field says that it is not the document; hint: leave one of them out, or break it into several documents")
	}
	if err == nil && r.want == aLabel {
		doc.tags, err = r.tagsOf(doc.label)
	}
	if err != nil {
		return fmt.Errorf(lines.place()+": %w", number, err)
	}
	if doc.beside {
		stats.Beside++
	}
	r.endDocument(stats, size, ending{tags: doc.tags})
	return nil
}

// longString decodes a string, of which the first byte is the next in lines and has the given offset in its line, and emits it as far as it
// fills pieces. It returns how long the text is.
func (r *reader) longString(lines *lineReader, offset int) (size int64, err error) {
	checked := len(r.text)
	for ended := false; !ended; {
		part, err := lines.more(pieceSize)
		if err != nil {
			return size, err
		}
		s := lineScanner{line: part[:min(len(part), pieceSize)], before: offset}
		known := len(r.text)
		r.text, ended, err = s.appendPart(r.text, len(part) < pieceSize)
		if err != nil {
			return size, err
		}
		lines.take(s.at)
		offset += s.at
		size += int64(len(r.text) - known)
		whole := len(r.text) // without a last character that may be incomplete
		if !ended {
			whole = lastRuneStart(r.text, checked)
		}
		r.stats.InvalidBytes += invalidBytes(r.text[checked:whole])
		checked = whole
		if err := r.drain(&checked); err != nil {
			return size, err
		}
	}
	return size, nil
}

// longestEscape is the bytes of a pair of escapes that are one character.
const longestEscape = len(`\ud83d\ude00`)

// appendPart decodes a part of a string, up to its end or as far as that does not depend on what follows; last says that nothing does.
func (s *lineScanner) appendPart(dst []byte, last bool) (to []byte, ended bool, err error) {
	for {
		dst = s.appendPlain(dst)
		switch {
		case s.at == len(s.line) && last, s.at < len(s.line) && s.line[s.at] == '\n':
			return dst, false, s.fault("the string does not end")
		case s.at == len(s.line):
			return dst, false, nil
		case s.line[s.at] == '"':
			s.at++
			return dst, true, nil
		case s.line[s.at] != '\\':
			return dst, false, s.fault("the string has an unescaped control character")
		case len(s.line)-s.at < longestEscape && !last:
			return dst, false, nil
		}
		if dst, err = s.appendEscape(dst); err != nil {
			return dst, false, err
		}
	}
}
