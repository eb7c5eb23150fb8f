package plan

import (
	"reflect"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// harmless are the fields of Model that Fingerprint leaves out, because plans made for other values are good as well.
var harmless = map[string]string{
	"InitStd":     "it only draws the first weights",
	"Sinks":       "all models of a family have them or none",
	"Inside":      "it only says what parameters are called",
	"Indivisible": "it follows from the optimizer, which plans name",
	"Masked":      "zeros that stay are updated where other weights are, in the same memory and time",
	"Kept":        "a plan says which chunks are compact, and its memory is known when it is lowered",
}

// TestFingerprintOfModel: each field of Model, and of what it holds, is part of the fingerprint or named as harmless.
func TestFingerprintOfModel(t *testing.T) {
	m := model.Model{
		Family: family.Named("gpt_oss"), Experts: 4, Active: 2, GateLimit: 7, GateAlpha: 2, RopeScaling: &model.RopeScaling{Attention: 1},
		LoRA: &model.LoRA{Rank: 8, Alpha: 16, Weights: []string{"a"}}, Frozen: []string{"b"},
	}
	fingerprint := func() string { return Fingerprint(&graph.Graph{Model: &m}) }
	before := fingerprint()
	var walk func(v reflect.Value, name string)
	walk = func(v reflect.Value, name string) {
		if harmless[name] != "" {
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					walk(v.Field(i), f.Name)
				}
			}
			return
		case reflect.Pointer:
			switch {
			case v.IsNil():
				t.Fatalf("%s is nil, so that what it points to is not tested; hint: set it above", name)
			case v.Type() != reflect.TypeFor[*model.Family]():
				walk(v.Elem(), name)
				return
			}
		}
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		change(t, v)
		if fingerprint() == before {
			t.Errorf("%s is not in the fingerprint: a plan made for another value would be used; hint: add it to Fingerprint, or name it in harmless", name)
		}
		v.Set(old)
	}
	walk(reflect.ValueOf(&m).Elem(), "Model")
	for name := range harmless {
		if _, ok := reflect.TypeFor[model.Model]().FieldByName(name); !ok {
			t.Errorf("%s is named as harmless, but Model has no such field", name)
		}
	}
}

// change gives a field another value.
func change(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8:
		v.SetUint(v.Uint() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 0.5)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Array:
		change(t, v.Index(0))
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Pointer:
		v.Set(reflect.ValueOf(family.Named("llama")))
	default:
		t.Fatalf("%v: a kind of field that this test cannot change", v.Type())
	}
}
