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
	table, err := parquet.Open(in, info.Size(), r.most, append([]string{"text"}, otherKeys...)...)
	if err != nil {
		return err
	}
	known := slices.DeleteFunc(table.Names(), func(name string) bool { return name != "text" && !slices.Contains(otherKeys, name) })
	if table.Rows() == 0 {
		r.stats.Empty++
	} else if len(known) == 0 {
		return noText(table.Names())
	}
	var line []byte
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
			line, err = rowObject(line[:0], table, known)
		}
		if err == nil {
			err = r.row(line, &r.stats.Parquet, "row %d", int(table.Row()))
		} else if err = fmt.Errorf("row %d: %w", table.Row(), err); errors.Is(err, errNulls) && r.skipBad {
			r.leaveOut(err)
			err = nil
		}
		if err == nil && bytes.HasPrefix(line, []byte(`{"text"`)) && slices.ContainsFunc(known, func(name string) bool { return slices.Contains(answerKeys, name) }) {
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

// errNulls reports a row without anything to read.
var errNulls = errors.New("all columns that could be read are null")

// rowObject appends the current row as an object: its text or, if that is null, its other known columns.
func rowObject(line []byte, table *parquet.Reader, known []string) ([]byte, error) {
	line, err := table.AppendObject(line, "text")
	if err != nil || string(line) != "{}" {
		return line, err
	}
	if line, err = table.AppendObject(line[:0], otherKeys...); err == nil && string(line) == "{}" {
		err = fmt.Errorf("%w (%s); hint: leave out rows without text, or set on_bad_row: skip", errNulls, strings.Join(known, ", "))
	}
	return line, err
}
