package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// rawBytes is a tensor whose bytes are in memory.
func rawBytes(name string, d DType, shape []int, data []byte) Tensor {
	return Tensor{Info{name, d, shape}, func(w io.Writer) error { _, err := w.Write(data); return err }}
}

const fixtures = "../../testdata/torch"

// memory is a Source in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

func parse(data []byte) (*File, error) { return NewFile(memory{bytes.NewReader(data)}) }

// withHeader returns a file with the given header and number of data bytes.
func withHeader(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

// stored turns a file into the tensors that would write it again.
func stored(t testing.TB, f interface {
	Tensors() []Info
	ReadBytes(string, int64, []byte) error
}) []Tensor {
	var tensors []Tensor
	for _, info := range f.Tensors() {
		data := make([]byte, info.Bytes())
		if err := f.ReadBytes(info.Name, 0, data); err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, rawBytes(info.Name, info.DType, info.Shape, data))
	}
	return tensors
}

// The reference implementation is the oracle: what it wrote, read and written again, is the same file.
func TestWriteEqualsReferenceImplementation(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(fixtures, "*", "*.safetensors"))
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d fixtures, %v", len(paths), err)
	}
	for _, path := range paths {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var got bytes.Buffer
		if err := Write(&got, f.Metadata, stored(t, f)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s: written again it differs:\n%.300q\n%.300q", path, got.Bytes(), want)
		}
	}
}

// The loss in expected.safetensors is also printed in losses.json.
func TestReadFloat32EqualsPyTorch(t *testing.T) {
	folders, _ := filepath.Glob(filepath.Join(fixtures, "*", "losses.json"))
	for _, path := range folders {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var want struct{ Losses []float64 }
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		f, err := Open(filepath.Join(filepath.Dir(path), "expected.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var loss [1]float32
		if err := f.ReadFloat32("loss", 0, loss[:]); err != nil {
			t.Fatal(err)
		}
		if float64(loss[0]) != want.Losses[0] {
			t.Errorf("%s: %v, want %v", path, loss[0], want.Losses[0])
		}
	}
	if len(folders) == 0 {
		t.Fatal("no fixtures")
	}
}

func drawTensors(t *rapid.T) []Tensor {
	types := []DType{F32, BF16, F16, F64, I64, U8, F8E4M3}
	names := rapid.SliceOfNDistinct(rapid.StringN(0, 12, -1), 0, 12, rapid.ID).Draw(t, "names")
	var tensors []Tensor
	for _, name := range names {
		info := Info{name, rapid.SampledFrom(types).Draw(t, "dtype"), rapid.SliceOfN(rapid.IntRange(0, 5), 0, 4).Draw(t, "shape")}
		n := int(info.Bytes())
		tensors = append(tensors, rawBytes(name, info.DType, info.Shape, rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")))
	}
	return tensors
}

// What is written is read again: names, types, shapes, bytes, over any number of shards.
func TestRoundTrip(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		tensors := drawTensors(t)
		limit := rapid.Int64Range(0, 400).Draw(t, "limit")
		folder := map[string]*bytes.Buffer{}
		create := func(name string) (io.WriteCloser, error) {
			if folder[name] != nil {
				return nil, fs.ErrExist
			}
			folder[name] = &bytes.Buffer{}
			return nopCloser{folder[name]}, nil
		}
		if err := WriteSet(create, "model", limit, map[string]string{"format": "pt"}, tensors); err != nil {
			t.Fatal(err)
		}
		set, err := OpenSet(opener(folder), "model")
		if err != nil {
			t.Fatal(err)
		}
		if len(set.Tensors()) != len(tensors) {
			t.Fatalf("%d tensors of %d", len(set.Tensors()), len(tensors))
		}
		for _, want := range tensors {
			got, ok := set.Lookup(want.Name)
			if !ok || got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) {
				t.Fatalf("%+v, want %+v", got, want.Info)
			}
			var b bytes.Buffer
			if err := want.Data(&b); err != nil {
				t.Fatal(err)
			}
			from := rapid.IntRange(0, b.Len()).Draw(t, "from")
			to := rapid.IntRange(from, b.Len()).Draw(t, "to")
			part := make([]byte, to-from)
			if err := set.ReadBytes(want.Name, int64(from), part); err != nil || !bytes.Equal(part, b.Bytes()[from:to]) {
				t.Fatalf("%q: bytes %d to %d differ (%v)", want.Name, from, to, err)
			}
		}
		for name, file := range folder {
			f, err := parse(file.Bytes())
			if err != nil || limit == 0 || len(f.Tensors()) <= 1 {
				continue // the index, or free to be as large as it is
			}
			sum := int64(0)
			for _, info := range f.Tensors() {
				sum += info.Bytes()
			}
			if sum > limit {
				t.Fatalf("%s holds %d bytes, the limit is %d", name, sum, limit)
			}
		}
	})
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func opener(folder map[string]*bytes.Buffer) func(string) (Source, error) {
	return func(name string) (Source, error) {
		if folder[name] == nil {
			return nil, fs.ErrNotExist
		}
		return memory{bytes.NewReader(folder[name].Bytes())}, nil
	}
}

func TestLies(t *testing.T) {
	good := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}`
	if _, err := parse(withHeader(good, 9)); err != nil {
		t.Fatal(err)
	}
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	cases := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "too short"},
		{"no header", make([]byte, 8), "not a JSON object"},
		{"header longer than the file", withHeader(good, 9)[:40], "is the file truncated?"},
		{"giant header", append(bytes.Repeat([]byte{255}, 8), "{}"...), "the limit is"},
		{"header over the limit", append([]byte{0, 0, 0, 0, 1, 0, 0, 0}, "{}"...), "the limit is"},
		{"data missing", withHeader(good, 8), "is the file truncated?"},
		{"data left over", withHeader(good, 10), "there are 1 bytes after the last tensor"},
		{"array", withHeader(`[]`, 0), "not a JSON object"},
		{"not UTF-8", withHeader("{\"\xff\":{}}", 0), "not UTF-8"},
		{"not JSON", withHeader(`{"a":`, 0), "EOF"},
		{"text after", withHeader(`{} {}`, 0), "after the end"},
		{"duplicate name", withHeader(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), "duplicate"},
		{"duplicate key", withHeader(`{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), "duplicate"},
		{"unknown key", withHeader(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}`, 0), "unknown key"},
		{"missing key", withHeader(`{"a":{"dtype":"U8","shape":[0]}}`, 0), "missing"},
		{"unknown dtype", withHeader(entry("F33", "[1]", "[0,4]"), 4), "unknown dtype"},
		{"pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n"), "a pointer of Git LFS"},
		{"web page", []byte("<!DOCTYPE html><html><body>not found</body></html>"), "a web page"},
		{"pickle", []byte("PK\x03\x04" + strings.Repeat("\x00", 100)), "pickles of PyTorch"},
		{"gguf", []byte("GGUF\x03\x00\x00\x00\x00\x00\x00\x00" + strings.Repeat("\x00", 100)), "a GGUF file"},
		{"shape overflow", withHeader(entry("U8", "[4294967296,4294967296]", "[0,0]"), 0), "overflows"},
		{"shape overflow behind a zero", withHeader(entry("F32", "[4611686018427387904,4,0]", "[0,0]"), 0), "overflows"},
		{"dimension over 63 bits", withHeader(entry("U8", "[9223372036854775808]", "[0,0]"), 0), "not a size"},
		{"negative dimension", withHeader(entry("U8", "[-1,-1]", "[0,1]"), 1), "not a size"},
		{"fraction", withHeader(entry("U8", "[1.0]", "[0,1]"), 1), "not a size"},
		{"nested shape", withHeader(entry("U8", "[[1]]", "[0,1]"), 1), "instead of a number"},
		{"deep nesting", withHeader(`{"a":`+strings.Repeat("[", 1_000_000), 0), "instead of"},
		{"offsets reversed", withHeader(entry("U8", "[0]", "[1,0]"), 1), "not [begin, end]"},
		{"three offsets", withHeader(entry("U8", "[1]", "[0,1,2]"), 1), "not [begin, end]"},
		{"size differs", withHeader(entry("F32", "[2]", "[0,4]"), 4), "4 bytes of data for F32[2]"},
		{"far outside", withHeader(entry("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 4), "overflows"},
		{"outside", withHeader(entry("U8", "[1099511627776]", "[0,1099511627776]"), 4), "is the file truncated?"},
		{"hole at the start", withHeader(entry("U8", "[1]", "[1,2]"), 2), "gap of 1 bytes"},
		{"hole", withHeader(strings.Replace(good, "[8,9]", "[9,10]", 1), 10), "gap of 1 bytes"},
		{"overlap", withHeader(strings.Replace(good, "[8,9]", "[7,8]", 1), 8), "overlaps"},
		{"metadata not strings", withHeader(`{"__metadata__":{"a":1}}`, 0), "instead of a string"},
		{"metadata nested", withHeader(`{"__metadata__":{"a":{}}}`, 0), "instead of a string"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.data)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if len(fmt.Sprint(err)) > 400 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// A short file cannot make the reader allocate the length that it declares.
func TestLiesAllocateLittle(t *testing.T) {
	lies := [][]byte{
		append([]byte{0, 225, 245, 5, 0, 0, 0, 0}, "{}"...), // 100,000,000
		withHeader(`{"a":{"dtype":"F64","shape":[100000000000],"data_offsets":[0,800000000000]}}`, 8),
	}
	for _, data := range lies {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := parse(data); err == nil {
			t.Error("accepted")
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
			t.Errorf("%d bytes allocated for %.20q", got, data)
		}
	}
}

func TestIndexLies(t *testing.T) {
	part := withHeader(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 1)
	cases := []struct{ index, want string }{
		{``, "EOF"},
		{`{}`, "there is no weight_map"},
		{`{"weight_map":{"a":"part","a":"part"}}`, "duplicate"},
		{`{"weight_map":{"a":1}}`, "instead of a string"},
		{`{"weight_map":{"c":"part"}}`, "1 tensors of the index are not in part"},
		{`{"weight_map":{"a":"../part"}}`, "same folder"},
		{`{"weight_map":{"a":"/part"}}`, "same folder"},
		{`{"weight_map":{"a":""}}`, "same folder"},
		{`{"weight_map":{"a":"broken"}}`, "too short"},
		{`{"weight_map":{}} x`, "text after"},
	}
	for _, c := range cases {
		_, err := OpenSet(opener(map[string]*bytes.Buffer{
			"model.safetensors.index.json": bytes.NewBufferString(c.index),
			"part":                         bytes.NewBuffer(part),
			"broken":                       bytes.NewBufferString("x"),
		}), "model")
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: got %v, want %q", c.index, err, c.want)
		}
	}
	set, err := OpenSet(opener(map[string]*bytes.Buffer{
		"model.safetensors.index.json": bytes.NewBufferString(`{"metadata":{"total_size":1e99},"weight_map":{"a":"part"}}`),
		"part":                         bytes.NewBuffer(part),
	}), "model")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := set.Lookup("b"); ok || len(set.Tensors()) != 1 {
		t.Error("a tensor that the index does not name is visible")
	}
	if _, err := OpenSet(opener(nil), "model"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("no files: %v", err)
	}
}

func TestReadOutside(t *testing.T) {
	f, err := parse(withHeader(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}}`, 16))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ first, n int }{{-1, 1}, {0, 3}, {2, 1}, {3, 0}, {math.MaxInt, 2}} {
		if err := f.ReadFloat32("a", c.first, make([]float32, c.n)); err == nil {
			t.Errorf("%+v floats read", c)
		}
		if err := f.ReadBytes("a", int64(c.first)*4, make([]byte, c.n*4)); err == nil {
			t.Errorf("%+v bytes read", c)
		}
	}
	if err := f.ReadFloat32("i", 0, make([]float32, 1)); err == nil || !strings.Contains(err.Error(), "I64") {
		t.Errorf("integers as floats: %v", err)
	}
	if err := f.ReadFloat32("x", 0, nil); !errors.Is(err, ErrNoTensor) {
		t.Errorf("unknown name: %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	bytesOf := func(n int) func(io.Writer) error {
		return func(w io.Writer) error { _, err := w.Write(make([]byte, n)); return err }
	}
	cases := []struct {
		tensors []Tensor
		want    string
	}{
		{[]Tensor{{Info{"a", U8, []int{2}}, bytesOf(1)}}, "1 bytes short"},
		{[]Tensor{{Info{"a", U8, []int{2}}, bytesOf(3)}}, "1 bytes more"},
		{[]Tensor{{Info{"a", U8, nil}, bytesOf(1)}, {Info{"a", U8, nil}, bytesOf(1)}}, "duplicate"},
		{[]Tensor{{Info{"__metadata__", U8, nil}, bytesOf(1)}}, "cannot be the name of a tensor"},
		{[]Tensor{{Info{"\xff", U8, nil}, bytesOf(1)}}, "cannot be the name of a tensor"},
		{[]Tensor{{Info{"a", "X", nil}, bytesOf(1)}}, "unknown dtype"},
		{[]Tensor{{Info{"a", U8, []int{-1, -1}}, bytesOf(1)}}, "negative"},
		{[]Tensor{{Info{"a", U8, []int{1 << 40, 1 << 40}}, bytesOf(1)}}, "overflows"},
	}
	for _, c := range cases {
		if err := Write(io.Discard, nil, c.tensors); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add(withHeader(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}`, 9))
	f.Add(withHeader(`{"__metadata__":{"format":"pt"},"x":{"dtype":"BF16","shape":[0,3],"data_offsets":[0,0]}}  `, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v does not say corrupt", err)
			}
			return
		}
		var again bytes.Buffer
		tensors := stored(t, file)
		if err := Write(&again, file.Metadata, tensors); err != nil {
			t.Fatalf("accepted, but not written: %v", err)
		}
		second, err := parse(again.Bytes())
		if err != nil {
			t.Fatalf("written, but not accepted: %v", err)
		}
		sum := int64(0)
		for _, info := range file.Tensors() {
			sum += info.Bytes()
			if other, ok := second.Lookup(info.Name); !ok || other.DType != info.DType || !slices.Equal(other.Shape, info.Shape) {
				t.Errorf("%+v became %+v", info, other)
			}
			if decoder(info.DType) != nil {
				if err := file.ReadFloat32(info.Name, 0, make([]float32, info.Elements())); err != nil {
					t.Error(err)
				}
			}
		}
		if header := int64(binary.LittleEndian.Uint64(data)); sum != int64(len(data))-8-header {
			t.Errorf("the tensors cover %d of %d bytes", sum, int64(len(data))-8-header)
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"a":"model-00001-of-00001.safetensors"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if index, err := parseIndex(text); err == nil && index == nil {
			t.Error("no index and no error")
		}
	})
}
