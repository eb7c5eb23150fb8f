package jinja

// expr is an expression.
type expr interface {
	eval(m *machine, s *scope) (Value, error)
}

// stmt is a statement.
type stmt interface {
	exec(m *machine, s *scope) (flow, error)
}

// captured is the name of a set block's text, a name that no template can write.
const captured = "{}"

// flow is how a statement ends.
type flow uint8

const (
	onwards flow = iota
	breaking
	continuing
)

type (
	literal struct{ value Value }
	name    struct{ name string }
	// listOf is a list or a tuple.
	listOf struct {
		items []expr
		tuple bool
	}
	dictOf struct{ keys, values []expr }
	unary  struct {
		op string
		x  expr
	}
	binary struct {
		op   string
		x, y expr
	}
	// concat is the chain x ~ y ~ z.
	concat struct{ parts []expr }
	// comparison is the chain first op[0] rest[0] op[1] rest[1] ...
	comparison struct {
		first expr
		ops   []string
		rest  []expr
	}
	// choice is "then if test else other"; other may be nil.
	choice struct{ test, then, other expr }
	// attribute is x.name.
	attribute struct {
		x    expr
		name string
	}
	item  struct{ x, key expr }
	slice struct{ x, from, to, step expr } // each bound may be nil
	call  struct {
		f expr
		arguments
	}
	// filter is x|name(arguments).
	filter struct {
		x    expr
		name string
		f    function
		arguments
	}
	// test is "x is name(arguments)".
	test struct {
		x    expr
		name string
		f    function
		arguments
	}
	arguments struct {
		list  []expr
		names []string // of the named arguments
		named []expr
	}
)

type (
	output  struct{ text Text }
	print   struct{ x expr }
	located struct { // adds the line to errors
		stmt
		line int
	}
	ifStmt struct {
		tests  []expr
		bodies [][]stmt
		other  []stmt
	}
	forStmt struct {
		targets []string
		over    expr
		when    expr // nil: always
		body    []stmt
		other   []stmt
	}
	// setStmt assigns to names, or to the attribute of one.
	setStmt struct {
		targets   []string
		attribute string
		x         expr
	}
	// setBlock assigns x, in which the name captured stands for what a body writes.
	setBlock struct {
		target    string
		attribute string
		body      []stmt
		x         expr
	}
	macroStmt struct {
		name     string
		params   []string
		defaults []expr // of the last params
		body     []stmt
	}
	withStmt struct {
		names  []string
		values []expr
		body   []stmt
	}
	block   struct{ body []stmt } // a generation block
	jumping struct{ how flow }    // break and continue
)
