package safetensors

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestMXFP4: all levels with all scales, and random experts, are what transformers decodes, bit for bit. Its
// tensors are transposed: [experts, in, out] from [experts, out, in].
func TestMXFP4(t *testing.T) {
	set, err := OpenIn(filepath.Join(fixtures, "gpt-oss-tiny"), "mxfp4")
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for _, name := range []string{"range", "gate_up_proj", "down_proj"} {
		info, ok := set.Lookup(name)
		if !ok {
			t.Fatalf("there is no %s", name)
		}
		want, got := make([]float32, info.Elements()), make([]float32, info.Elements())
		if err := errors.Join(set.ReadFloat32(name, 0, want), set.ReadMXFP4(name+"_blocks", name+"_scales", 0, got)); err != nil {
			t.Fatal(err)
		}
		ins, outs := info.Shape[1], info.Shape[2]
		for i, x := range got {
			expert, out, in := i/(ins*outs), i/ins%outs, i%ins
			if w := want[(expert*ins+in)*outs+out]; math.Float32bits(x) != math.Float32bits(w) {
				t.Fatalf("%s: number %d of output %d of expert %d is %v, want %v", name, in, out, expert, x, w)
			}
		}
	}
}

// packedSet is a set with one matrix in MXFP4.
func packedSet(t interface{ Fatal(...any) }, blocks, scales []byte) *Set {
	b, all := len(blocks), len(blocks)+len(scales)
	head := fmt.Sprintf(`{"b":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]},"s":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}}`, b, b, all-b, b, all)
	file, err := parse(append(append(withHeader(head, 0), blocks...), scales...))
	if err != nil {
		t.Fatal(err)
	}
	return &Set{files: []*File{file}, tensors: file.Tensors(), where: map[string]*File{"b": file, "s": file}}
}

// TestMXFP4Parts: any whole groups read alone are as in the whole tensor, also where they are more than are
// read at a time; what is not a whole group, or not there, is refused.
func TestMXFP4Parts(t *testing.T) {
	const groups = 3*pieceElements/mxfp4Group/2 + 5
	blocks, scales := make([]byte, groups*16), make([]byte, groups)
	for i := range blocks {
		blocks[i] = byte(i * 37)
	}
	for i := range scales {
		scales[i] = byte(120 + i%9)
	}
	set, whole := packedSet(t, blocks, scales), make([]float32, groups*mxfp4Group)
	if err := set.ReadMXFP4("b", "s", 0, whole); err != nil {
		t.Fatal(err)
	}
	testkit.Check(t, func(t *rapid.T) {
		first := rapid.IntRange(0, groups).Draw(t, "first")
		n := rapid.IntRange(0, groups-first).Draw(t, "n")
		part := make([]float32, n*mxfp4Group)
		if err := set.ReadMXFP4("b", "s", first*mxfp4Group, part); err != nil {
			t.Fatal(err)
		}
		for i, x := range part {
			if x != whole[first*mxfp4Group+i] {
				t.Fatalf("element %d of group %d is %v, want %v", i, first, x, whole[first*mxfp4Group+i])
			}
		}
	})
	for _, c := range []struct{ first, n int }{{16, 32}, {0, 33}, {groups * 32, 32}, {32, groups * 32}, {-32, 32}} {
		if err := set.ReadMXFP4("b", "s", c.first, make([]float32, c.n)); err == nil {
			t.Errorf("%d elements from %d on were read", c.n, c.first)
		}
	}
}

// FuzzMXFP4: from any bytes, all numbers are finite and exact in bf16, or the scale that is too great is named.
func FuzzMXFP4(f *testing.F) {
	f.Add(byte(127), []byte("0123456789abcdef"))
	f.Add(byte(0), []byte("\x00\x11\x88\x99\xff\x7f\xf7\x77abcdefgh"))
	f.Add(byte(253), []byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, scale byte, block []byte) {
		if len(block) < 16 {
			return
		}
		var y [mxfp4Group]float32
		err := packedSet(t, block[:16], []byte{scale}).ReadMXFP4("b", "s", 0, y[:])
		if (err != nil) != (scale > mostScale) || err != nil && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "scale 0")) {
			t.Fatalf("scale %d: %v", scale, err)
		}
		for i, x := range y {
			if bits := math.Float32bits(x); bits&0xffff != 0 || math.IsInf(float64(x), 0) || x != x {
				t.Errorf("element %d of %x with scale %d is %v", i, block, scale, x)
			}
		}
	})
}
