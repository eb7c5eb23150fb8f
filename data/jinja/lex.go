package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The lexer.
//
// Approach: text and tags alternate. Text is trimmed as the tags on either side ask: a minus removes all white
// space, lstrip_blocks the blanks between a line's start and a statement or comment, trim_blocks the line break
// after one. Inside a tag there are names, numbers, strings and operators; a closing delimiter counts only
// outside brackets, so {{ {'a': {}} }} is one tag.

// kind is what a token is.
type kind uint8

const (
	kindEnd   kind = iota // of the source
	kindText              // outside tags
	kindPrint             // {{
	kindTag               // {%
	kindClose             // }} or %}
	kindName
	kindString
	kindInt
	kindFloat
	kindOp
)

// token is a piece of the source. line counts from 1.
type token struct {
	kind kind
	text string // of strings without quotes and with escapes resolved
	line int
}

// is reports whether the token is an operator or a name.
func (t token) is(text string) bool {
	return (t.kind == kindOp || t.kind == kindName) && t.text == text
}

// String names the token for messages.
func (t token) String() string {
	switch t.kind {
	case kindEnd:
		return "the end of the template"
	case kindText:
		return "text"
	case kindClose:
		return "the end of the tag"
	}
	return fmt.Sprintf("%.40q", t.text)
}

// Error is an error at a line of a template.
type Error struct {
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

func faultAt(line int, format string, args ...any) error {
	return &Error{line, fmt.Errorf(format, args...)}
}

type lexer struct {
	source    string
	at        int
	line      int
	starting  bool // a line starts here: what came before was a line break of the source
	tokens    []token
	brackets  []byte // open ones, inside a tag
	closingAs string // "}}" or "%}"
}

// lex cuts a source into tokens. Line breaks of all systems count as "\n", and the last one
// of the source is dropped.
func lex(source string) ([]token, error) {
	if !utf8.ValidString(source) {
		return nil, fmt.Errorf("the template is not UTF-8")
	}
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{source: strings.TrimSuffix(source, "\n"), line: 1, starting: true}
	for l.at < len(l.source) {
		if err := l.outside(); err != nil {
			return nil, err
		}
	}
	return append(l.tokens, token{kindEnd, "", l.line}), nil
}

// advance moves on by n bytes.
func (l *lexer) advance(n int) {
	l.line += strings.Count(l.source[l.at:l.at+n], "\n")
	l.at += n
}

func (l *lexer) emit(k kind, text string) { l.tokens = append(l.tokens, token{k, text, l.line}) }

// nextTag returns the offset of the next tag's start from l.at on, or that of the end.
func (l *lexer) nextTag() int {
	for i := l.at; i+1 < len(l.source); i++ {
		if l.source[i] == '{' && strings.IndexByte("{%#", l.source[i+1]) >= 0 {
			return i
		}
	}
	return len(l.source)
}

// outside reads text, and the tag after it.
func (l *lexer) outside() error {
	open := l.nextTag()
	text := l.source[l.at:open]
	if open == len(l.source) {
		l.emit(kindText, text)
		l.at = open
		return nil
	}
	sign := byte(0)
	if open+2 < len(l.source) && strings.IndexByte("-+", l.source[open+2]) >= 0 {
		sign = l.source[open+2]
	}
	l.emit(kindText, l.trim(text, sign, l.source[open+1] != '{'))
	l.advance(len(text))
	second := l.source[open+1]
	l.advance(2)
	if sign != 0 {
		l.advance(1)
	}
	switch second {
	case '#':
		end := strings.Index(l.source[l.at:], "#}")
		if end < 0 {
			return faultAt(l.line, "a comment is not closed; hint: end it with #}")
		}
		sign := byte(0)
		if end > 0 {
			sign = l.source[l.at+end-1]
		}
		l.advance(end + 2)
		l.skipTrimmed(sign, true)
		return nil
	case '{':
		l.closingAs = "}}"
		l.emit(kindPrint, "{{")
	default:
		if raw, err := l.raw(); raw || err != nil {
			return err
		}
		l.closingAs = "%}"
		l.emit(kindTag, "{%")
	}
	return l.inside()
}

// trim returns text before a tag.
func (l *lexer) trim(text string, sign byte, statement bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, space)
	case sign == 0 && statement:
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.starting) && strings.TrimFunc(text[start:], space) == "" {
			return text[:start]
		}
	}
	return text
}

// skipTrimmed skips what a tag's end removes from the text after it.
func (l *lexer) skipTrimmed(sign byte, statement bool) {
	first := l.at
	switch rest := l.source[l.at:]; {
	case sign == '-':
		l.advance(len(rest) - len(strings.TrimLeftFunc(rest, space)))
	case sign != '+' && statement && strings.HasPrefix(rest, "\n"):
		l.advance(1)
	}
	l.starting = l.at > first && l.source[l.at-1] == '\n'
}

// word matches a tag's only word and its end at offset from, and returns their length and the sign of the end.
func (l *lexer) word(from int, name string) (length int, sign byte, ok bool) {
	rest := l.source[from:]
	at := len(rest) - len(strings.TrimLeftFunc(rest, space))
	if !strings.HasPrefix(rest[at:], name) {
		return 0, 0, false
	}
	at += len(name)
	at += len(rest[at:]) - len(strings.TrimLeftFunc(rest[at:], space))
	if at < len(rest) && strings.IndexByte("-+", rest[at]) >= 0 {
		sign = rest[at]
		at++
	}
	return at + 2, sign, strings.HasPrefix(rest[at:], "%}")
}

// raw reads {% raw %} text {% endraw %}, if that is what follows "{%".
func (l *lexer) raw() (bool, error) {
	n, sign, ok := l.word(l.at, "raw")
	if !ok || sign == '+' {
		return false, nil
	}
	l.advance(n)
	if l.starting = false; sign == '-' {
		l.skipTrimmed(sign, true)
	}
	for open := l.at; ; open++ {
		i := strings.Index(l.source[open:], "{%")
		if i < 0 {
			return true, faultAt(l.line, "{%% raw %%} without {%% endraw %%}")
		}
		open += i
		inner, before := open+2, byte(0)
		if inner < len(l.source) && strings.IndexByte("-+", l.source[inner]) >= 0 {
			before = l.source[inner]
			inner++
		}
		n, sign, ok := l.word(inner, "endraw")
		if !ok {
			continue
		}
		text := l.source[l.at:open]
		l.emit(kindText, l.trim(text, before, true))
		l.advance(inner + n - l.at)
		l.skipTrimmed(sign, true)
		return true, nil
	}
}

// inside reads the tokens of a tag and its end.
func (l *lexer) inside() error {
	l.brackets = l.brackets[:0]
	for {
		rest := l.source[l.at:]
		rest = strings.TrimLeftFunc(rest, space)
		l.advance(len(l.source) - l.at - len(rest))
		if rest == "" {
			return faultAt(l.line, "a tag is not closed; hint: end it with %s", l.closingAs)
		}
		if len(l.brackets) == 0 {
			sign := byte(0)
			if strings.IndexByte("-+", rest[0]) >= 0 {
				sign = rest[0]
			}
			end := l.closingAs
			if sign == '-' || sign == '+' && end == "%}" {
				end = string(sign) + end
			}
			if strings.HasPrefix(rest, end) {
				l.emit(kindClose, end)
				l.advance(len(end))
				l.skipTrimmed(sign, l.closingAs == "%}")
				return nil
			}
		}
		if err := l.token(rest); err != nil {
			return err
		}
	}
}

// operators, longest first.
var operators = strings.Fields("// ** == != >= <= + - / * % ~ [ ] ( ) { } > < = . : | , ;")

// token reads a token at the beginning of rest, which is not empty.
func (l *lexer) token(rest string) error {
	r, _ := utf8.DecodeRuneInString(rest)
	switch {
	case r == '_' || unicode.IsLetter(r):
		n := strings.IndexFunc(rest, func(r rune) bool {
			return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r)
		})
		if n < 0 {
			n = len(rest)
		}
		l.emit(kindName, rest[:n])
		l.advance(n)
		return nil
	case r >= '0' && r <= '9':
		l.number(rest)
		return nil
	case r == '"' || r == '\'':
		return l.quoted(rest)
	}
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			return l.operator(op)
		}
	}
	return faultAt(l.line, "unexpected character %q in a tag", r)
}

// operator reads an operator, and pairs brackets.
func (l *lexer) operator(op string) error {
	if i := strings.Index("([{", op); i >= 0 {
		l.brackets = append(l.brackets, ")]}"[i])
	} else if strings.Contains(")]}", op) {
		n := len(l.brackets)
		if n == 0 || l.brackets[n-1] != op[0] {
			return faultAt(l.line, "%q closes nothing", op)
		}
		l.brackets = l.brackets[:n-1]
	}
	l.emit(kindOp, op)
	l.advance(len(op))
	return nil
}

// number reads an integer or a float; a point must have digits on both sides, and no point may precede the
// number, as in loop.0.
func (l *lexer) number(rest string) {
	digits := func(from int) int {
		for from < len(rest) && (rest[from] >= '0' && rest[from] <= '9' || rest[from] == '_') {
			from++
		}
		return from
	}
	n, k := digits(0), kindInt
	if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' && !l.behindPoint() {
		n, k = digits(n+1), kindFloat
	}
	if n < len(rest) && rest[n]|0x20 == 'e' && !l.behindPoint() {
		from := n + 1
		if from < len(rest) && strings.IndexByte("+-", rest[from]) >= 0 {
			from++
		}
		if end := digits(from); end > from {
			n, k = end, kindFloat
		}
	}
	l.emit(k, strings.ReplaceAll(rest[:n], "_", ""))
	l.advance(n)
}

func (l *lexer) behindPoint() bool { return len(l.tokens) > 0 && l.tokens[len(l.tokens)-1].is(".") }

// quoted reads a string literal.
func (l *lexer) quoted(rest string) error {
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case rest[0]:
			text, err := unescape(rest[1:i])
			if err != nil {
				return &Error{l.line, err}
			}
			l.emit(kindString, text)
			l.advance(i + 1)
			return nil
		}
	}
	return faultAt(l.line, "a string is not closed")
}

// escapes maps the letter after a backslash to its character.
var escapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape resolves the escapes of a Python string literal. Those that Python does not know stay as
// they are.
func unescape(s string) (string, error) {
	if !strings.Contains(s, "\\") {
		return s, nil
	}
	var b strings.Builder
	for len(s) > 0 {
		if s[0] != '\\' {
			n := strings.IndexByte(s, '\\')
			if n < 0 {
				n = len(s)
			}
			b.WriteString(s[:n])
			s = s[n:]
			continue
		}
		if text, ok := escapes[s[1]]; ok {
			b.WriteString(text)
			s = s[2:]
			continue
		}
		r, n, err := numbered(s)
		if err != nil {
			return "", err
		}
		if n == 0 {
			b.WriteByte('\\')
			s = s[1:]
			continue
		}
		b.WriteRune(r)
		s = s[n:]
	}
	return b.String(), nil
}

// numbered reads an escape that names a character by its number; n is 0 if it is not one.
func numbered(s string) (r rune, n int, err error) {
	base, first, end := 16, 2, 2+map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[1]]
	switch {
	case s[1] == 'N':
		return 0, 0, fmt.Errorf(`the escape \N is not known; hint: use \u with the number of the character`)
	case s[1] >= '0' && s[1] <= '7':
		base, first, end = 8, 1, 2
		for end < min(len(s), 4) && s[end] >= '0' && s[end] <= '7' {
			end++
		}
	case end == 2:
		return 0, 0, nil
	}
	v, err := strconv.ParseUint(s[first:min(end, len(s))], base, 32)
	if err != nil || end > len(s) || v > unicode.MaxRune || !utf8.ValidRune(rune(v)) {
		return 0, 0, fmt.Errorf("%.12q is not a character escape", s)
	}
	return rune(v), end, nil
}
