package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestKeys: every key that is read is listed, once, in sections; and a configuration that
// gives all listed defaults is one that leaves them out.
func TestKeys(t *testing.T) {
	var read []string
	var walk func(prefix string, of reflect.Type)
	walk = func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			key := of.Field(i).Tag.Get("yaml")
			if key == "" || key == "-" {
				continue
			}
			read = append(read, prefix+key)
			if of.Field(i).Type.Kind() == reflect.Struct {
				walk(prefix+key+".", of.Field(i).Type)
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	var listed []string
	var text strings.Builder
	for _, k := range Keys() {
		listed = append(listed, k.Name)
		depth := strings.Count(k.Name, ".")
		text.WriteString(strings.Repeat("  ", depth) + k.Name[strings.LastIndex(k.Name, ".")+1:] + ": " + k.Default + "\n")
		if strings.ContainsAny(k.Help, "\n") || k.Section && k.Help == "" && k.Name != "limits" {
			t.Errorf("of %s is said: %q", k.Name, k.Help)
		}
	}
	if !slices.Equal(listed, read) || len(listed) < 70 {
		t.Errorf("listed are\n%q, read are\n%q", listed, read)
	}
	overrides := strings.Split(strings.TrimSpace(strings.ReplaceAll(good, ": ", "=")), "\n")
	given, err := Parse("keys.yaml", []byte(text.String()), overrides)
	if err != nil {
		t.Fatalf("%v\n%s", err, &text)
	}
	left, err := Parse("good.yaml", []byte(good), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := yaml.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	b, err := yaml.Marshal(left)
	if err != nil || string(a) != string(b) {
		t.Errorf("%v: with all defaults given\n%s\nleft out\n%s", err, a, b)
	}
}
