package family

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// row is a key of config.json: the field of Model that it sets, its default, and what it may be. config.json is both
// read and written with it. Keys that mean something only together are one row with functions of its own.
type row struct {
	key   string
	field field // nil: none, the key is only checked
	// def is the value where the key is absent or null: a constant, or a derived from what the rows before have set.
	def   any
	null  any     // the value where the key is null, if that differs from its absence
	only  any     // the only value that is built, or a []string of such values; nil: all are
	never string  // why no value but null is built
	also  []field // are set to the same
	own   bool    // says nothing about other families, see other
	read  func(c *config, m *model.Model)
	write func(m *model.Model, kv map[string]any)
}

// derived is a default that follows from other fields.
type derived func(m *model.Model) int

// changed returns a table whose rows replace those of the same keys, or follow.
func changed(table []row, rows ...row) []row {
	table = slices.Clone(table)
	for _, r := range rows {
		if i := slices.IndexFunc(table, func(old row) bool { return old.key == r.key }); i >= 0 {
			table[i] = r
		} else {
			table = append(table, r)
		}
	}
	return table
}

// without returns a table without the rows of some keys.
func without(table []row, keys ...string) []row {
	return slices.DeleteFunc(slices.Clone(table), func(r row) bool { return slices.Contains(keys, r.key) })
}

// load reads the row's keys into a model.
func (r *row) load(c *config, m *model.Model) {
	switch {
	case r.read != nil:
		r.read(c, m)
		return
	case r.never != "":
		var v any
		if c.get(r.key, &v) {
			c.fail("%s is %v: %w: %s", r.key, v, ErrUnsupported, r.never)
		}
		return
	}
	v := reflect.ValueOf(r.value(c, m))
	if r.field == nil {
		got := reflect.New(v.Type())
		got.Elem().Set(v)
		c.get(r.key, got.Interface())
		r.check(c, got.Elem().Interface())
		return
	}
	if r.size(m) && string(c.raw[r.key]) == "null" {
		c.fail("%s is null, but weights have a size; hint: check that this is the file that was published", r.key)
	}
	for _, f := range append([]field{r.field}, r.also...) {
		into := reflect.ValueOf(f(m)).Elem()
		into.Set(v.Convert(into.Type()))
		c.get(r.key, f(m))
		r.check(c, into.Interface())
	}
}

// size reports whether a row is a size that no model is without.
func (r *row) size(m *model.Model) bool {
	return slices.Contains([]any{&m.Layers, &m.Width, &m.Heads, &m.Vocab}, r.field(m))
}

// value returns what a key is that config.json does not give.
func (r *row) value(c *config, m *model.Model) any {
	v := r.def
	switch {
	case r.null != nil && string(c.raw[r.key]) == "null":
		v = r.null
	case r.field == nil:
		return r.only
	}
	if d, ok := v.(derived); ok {
		return d(m)
	}
	return v
}

// check rejects values that are not built.
func (r *row) check(c *config, got any) {
	switch only := r.only.(type) {
	case nil:
	case []string:
		if !slices.Contains(only, got.(string)) {
			c.fail("%s %q: %w: only %s is supported", r.key, got, ErrUnsupported, strings.Join(only, ", "))
		}
	default:
		if got != only {
			c.fail("%s is %v: %w: only %v is supported", r.key, got, ErrUnsupported, only)
		}
	}
}

// store writes the row's keys. A size of 0 is none, which is null.
func (r *row) store(m *model.Model, kv map[string]any) {
	switch {
	case r.write != nil:
		r.write(m, kv)
	case r.field != nil:
		v := reflect.ValueOf(r.field(m)).Elem().Interface()
		if v == 0 {
			v = nil
		}
		kv[r.key] = v
	}
}

// keys returns the keys that a row reads.
func (r *row) keys() map[string]bool {
	c := &config{used: map[string]bool{}}
	r.load(c, &model.Model{Family: &llama.Family})
	return c.used
}

func add(to, from map[string]any) { maps.Copy(to, from) }

// sameAs is a second key for a field.
func sameAs(key string, f field) row {
	value := func(m *model.Model) int { return *f(m).(*int) }
	return row{
		key: key,
		read: func(c *config, m *model.Model) {
			v := value(m)
			if c.get(key, &v); v != value(m) {
				c.fail("%s is %d: %w: only %d, as for the key whose value it repeats, is supported", key, v, ErrUnsupported, value(m))
			}
		},
		write: func(m *model.Model, kv map[string]any) { kv[key] = value(m) },
	}
}
