package parquet

import (
	"errors"
	"fmt"
	"slices"
)

// ErrNotSupported marks what is recognised but not read.
var ErrNotSupported = errors.New("not supported yet")

// physical is how values are stored.
type physical int64

const (
	booleans physical = iota
	int32s
	int64s
	int96s
	floats
	doubles
	byteArrays
	fixedArrays
	noValues physical = -1 // a structure has none
)

// element is an element of the schema, as the file has it: a tree in depth-first order.
type element struct {
	name       string
	stored     physical
	fixed      int64 // bytes of a value of fixedArrays
	repetition int64
	children   int64
	converted  int64 // the older annotation; -1: none
	logical    int16 // the newer one, the field of the union LogicalType that is set; 0: none
	unsigned   bool
}

// Values of repetition.
const required, optional, repeated = 0, 1, 2

// refusedConverted and refusedLogical name the annotations of values that have no single form in JSON.
var (
	refusedConverted = map[int64]string{1: "MAP", 2: "MAP", 5: "DECIMAL", 6: "DATE", 7: "TIME", 8: "TIME", 9: "TIMESTAMP", 10: "TIMESTAMP", 20: "BSON", 21: "INTERVAL"}
	refusedLogical   = map[int16]string{2: "MAP", 5: "DECIMAL", 6: "DATE", 7: "TIME", 8: "TIMESTAMP", 13: "BSON", 14: "UUID", 15: "FLOAT16", 16: "VARIANT",
		17: "GEOMETRY", 18: "GEOGRAPHY"}
)

func (e *element) refused() string {
	if what := refusedLogical[e.logical]; what != "" {
		return what
	}
	if e.stored == int96s {
		return "INT96"
	}
	return refusedConverted[e.converted]
}

func (e *element) isList() bool { return e.logical == 3 || e.converted == 3 }

func readElement(f field) element {
	e := element{stored: noValues, converted: -1}
	f.structure(func(f field) {
		switch f.id {
		case 1:
			e.stored = physical(f.int())
		case 2:
			e.fixed = f.int()
		case 3:
			e.repetition = f.int()
		case 4:
			e.name = f.text()
		case 5:
			e.children = f.int()
		case 6:
			e.converted = f.int()
			e.unsigned = e.unsigned || e.converted >= 11 && e.converted <= 14
		case 10:
			f.structure(e.annotation)
		default:
			f.skip()
		}
	})
	return e
}

// annotation reads the field of LogicalType that is set. That of integers says whether they are signed.
func (e *element) annotation(f field) {
	e.logical = f.id
	if f.id != 10 {
		f.skip()
		return
	}
	f.structure(func(f field) {
		if f.id == 2 {
			e.unsigned = !f.bool()
		} else {
			f.skip()
		}
	})
}

// form is how values become JSON.
type form uint8

const (
	object form = iota
	list
	text
	integer
	unsigned
	float
	truth
)

// view is a part of the schema as JSON shows it.
type view struct {
	name    string
	form    form
	refused string    // what in it has no form; "": nothing
	present int       // definition level from which it is not null
	columns []*column // that have its values; at least one
	members []*view   // of an object
	element *view     // of a list
	filled  int       // of a list: definition level from which it has elements
	goesOn  int       // of a list: repetition level of the elements that do not begin it
}

// schema turns elements into views.
type schema struct {
	elements []element // not used yet
	columns  []*column
}

// levels are the repetition and definition level at which something is present.
type levels struct{ rep, def int }

// top returns the columns of a table.
func (s *schema) top() ([]*view, error) {
	root, err := s.take()
	if err != nil {
		return nil, err
	}
	views, err := s.children(root, levels{}, 0)
	if err == nil && len(s.elements) > 0 {
		err = damaged("the schema has %d elements too many", len(s.elements))
	}
	return views, err
}

func (s *schema) take() (element, error) {
	if len(s.elements) == 0 {
		return element{}, damaged("the schema is truncated")
	}
	e := s.elements[0]
	s.elements = s.elements[1:]
	return e, nil
}

func (s *schema) children(e element, at levels, depth int) (views []*view, err error) {
	if depth > maxDepth {
		return nil, damaged("the schema is nested too deeply")
	}
	for range e.children {
		v, err := s.next(at, depth+1)
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return views, nil
}

// next returns the view of the next element, whose parent is present from the given levels on.
func (s *schema) next(at levels, depth int) (*view, error) {
	e, err := s.take()
	if err != nil {
		return nil, err
	}
	switch e.repetition {
	case required:
		return s.content(e, at, depth)
	case optional:
		return s.content(e, levels{at.rep, at.def + 1}, depth)
	case repeated: // a list that is not annotated, and never null
		inside := levels{at.rep + 1, at.def + 1}
		element, err := s.content(e, inside, depth)
		return listOf(e.name, element, at, inside), err
	}
	return nil, damaged("the element %q of the schema has the unknown repetition %d", e.name, e.repetition)
}

// content returns the view of an element that is present from the given levels on.
func (s *schema) content(e element, at levels, depth int) (*view, error) {
	if e.children == 0 {
		return s.leaf(e, at)
	}
	if e.isList() && e.children == 1 && len(s.elements) > 0 && s.elements[0].repetition == repeated {
		return s.list(e, at, depth)
	}
	v := &view{name: e.name, form: object, present: at.def, refused: e.refused()}
	var err error
	if v.members, err = s.children(e, at, depth); err != nil {
		return nil, err
	}
	if len(v.members) == 0 || e.stored != noValues {
		return nil, damaged("the element %q of the schema is neither a structure nor a column", e.name)
	}
	for _, m := range v.members {
		v.columns = append(v.columns, m.columns...)
	}
	return v, nil
}

// list returns the view of an annotated list. It contains a repeated group, whose only member is the element;
// but in files of older writers the group is the element itself. The rules that tell these apart are the
// specification's.
func (s *schema) list(e element, at levels, depth int) (*view, error) {
	group, err := s.take()
	if err != nil {
		return nil, err
	}
	inside := levels{at.rep + 1, at.def + 1}
	older := group.children != 1 || slices.Contains([]string{"array", e.name + "_tuple"}, group.name) ||
		len(s.elements) > 0 && s.elements[0].repetition == repeated
	var element *view
	switch {
	case depth > maxDepth:
		err = damaged("the schema is nested too deeply")
	case older:
		element, err = s.content(group, inside, depth+1)
	default:
		element, err = s.next(inside, depth+1)
	}
	return listOf(e.name, element, at, inside), err
}

func listOf(name string, element *view, at, inside levels) *view {
	if element == nil {
		return nil
	}
	return &view{name: name, form: list, present: at.def, columns: element.columns, element: element, filled: inside.def, goesOn: inside.rep}
}

func (s *schema) leaf(e element, at levels) (*view, error) {
	if e.stored < booleans || e.stored > fixedArrays || e.stored == fixedArrays && (e.fixed < 1 || e.fixed > maxName) {
		return nil, damaged("the column %q is of the type %d with %d bytes", e.name, e.stored, e.fixed)
	}
	c := &column{stored: e.stored, fixed: int(e.fixed), maxRep: at.rep, maxDef: at.def}
	s.columns = append(s.columns, c)
	v := &view{name: e.name, present: at.def, refused: e.refused(), columns: []*column{c}}
	switch e.stored {
	case booleans:
		v.form = truth
	case int32s, int64s:
		if v.form = integer; e.unsigned {
			v.form = unsigned
		}
	case floats, doubles:
		v.form = float
	default:
		v.form = text
	}
	return v, nil
}

// unsupported is the error for what is refused.
func unsupported(what string) error {
	return fmt.Errorf("%s is %w; hint: convert the file to JSONL, or this column to text", what, ErrNotSupported)
}
