package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// day is the time at which the fixtures were made.
var day = time.Date(2024, 7, 26, 12, 34, 56, 0, time.UTC)

const budget = 1e7

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	must(t, err)
	must(t, json.Unmarshal(text, into))
}

// result is what transformers made of a template: a text, or an error.
type result struct{ Text, Error *string }

// check compares a rendering with transformers'.
func (r result) check(t *testing.T, name string, got Text, err error) {
	t.Helper()
	var raised *RaisedError
	switch {
	case errors.Is(err, ErrBudget):
		t.Errorf("%s: %v", name, err)
	case r.Error == nil && err != nil:
		t.Errorf("%s: %v; want %q", name, err, *r.Text)
	case r.Error != nil && err == nil:
		t.Errorf("%s: %q, want the error %s", name, got, *r.Error)
	case r.Error == nil && got.String() != *r.Text:
		t.Errorf("%s:\ngot  %q\nwant %q", name, got, *r.Text)
	case r.Error != nil && strings.HasPrefix(*r.Error, "TemplateError: ") && (!errors.As(err, &raised) || "TemplateError: "+raised.Message != *r.Error):
		t.Errorf("%s: the error %v, want %s", name, err, *r.Error)
	}
}

// TestTemplates: the templates of well-known models give what transformers makes of them, and errors where it
// gives errors.
func TestTemplates(t *testing.T) {
	var conversations map[string]json.RawMessage
	read(t, "conversations.json", &conversations)
	var want map[string]result
	read(t, "renderings.json", &want)
	if len(want) < 500 {
		t.Fatalf("%d renderings", len(want))
	}
	for key, r := range want {
		part := strings.Split(key, "/")
		source, err := os.ReadFile("testdata/templates/" + part[0])
		must(t, err)
		template, err := Parse(string(source))
		if err != nil {
			t.Fatalf("%s: %v", part[0], err)
		}
		c, err := DecodeJSON(conversations[part[1]])
		must(t, err)
		names := map[string]Value{
			"messages": c, "add_generation_prompt": part[2] == "prompt", "tools": None{}, "documents": None{},
			"bos_token": Own("<s>"), "eos_token": Own("</s>"),
		}
		if whole, ok := c.(*Dict); ok {
			names["messages"], _ = whole.Get("messages")
			names["tools"], _ = whole.Get("tools")
		}
		got, err := template.Render(names, day, budget)
		r.check(t, key, got, err)
	}
}

// TestSnippets: single features give what transformers' renderer gives.
func TestSnippets(t *testing.T) {
	var cases []struct {
		Template  string
		Variables json.RawMessage
		// Refused says why it is an error here, though not there.
		Refused string
		result
	}
	read(t, "snippets.json", &cases)
	for _, c := range cases {
		variables := map[string]Value{}
		if len(c.Variables) > 0 {
			v, err := DecodeJSON(c.Variables)
			must(t, err)
			for i, k := range v.(*Dict).keys {
				variables[k.(Text).String()] = v.(*Dict).values[i]
			}
		}
		var got Text
		template, err := Parse(c.Template)
		if err == nil {
			got, err = template.Render(variables, day, budget)
		}
		if c.Refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.Refused) {
				t.Errorf("%s: %q, %v; want an error with %q", c.Template, got, err, c.Refused)
			}
			continue
		}
		c.check(t, c.Template, got, err)
	}
}

// TestOrigin: whatever a template does to a text, each character keeps its writer.
func TestOrigin(t *testing.T) {
	for template, want := range map[string]string{
		`<a>{{ x }}<b>`:                                     "<a>(  Ab\n)<b>",
		`{{ '<' + x|trim + '>' }}`:                          "<(Ab)>",
		`{{ x|upper }}{{ x.strip().lower() }}`:              "(  AB\nab)",
		`{{ x[2:3] ~ '|' ~ x[::-1] }}`:                      "(A)|(\nbA  )",
		`{{ x.replace('A', '<im>') }}`:                      "(  )<im>(b\n)",
		`{{ x.split('A')|join('+') }}`:                      "(  )+(b\n)",
		`{{ [x]|tojson }}`:                                  `["(  Ab\n)"]`,
		`{{ [x] }}`:                                         `['(  Ab\n)']`,
		`{% set y %}={{ x }}={% endset %}{{ y|trim }}`:      "=(  Ab\n)=",
		`{% macro f(a) %}[{{ a }}]{% endmacro %}{{ f(x) }}`: "[(  Ab\n)]",
		`{% for c in x|trim %}{{ c }}.{% endfor %}`:         "(A).(b).",
		`{{ x|indent(1) }}{{ (x ~ 'z')|indent(1) }}`:        "(  Ab\n  Ab\n) z",
		`{{ d.k }}{% for k in d %}{{ k }}{% endfor %}`:      "(vk)",
	} {
		parsed, err := Parse(template)
		must(t, err)
		d := NewDict()
		must(t, d.put(Foreign("k"), Foreign("v")))
		text, err := parsed.Render(map[string]Value{"x": Foreign("  Ab\n"), "d": d}, day, budget)
		must(t, err)
		bytes, own := text.Split()
		got, at := "", 0
		for _, s := range append(own, Span{len(bytes), len(bytes)}) {
			if s.First > at {
				got += "(" + string(bytes[at:s.First]) + ")"
			}
			got += string(bytes[s.First:s.End])
			at = s.End
		}
		if got != want {
			t.Errorf("%s: %q, want %q", template, got, want)
		}
		if string(bytes) != text.String() || !slices.IsSortedFunc(own, func(a, b Span) int { return a.First - b.First }) {
			t.Errorf("%s: %q in parts, %q whole", template, bytes, text)
		}
	}
}

// TestHostile: what is meant to hang, to fill memory or to exhaust the stack is an error.
func TestHostile(t *testing.T) {
	for name, source := range map[string]string{
		"huge range":     `{% for i in range(1000000000000) %}{% endfor %}`,
		"nested loops":   `{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`,
		"huge text":      `{{ 'x' * 1000000000000 }}`,
		"doubling":       `{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}`,
		"list doubling":  `{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}`,
		"replacing":      `{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x|replace('a', 'aaaaaaaaaa') %}{% endfor %}`,
		"indenting":      `{{ 'a\nb'|indent(1000000000000) }}`,
		"recursion":      `{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
		"two macros":     `{% macro f(x) %}{{ g(x) }}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
		"deep value":     `{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}{{ ns.x == ns.x }}`,
		"deep JSON":      `{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}`,
		"wide value":     `{% set ns = namespace(x=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}`,
		"wide equality":  `{% set ns = namespace(x=[], y=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}`,
		"long search":    `{% set x = 'a' * 1000000 %}{% for i in range(10) %}{{ x.find(x + 'b') }}{{ x.rfind('a' * 500000 + 'b') }}{{ ('a' * 500000 + 'b') in x }}{% endfor %}`,
		"long set":       `{% set x = 'a' * 1000000 %}{% for i in range(10) %}{{ x.strip('b' * 100000)|length }}{% endfor %}`,
		"long keys":      `{% set x = 'a' * 1000000 %}{% set d = {x: 1} %}{% for i in range(1000) %}{{ d[x] }}{{ x in d }}{% endfor %}`,
		"long order":     `{% set x = 'a' * 1000000 %}{{ ([x] * 1000)|sort }}`,
		"many maxima":    `{% set x = range(1000000)|list %}{% for i in range(1000) %}{{ x|max }}{% endfor %}`,
		"many sums":      `{% set x = range(1000000)|list %}{% for i in range(1000) %}{{ x|sum }}{% endfor %}`,
		"power":          `{{ 10 ** 1000000000 }}`,
		"itself":         `{% set ns = namespace() %}{% set ns.me = ns %}{{ ns|tojson }}`,
		"parentheses":    "{{ " + strings.Repeat("(", 1000000),
		"brackets":       "{{ " + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + " }}",
		"nots":           "{{ " + strings.Repeat("not ", 100000) + "1 }}",
		"minuses":        "{{ " + strings.Repeat("-", 100000) + "1 }}",
		"sums":           "{{ 1" + strings.Repeat("+1", 100000) + " }}",
		"choices":        "{{ 1" + strings.Repeat(" if 1 else 1", 100000) + " }}",
		"points":         "{{ x" + strings.Repeat(".x", 100000) + " }}",
		"filters":        "{{ x" + strings.Repeat("|trim", 100000) + " }}",
		"ifs":            strings.Repeat("{% if 1 %}", 300000),
		"one end":        strings.Repeat("{% if 1 %}", 10) + "{% endif %}",
		"no end":         "{{ x",
		"no statement":   "{% bogus %}",
		"string":         "{{ 'x",
		"comment":        "{# ",
		"raw":            "{% raw %} {{ x }}",
		"escape":         `{{ '\ud800' }}`,
		"not UTF-8":      "\xff",
		"stray end":      "a{% endfor %}",
		"break outside":  "{% break %}",
		"break in macro": "{% for i in [1] %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
		"include":        "{% include 'x' %}",
		"assigning":      "{% set true = 1 %}",
		"unknown filter": "{{ x|evil }}",
		"unknown test":   "{{ x is evil }}",
	} {
		template, err := Parse(source)
		if err == nil {
			_, err = template.Render(nil, day, budget/10)
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if len(err.Error()) > 300 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// FuzzTemplate: no source makes parsing or rendering panic or exceed the budget, and a source without a brace
// renders as itself.
func FuzzTemplate(f *testing.F) {
	files, err := os.ReadDir("testdata/templates")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile("testdata/templates/" + file.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source), "x")
	}
	var cases []struct{ Template string }
	text, err := os.ReadFile("testdata/snippets.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add(c.Template, " Content\n")
	}
	f.Fuzz(func(t *testing.T, source, content string) {
		template, err := Parse(source)
		if err != nil {
			return
		}
		turn := NewDict()
		turn.Set("role", Own("user"))
		turn.Set("content", Foreign(content))
		const small = 1e5
		out, err := template.Render(map[string]Value{"messages": &List{Items: []Value{turn}}, "l": &List{}, "s": Foreign(content)}, day, small)
		if len(out) > small {
			t.Errorf("%d characters for a budget of %v", len(out), small)
		}
		if plain := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source); err == nil && !strings.Contains(source, "{") && out.String() != strings.TrimSuffix(plain, "\n") {
			t.Errorf("%q is rendered as %q", source, out)
		}
	})
}

// FuzzJSON: what is decoded and written as JSON is the same value.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, 2.5, -0.0, 1e300, true, null, "x\u0000\n"], "a": {}}`, `"\ud83d\ude80"`, `[[[[]]]]`, `1 2`} {
		f.Add(s)
	}
	template, err := Parse("{{ x|tojson }}")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := DecodeJSON([]byte(s))
		if err != nil {
			return
		}
		out, err := template.Render(map[string]Value{"x": v}, day, 1e6)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeJSON([]byte(out.String()))
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		m := &machine{limits: limits{budget: 1e6}}
		if same, err := m.equal(v, again); err != nil || !same {
			t.Errorf("%s is written as %s: %v", s, out, err)
		}
	})
}
