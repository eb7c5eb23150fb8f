package parquet

import (
	"fmt"
	"math"
	"strconv"

	"github.com/athanor-llm/athanor/internal/size"
)

// maxItems bounds the elements of the lists in a row.
const maxItems = 1 << 20

var errItems = fmt.Errorf("the lists of a row have more than %d elements; hint: split the row into several", maxItems)

// AppendObject appends a JSON object with those of the named columns that are not null in the current row. Members of
// structures that are null are left out too: a column has one type, so an object gets what only those of other rows have. A
// column may be asked for once per row. Bytes of strings that are not UTF-8 stay as they are.
func (r *Reader) AppendObject(dst []byte, names ...string) ([]byte, error) {
	base := len(dst)
	dst = append(dst, '{')
	for _, name := range names {
		v := r.find(name)
		if v == nil {
			continue
		}
		there, err := r.seek(v)
		if err == nil && there {
			dst = r.appendKey(dst, dst[base+1:], name)
			dst, err = r.append(dst, v, 0)
		}
		if err != nil {
			return dst[:base], fmt.Errorf("column %q: %w", name, err)
		}
		for _, c := range v.columns {
			c.row++
		}
	}
	return append(dst, '}'), nil
}

func (r *Reader) find(name string) *view {
	for _, v := range r.top {
		if v.name == name {
			return v
		}
	}
	return nil
}

// seek goes to the current row in all columns of a view, and passes over it if it is null there.
func (r *Reader) seek(v *view) (there bool, err error) {
	for _, c := range v.columns {
		if err := c.seek(r.row); err != nil {
			return false, err
		}
	}
	if v.columns[0].def >= v.present {
		return true, nil
	}
	return false, v.pass(0)
}

// pass takes an entry of every column of a view, none of which has a value. All must have the same definition
// level, at least base.
func (v *view) pass(base int) error {
	def := v.columns[0].def
	for _, c := range v.columns {
		if _, err := c.load(); err != nil {
			return err
		}
		if c.def != def || def < base {
			return errLevels
		}
		if _, err := c.take(); err != nil {
			return err
		}
	}
	return nil
}

var errLevels = damaged("the levels of its parts do not agree")

// append appends what the current entries say about a view. base is the definition level of what contains it.
func (r *Reader) append(dst []byte, v *view, base int) ([]byte, error) {
	first := v.columns[0]
	if _, err := first.load(); err != nil {
		return dst, err
	}
	switch {
	case int64(len(dst)) > r.most:
		return dst, r.tooLong()
	case first.def < base:
		return dst, errLevels
	case first.def < v.present:
		return append(dst, "null"...), v.pass(base)
	case v.refused != "":
		return dst, unsupported(v.refused)
	case v.form == object:
		return r.appendMembers(dst, v)
	case v.form == list && first.def < v.filled:
		return append(dst, "[]"...), v.pass(v.present)
	case v.form == list:
		return r.appendElements(dst, v)
	}
	value, err := first.take()
	if err != nil {
		return dst, err
	}
	dst = v.appendValue(dst, value, first.stored, r.most)
	if int64(len(dst)) > r.most {
		return dst, r.tooLong()
	}
	return dst, nil
}

func (r *Reader) tooLong() error {
	return fmt.Errorf("the row has more than %s; hint: split it into several documents", size.Format(r.most))
}

func (r *Reader) appendMembers(dst []byte, v *view) (_ []byte, err error) {
	dst = append(dst, '{')
	start := len(dst)
	for _, m := range v.members {
		if null, err := m.null(v.present); err != nil {
			return dst, err
		} else if null {
			continue
		}
		dst = r.appendKey(dst, dst[start:], m.name)
		if dst, err = r.append(dst, m, v.present); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// null passes over the current entry of a member if it is null. base is the definition level of what contains it.
func (v *view) null(base int) (bool, error) {
	first := v.columns[0]
	if _, err := first.load(); err != nil || first.def < base || first.def >= v.present {
		return false, err
	}
	return true, v.pass(base)
}

func (r *Reader) appendElements(dst []byte, v *view) (_ []byte, err error) {
	dst = append(dst, '[')
	for {
		if r.items++; r.items > maxItems {
			return dst, errItems
		}
		if dst, err = r.append(dst, v.element, v.filled); err != nil {
			return dst, err
		}
		more, err := v.more()
		if err != nil {
			return dst, err
		}
		if !more {
			return append(dst, ']'), nil
		}
		dst = append(dst, ',')
	}
}

// more reports whether a list continues, on which all columns have to agree.
func (v *view) more() (more bool, err error) {
	for i, c := range v.columns {
		if _, err := c.load(); err != nil {
			return false, err
		}
		goesOn := c.rep == v.goesOn
		if c.rep > v.goesOn || i > 0 && goesOn != more {
			return false, errLevels
		}
		more = goesOn
	}
	return more, nil
}

// appendKey appends the key of a member after those already there.
func (r *Reader) appendKey(dst, before []byte, name string) []byte {
	if len(before) > 0 {
		dst = append(dst, ',')
	}
	return append(appendString(dst, name, math.MaxInt64), ':')
}

func (v *view) appendValue(dst []byte, x value, stored physical, most int64) []byte {
	switch v.form {
	case truth:
		return strconv.AppendBool(dst, x.bits != 0)
	case integer:
		return strconv.AppendInt(dst, int64(x.bits), 10)
	case unsigned:
		if stored == int32s {
			x.bits = uint64(uint32(x.bits))
		}
		return strconv.AppendUint(dst, x.bits, 10)
	case float:
		if stored == floats {
			return appendFloat(dst, float64(math.Float32frombits(uint32(x.bits))), 32)
		}
		return appendFloat(dst, math.Float64frombits(x.bits), 64)
	default:
		return appendString(dst, x.text, most)
	}
}

// appendFloat appends a number that does not read like an integer.
func appendFloat(dst []byte, x float64, bits int) []byte {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return append(dst, "null"...)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, x, 'g', -1, bits)
	for _, c := range dst[start:] {
		if c == '.' || c == 'e' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// appendString appends a JSON string, but no more than six bytes over most: escapes are longer than what they stand for.
func appendString[T string | []byte](dst []byte, text T, most int64) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := range len(text) {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[start:i]...)
		start = i + 1
		if c == '"' || c == '\\' {
			dst = append(dst, '\\', c)
		} else {
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		if int64(len(dst)) > most {
			return dst
		}
	}
	return append(append(dst, text[start:]...), '"')
}
