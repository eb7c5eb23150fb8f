package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// DecodeJSON returns a JSON value whose texts are foreign. Keys keep their order.
func DecodeJSON(text []byte) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decode(d, 0)
	if err == nil && d.More() {
		err = errors.New("there is more after the JSON value")
	}
	return v, err
}

// maxJSON is how deeply JSON values may be nested.
const maxJSON = 500

func decode(d *json.Decoder, depth int) (Value, error) {
	if depth > maxJSON {
		return nil, fmt.Errorf("more than %d levels of JSON", maxJSON)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case nil:
		return None{}, nil
	case bool:
		return t, nil
	case string:
		return Foreign(t), nil
	case json.Number:
		if i, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
			return i, nil
		}
		if !strings.ContainsAny(t.String(), ".eE") {
			return nil, errOverflow
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			return decodeList(d, depth)
		}
	}
	return decodeDict(d, depth)
}

func decodeList(d *json.Decoder, depth int) (Value, error) {
	l := &List{}
	for d.More() {
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	_, err := d.Token()
	return l, err
}

func decodeDict(d *json.Decoder, depth int) (Value, error) {
	out := NewDict()
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		if _, twice := out.Get(k.(string)); twice {
			return nil, fmt.Errorf("the key %q is given twice in one object", k)
		}
		if err := out.put(Foreign(k.(string)), v); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return out, err
}

// toJSON is transformers' filter of that name: json.dumps without escapes for non-ASCII characters.
func toJSON(m *machine, a args) (Value, error) {
	v, err := a.bind(1, "x", "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	if flag(v[1]) || flag(v[4]) || v[3] != nil {
		return nil, errors.New("tojson with ensure_ascii, separators or sort_keys is not supported")
	}
	j := jsonWriter{machine: m, indent: -1}
	if v[2] != nil && !isA[None](v[2]) {
		n, err := intOf(v[2], 0)
		if err != nil || n < 0 || n > 100 {
			return nil, fmt.Errorf("the indent of tojson must be a number from 0 to 100")
		}
		j.indent = int(n)
	}
	if err := j.write(v[0], 0); err != nil {
		return nil, err
	}
	return j.out, nil
}

// jsonWriter writes JSON as Python's json does; indent -1: on one line.
type jsonWriter struct {
	*machine
	out    Text
	indent int
}

func (j *jsonWriter) add(t Text) (err error) {
	j.out, err = j.grow(j.out, t)
	return err
}

func (j *jsonWriter) write(v Value, level int) error {
	if err := j.enter(); err != nil {
		return err
	}
	defer j.leave()
	switch v := v.(type) {
	case Text:
		return j.add(jsonString(v))
	case None:
		return j.add(Own("null"))
	case bool:
		return j.add(Own(strconv.FormatBool(v)))
	case float64:
		text := floatText(v)
		if names := map[string]string{"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}; names[text] != "" {
			text = names[text]
		}
		return j.add(Own(text))
	case int64:
		return j.add(Own(strconv.FormatInt(v, 10)))
	case *List:
		return j.all("[", "]", len(v.Items), level, func(i int) error { return j.write(v.Items[i], level+1) })
	case *Dict:
		return j.all("{", "}", len(v.keys), level, func(i int) error {
			if err := j.key(v.keys[i]); err != nil {
				return err
			}
			return j.write(v.values[i], level+1)
		})
	}
	return fmt.Errorf("a %s cannot be written as JSON", typeName(v))
}

func (j *jsonWriter) key(k Value) error {
	t, ok := k.(Text)
	if !ok {
		s, err := plain(k)
		if err != nil {
			return err
		}
		if other, ok := map[string]string{"True": "true", "False": "false", "None": "null"}[s]; ok {
			s = other
		}
		t = Own(s)
	}
	return j.add(append(jsonString(t), Own(": ")...))
}

// all writes n items between brackets.
func (j *jsonWriter) all(open, end string, n, level int, item func(int) error) error {
	if n == 0 {
		return j.add(Own(open + end))
	}
	line := func(level int) Text { return Own("\n" + strings.Repeat(" ", j.indent*level)) }
	if err := j.add(Own(open)); err != nil {
		return err
	}
	for i := range n {
		switch {
		case j.indent < 0 && i > 0:
			j.out = append(j.out, Own(", ")...)
		case j.indent >= 0:
			if i > 0 {
				j.out = append(j.out, ',')
			}
			if err := j.add(line(level + 1)); err != nil {
				return err
			}
		}
		if err := item(i); err != nil {
			return err
		}
	}
	if j.indent >= 0 {
		if err := j.add(line(level)); err != nil {
			return err
		}
	}
	return j.add(Own(end))
}

// jsonEscapes are the short escapes of JSON.
var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func jsonString(t Text) Text {
	out := append(make(Text, 0, len(t)+2), '"')
	for _, c := range t {
		escape, ok := jsonEscapes[c.Rune()]
		switch {
		case !ok && c.Rune() < ' ':
			escape = fmt.Sprintf(`\u%04x`, c.Rune())
		case !ok:
			out = append(out, c)
			continue
		}
		for _, e := range escape {
			out = append(out, c.withRune(e))
		}
	}
	return append(out, '"')
}
