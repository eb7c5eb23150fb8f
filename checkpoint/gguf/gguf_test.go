package gguf

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

// numbers are those of tools/gguf_fixtures.py.
func numbers() []float32 {
	x := make([]float32, 3*64)
	for i := range x {
		if i/64 == 1 && i%64 >= 32 {
			continue
		}
		x[i] = float32(float64(i*7919%1009-504) / 100)
	}
	return x
}

// TestWrite: a file with every type of value and of tensor has the bytes that the package gguf of ggml-org writes.
func TestWrite(t *testing.T) {
	want, err := os.ReadFile("testdata/small.gguf")
	if err != nil {
		t.Fatal(err)
	}
	x := numbers()
	read := func(x []float32) func() ([]float32, error) { return func() ([]float32, error) { return x, nil } }
	var tensors []Tensor
	for i, kind := range []Type{F32, F16, BF16, Q8, Q5} {
		tensors = append(tensors, Tensor{string(rune('a' + i)), []int{3, 64}, kind, read(x)})
	}
	tensors = append(tensors, Tensor{"norm", []int{5}, F32, read(x[:5])})
	var got bytes.Buffer
	err = Write(&got, []Field{
		{"general.architecture", "llama"}, {"llama.block_count", uint32(2)}, {"llama.rope.freq_base", float32(10000)}, {"tokenizer.ggml.add_bos_token", false},
		{"tokenizer.chat_template", "{{ é }}"}, {"tokenizer.ggml.tokens", []string{"a", "Ġb", ""}}, {"tokenizer.ggml.token_type", []int32{1, 3, 5}},
	}, tensors)
	if err != nil || !bytes.Equal(got.Bytes(), want) {
		for i := range min(got.Len(), len(want)) {
			if got.Bytes()[i] != want[i] {
				t.Fatalf("%v; %d bytes, want %d; the first that differs is number %d", err, got.Len(), len(want), i)
			}
		}
		t.Errorf("%v; %d bytes, want %d", err, got.Len(), len(want))
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestWriteErrors: what does not fit is an error that names the tensor, and so is a full disk.
func TestWriteErrors(t *testing.T) {
	x := func() ([]float32, error) { return make([]float32, 6), nil }
	for want, tensor := range map[string]Tensor{
		"tensor a: rows of 6 numbers are not whole blocks of q8_0": {"a", []int{1, 6}, Q8, x},
		"tensor b: it has 6 numbers, not 8":                        {"b", []int{2, 4}, F32, x},
		"tensor c: gone":                                           {"c", []int{6}, F32, func() ([]float32, error) { return nil, errors.New("gone") }},
	} {
		if err := Write(&bytes.Buffer{}, nil, []Tensor{tensor}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := Write(full{}, []Field{{"a", strings.Repeat("x", 1<<21)}}, nil); err == nil || err.Error() != "no space left" {
		t.Errorf("%v", err)
	}
	if _, err := TypeNamed("q4_k"); err == nil {
		t.Error("an unknown type is accepted")
	}
}
