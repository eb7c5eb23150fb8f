// Package jinja renders chat templates: the part of Jinja, with Python's semantics, that
// transformers' apply_chat_template gives to the templates of model folders.
//
//	source --Parse--> Template --Render(variables, now, budget)--> Text
//
// # What it has
//
// Statements: if, for (with else, a trailing if, break, continue), set (also as a block), macro,
// with, raw, generation (Text.Generated). trim_blocks and lstrip_blocks are on. Expressions: all but
// bit formats and calls with stars. Filters, tests, functions and methods: the tables in
// filters.go, tests.go, functions.go and methods.go. What Jinja has beyond that (include,
// extends, call, recursive loops, % formats) is an error that names it, never a different text.
//
// # Who wrote which character
//
// A Text records for each character whether the template wrote it or it came in a variable, and keeps that
// through slices, trims, joins and everything else that a template does to a string. So a user's text that
// looks like a control token can be told from a control token that the template wrote, which no template
// library for Go or Python can do.
//
// # Bounds
//
// A template comes with a model, from strangers. Whatever is evaluated, copied or written uses up part of a
// budget; nesting is bounded too, in source, calls and values. So rendering ends, in bounded memory, with a
// text or an error.
//
// # Known weakness
//
// Upper and lower case are mapped character by character (ß stays ß). Integers have 64 bits. Which characters Python would
// escape in the repr of a list is decided by Go's Unicode tables.
package jinja
