package data

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/data/parquet"
)

// rows reads a Parquet file. A row is the JSON object that a line of JSONL would be, without nulls, and is
// treated as one. Where there is a text, the other columns are not read.
func (r *reader) rows(in *os.File) error {
	info, err := in.Stat()
	if err != nil {
		return err
	}
	r.stats.Parquet.Files++
	before := r.read
	table, err := parquet.Open(in, info.Size(), maxPages, slices.Concat(r.names, otherKeys, besideKeys)...)
	if err != nil {
		return err
	}
	known := slices.DeleteFunc(table.Names(), func(name string) bool { return !slices.Contains(r.names, name) && !slices.Contains(otherKeys, name) })
	if table.Rows() == 0 {
		r.stats.Empty++
	} else if len(known) == 0 {
		return noText(table.Names(), r.names)
	}
	var line []byte
	var text bool
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		err := table.Next()
		if err == io.EOF {
			r.read = before + info.Size()
			return nil
		}
		if err == nil {
			line, text, err = rowObject(line[:0], table, r.names, known, r.want)
		}
		if err == nil {
			err = r.tableRow(line, text, int(table.Row()))
			if len(line) > longLine {
				line = nil // else it stays for the whole table
			}
		} else if err = fmt.Errorf("row %d: %w", table.Row(), err); errors.Is(err, errNulls) && r.skipBad {
			r.leaveOut(err)
			err = nil
		}
		if err == nil && text && slices.ContainsFunc(known, func(name string) bool { return slices.Contains(answerKeys, name) }) {
			r.stats.Parquet.Beside++
		}
		if err != nil {
			return err
		}
		r.read = before + int64(float64(info.Size())*float64(table.Row())/float64(table.Rows()))
		if err := r.drain(nil); err != nil {
			return err
		}
	}
}

// tableRow adds the documents of a row that is an object. Of a long text no second copy is made: it is decoded in pieces.
func (r *reader) tableRow(line []byte, text bool, number int) error {
	if text && len(line) > longLine && !r.skipBad {
		lines := newLineReader(bytes.NewReader(line), r.most, func(begun []byte) bool { return longText(begun, r.names) > 0 })
		lines.lineNumber, lines.table = number-1, true
		if _, err := lines.next(); err == errLong {
			defer collectOften()()
			return r.longRow(lines, &r.stats.Parquet)
		}
	}
	return r.row(line, &r.stats.Parquet, "row %d", number)
}

// errNulls reports a row without anything to read.
var errNulls = errors.New("all columns that could be read are null")

// rowObject appends the current row as an object: its text, which is in the first of names that is not null, or its other known
// columns. text says which. Where labels are wanted, it is all of these.
func rowObject(line []byte, table *parquet.Reader, names, known []string, want wanted) (object []byte, text bool, err error) {
	if want == aLabel {
		line, err = table.AppendObject(line[:0], slices.Concat(names, otherKeys, besideKeys)...)
		return line, false, err
	}
	for _, name := range names {
		if line, err = table.AppendObject(line[:0], name); err != nil || string(line) != "{}" {
			return line, true, err
		}
	}
	if line, err = table.AppendObject(line[:0], slices.Concat(otherKeys, besideKeys)...); err == nil && string(line) == "{}" {
		err = fmt.Errorf("%w (%s); hint: leave out rows without text, or set on_bad_row: skip", errNulls, strings.Join(known, ", "))
	}
	return line, false, err
}
