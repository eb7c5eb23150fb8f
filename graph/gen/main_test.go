package main

import (
	"bytes"
	"os"
	"testing"
)

// TestCurrent: operands.go is what the table says.
func TestCurrent(t *testing.T) {
	want, err := operands("..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../operands.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("graph/operands.go does not fit the table of operators; hint: go generate ./graph")
	}
}
