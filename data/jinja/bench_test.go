package jinja

import (
	"encoding/json"
	"os"
	"testing"
)

// BenchmarkRender renders a conversation of six turns by Llama 3.2's template.
func BenchmarkRender(b *testing.B) {
	source, err := os.ReadFile("testdata/templates/llama3.2.jinja")
	if err != nil {
		b.Fatal(err)
	}
	template, err := Parse(string(source))
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile("testdata/conversations.json")
	if err != nil {
		b.Fatal(err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		b.Fatal(err)
	}
	messages, err := DecodeJSON(all["many"])
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := template.Render(map[string]Value{"messages": messages, "bos_token": Own("<s>"), "tools": None{}}, day, budget); err != nil {
			b.Fatal(err)
		}
	}
}
