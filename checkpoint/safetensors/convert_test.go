package safetensors

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Reading and writing through a file equals the conversions, across pieces and in parts; F32 skips them.
func TestFloat32ThroughFile(t *testing.T) {
	values := make([]float32, 2*pieceElements+7)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range values {
		values[i] = float32(random.NormFloat64())
	}
	for _, d := range []DType{F32, BF16, F16, F64} {
		var file bytes.Buffer
		if err := Write(&file, nil, []Tensor{Float32s("a", d, []int{len(values)}, values)}); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, len(values)*d.Size())
		encoder(d)(want, values)
		if !bytes.Equal(file.Bytes()[file.Len()-len(want):], want) {
			t.Errorf("%s: written differently", d)
		}
		f, err := parse(file.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][2]int{{0, len(values)}, {5, 6}, {pieceElements - 1, 2*pieceElements + 3}, {7, 7}} {
			got, decoded := make([]float32, part[1]-part[0]), make([]float32, part[1]-part[0])
			if err := f.ReadFloat32("a", part[0], got); err != nil {
				t.Fatal(err)
			}
			decoder(d)(decoded, want[part[0]*d.Size():])
			if !slices.Equal(got, decoded) {
				t.Errorf("%s: elements %v differ", d, part)
			}
		}
	}
	if err := WriteFloat32(io.Discard, I64, values); err == nil {
		t.Error("floats written as I64")
	}
}

// Numbers of bf16, all of them, are written as they are; another is refused, wherever it is and however little it differs.
func TestWriteBF16(t *testing.T) {
	values, want := make([]float32, 1<<16), make([]byte, 2<<16)
	for i := range values {
		values[i] = math.Float32frombits(uint32(i) << 16)
		want[2*i], want[2*i+1] = byte(i), byte(i>>8)
	}
	var got bytes.Buffer
	if err := WriteBF16(&got, values); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("written differently (%v)", err)
	}
	for _, at := range []int{0, pieceElements - 1, pieceElements, len(values) - 1} {
		for bit := range 16 {
			was := values[at]
			values[at] = math.Float32frombits(math.Float32bits(was) | 1<<bit)
			if err := WriteBF16(io.Discard, values); err == nil {
				t.Errorf("bit %d of number %d is lost", bit, at)
			}
			values[at] = was
		}
	}
}

// broken is a file that cannot be read from some byte on.
type broken struct {
	*bytes.Reader
	good int64
}

func (b broken) ReadAt(p []byte, at int64) (int, error) {
	if at+int64(len(p)) > b.good {
		return 0, fmt.Errorf("byte %d is lost", at)
	}
	return b.Reader.ReadAt(p, at)
}

func (broken) Close() error { return nil }

// What several cores read is what one would, and of several errors the first is told.
func TestShares(t *testing.T) {
	values := make([]float32, 2*share+40)
	for i := range values {
		values[i] = float32(i%2048) * (1 + float32(i/share))
	}
	for _, d := range []DType{F32, F16} {
		var file bytes.Buffer
		if err := Write(&file, nil, []Tensor{Float32s("a", d, []int{len(values)}, values)}); err != nil {
			t.Fatal(err)
		}
		want := make([]float32, len(values))
		decoder(d)(want, file.Bytes()[file.Len()-len(values)*d.Size():])
		for _, first := range []int{0, 3, share - 1, 2 * share} {
			f, err := parse(file.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, len(values)-first)
			if err := f.ReadFloat32("a", first, got); err != nil || !slices.Equal(got, want[first:]) {
				t.Errorf("%s from %d on: differs (%v)", d, first, err)
			}
		}
		good := int64(file.Len() - (share/2+40)*d.Size())
		f, err := NewFile(broken{bytes.NewReader(file.Bytes()), good})
		if err != nil {
			t.Fatal(err)
		}
		lost := ""
		for range 3 {
			err := f.ReadFloat32("a", 0, make([]float32, len(values)))
			if err == nil || lost != "" && err.Error() != lost {
				t.Fatalf("%s: %v, before %s", d, err, lost)
			}
			lost = err.Error()
		}
	}
}
