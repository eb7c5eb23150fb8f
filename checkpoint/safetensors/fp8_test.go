package safetensors

import (
	"errors"
	"math"
	"path/filepath"
	"testing"
)

// TestFP8: matrices in FP8, one of which has all codes that are numbers and one incomplete blocks, are what transformers and DeepSeek's
// definition make of them, bit for bit, as a whole and in parts.
func TestFP8(t *testing.T) {
	set, err := OpenIn(filepath.Join(fixtures, "deepseek3-tiny"), "fp8")
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for _, name := range []string{"whole", "ragged"} {
		info, ok := set.Lookup(name)
		if !ok {
			t.Fatalf("there is no %s", name)
		}
		n := info.Elements()
		want, got := make([]float32, n), make([]float32, n)
		if err := errors.Join(set.ReadFloat32(name, 0, want), set.ReadFP8(name+".weight", name+".weight_scale_inv", 0, got)); err != nil {
			t.Fatal(err)
		}
		part := make([]float32, n/3)
		if err := set.ReadFP8(name+".weight", name+".weight_scale_inv", n/2, part); err != nil {
			t.Fatal(err)
		}
		copy(got[n/2:], part)
		for i, x := range got {
			if math.Float32bits(x) != math.Float32bits(want[i]) {
				t.Fatalf("%s: number %d is %v, want %v", name, i, x, want[i])
			}
		}
	}
	for _, code := range []byte{0x7f, 0xff} {
		if v := fp8Values[code]; v == v {
			t.Errorf("code %#x is %v", code, v)
		}
	}
}

// TestHostileFP8: scales that do not fit, matrices that are not in FP8 or not there, and elements beyond the last are refused.
func TestHostileFP8(t *testing.T) {
	set, err := OpenIn(filepath.Join(fixtures, "deepseek3-tiny"), "fp8")
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for _, c := range []struct {
		weight, scales string
		first, n       int
	}{{"ragged.weight", "whole.weight_scale_inv", 0, 4}, {"ragged.weight", "whole.weight", 0, 4}, {"ragged", "ragged.weight_scale_inv", 0, 4}, {"ragged.weight", "absent", 0, 4},
		{"absent", "ragged.weight_scale_inv", 0, 4}, {"ragged.weight", "ragged.weight_scale_inv", 130*132 - 3, 4}, {"ragged.weight", "ragged.weight_scale_inv", -1, 4}} {
		if err := set.ReadFP8(c.weight, c.scales, c.first, make([]float32, c.n)); err == nil {
			t.Errorf("%+v is read", c)
		}
	}
}
