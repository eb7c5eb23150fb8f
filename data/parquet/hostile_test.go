package parquet

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// text is a schema of one column, which is never null.
var textOnly = []structure{root(1), leafOf("text", byteArrays, required)}

// listOfTexts is one of lists.
var listOfTexts = []structure{root(1), groupOf("text", optional, 1, 3), groupOf("list", repeated, 1), leafOf("element", byteArrays, optional)}

func zeros(n int) []byte {
	w, _ := zstd.NewWriter(nil)
	return w.EncodeAll(make([]byte, n), nil)
}

// TestBuilt: the writer of these tests writes files that can be read.
func TestBuilt(t *testing.T) {
	two := slices.Concat(plainText("a"), plainText("b"))
	values := slices.Concat(levelsOf(run(1, 0), run(1, 1), run(1, 0)), levelsOf(run(2, 3), run(1, 0)), two)
	pair := func(name string, members int) []structure { // older forms of lists
		s := []structure{root(1), groupOf("m", optional, 1, 3), groupOf(name, repeated, members)}
		for _, name := range []string{"k", "v"}[:members] {
			s = append(s, leafOf(name, byteArrays, required))
		}
		return s
	}
	older := pages{data: page(2, plain, slices.Concat(levelsOf(run(1, 0), run(1, 1)), levelsOf(run(2, 2)), two)), entries: 2}
	for _, test := range []struct {
		data []byte
		want string
	}{
		{file(textOnly, 2, pages{data: page(2, plain, two), entries: 2}), `{"text":"a"} {"text":"b"}`},
		{file(textOnly, 2, pages{data: slices.Concat(dictionary(2, two), page(2, dictionaryIndices, append([]byte{1}, run(2, 1)...))), entries: 2}), `{"text":"b"} {"text":"b"}`},
		{file(listOfTexts, 2, pages{data: page(3, plain, values), entries: 3}), `{"text":["a","b"]} {}`},
		{file([]structure{root(1), leafOf("n", doubles, required)}, 3, pages{data: page(3, plain, []byte("\x00\x00\x00\x00\x00\x00\xf8\x7f\x00\x00\x00\x00\x00\x00\xf0\xff\x00\x00\x00\x00\x00\x00\x00\x40")), entries: 3}),
			`{"n":null} {"n":null} {"n":2.0}`},
		{file(pair("x", 2), 1, older, older), `{"m":[{"k":"a","v":"a"},{"k":"b","v":"b"}]}`},
		{file(pair("x", 1), 1, older), `{"m":["a","b"]}`},
		{file(pair("array", 1), 1, older), `{"m":[{"k":"a"},{"k":"b"}]}`},
		{file(pair("m_tuple", 1), 1, older), `{"m":[{"k":"a"},{"k":"b"}]}`},
		{file([]structure{root(1), groupOf("m", optional, 1, 3), leafOf("array", byteArrays, repeated)}, 1, older), `{"m":["a","b"]}`},
		{file([]structure{root(1), leafOf("m", byteArrays, repeated)}, 2,
			pages{data: page(3, plain, slices.Concat(levelsOf(run(1, 0), run(1, 1), run(1, 0)), levelsOf(run(2, 1), run(1, 0)), two)), entries: 3}), `{"m":["a","b"]} {"m":[]}`},
	} {
		rows, err := all(test.data)
		if got := strings.Join(rows, " "); err != nil || got != test.want {
			t.Errorf("%s, %v, want %s", got, err, test.want)
		}
	}
}

// TestHostile: files that lie about sizes and counts are refused before memory is allocated, and so are small
// ones that stand for large rows.
func TestHostile(t *testing.T) {
	long := strings.Repeat("x", 1000)
	indices := func(n int) []byte { return append([]byte{1}, run(n, 0)...) }
	elements := func(n int, body []byte) []byte {
		return slices.Concat(levelsOf(run(1, 0), run(n-1, 1)), levelsOf(run(n, 3)), body)
	}
	const many = math.MaxInt32
	older := func(text string) pages { // of a list of one text
		return pages{data: page(1, plain, slices.Concat(levelsOf(run(1, 0)), levelsOf(run(1, 2)), plainText(text))), entries: 1}
	}
	deep := []structure{root(1)}
	for range 1000 {
		deep = append(deep, groupOf("g", optional, 1))
	}
	nested := structure{}
	for range 1000 {
		nested = structure{{1, nested}}
	}
	oneRow := func(p pages) []byte { return file(textOnly, 1, p) }
	oneList := func(p pages) []byte { return file(listOfTexts, 1, p) }
	pair := []structure{root(1), groupOf("m", optional, 1, 3), groupOf("list", repeated, 1), groupOf("element", optional, 2), leafOf("k", byteArrays, required), leafOf("v", byteArrays, required)}
	part := func(n int) pages {
		body := slices.Concat(levelsOf(run(1, 0), run(n-1, 1)), levelsOf(run(n, 3)))
		for range n {
			body = append(body, plainText("x")...)
		}
		return pages{data: page(n, plain, body), entries: n}
	}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"empty":               {nil, "not a Parquet file"},
		"text":                {[]byte(strings.Repeat("text ", 20)), "not a Parquet file"},
		"encrypted":           {append(make([]byte, 20), "PARE"...), "encrypted"},
		"footer":              {append(make([]byte, 20), "\xff\xff\xff\x7fPAR1"...), "metadata of"},
		"schema missing":      {finish([]byte(magic), structure{{1, 2}, {3, 0}}), "has no schema"},
		"schema later":        {finish([]byte(magic), structure{{4, []structure{{{3, 1}}}}}), "before the schema"},
		"schema cut":          {finish([]byte(magic), structure{{2, []structure{root(many)}}}), "truncated"},
		"schema too long":     {finish([]byte(magic), structure{{2, []structure{root(0), root(0)}}}), "too many"},
		"deep schema":         {finish([]byte(magic), structure{{2, deep}}), "too deeply"},
		"deep metadata":       {finish([]byte(magic), nested), "too deeply"},
		"schemas":             {finish([]byte(magic), structure{{2, textOnly}, {4, []structure{{{1, []structure{{{3, structure{{5, 1}, {7, 1}, {9, 4}}}}}}, {3, 1}}}}}), "it has 0 rows"},
		"two schemas":         {finish([]byte(magic), structure{{2, textOnly}, {2, textOnly}}), "two schemas"},
		"wide schema":         {finish([]byte(magic), structure{{2, append([]structure{root(1), groupOf("m", optional, maxWanted+1)}, slices.Repeat([]structure{leafOf("k", int32s, optional)}, maxWanted+1)...)}}), "columns to read"},
		"other page cut":      {oneRow(pages{data: pageOf(1, 0, nil, member{7, structure{}}, 0)[:7], entries: 1}), "truncated"},
		"map":                 {file([]structure{root(1), groupOf("m", optional, 1, 1), groupOf("kv", repeated, 1), leafOf("k", byteArrays, required)}, 1, older("x")), "MAP is not supported yet"},
		"elements":            {finish([]byte(magic), structure{{2, make([]structure, maxElements+1)}}), "elements"},
		"groups":              {finish([]byte(magic), structure{{2, []structure{root(0)}}, {4, make([]structure, maxGroups+1)}}), "row groups"},
		"type":                {finish([]byte(magic), structure{{2, []structure{root(1), leafOf("text", 9, required)}}}), "of the type 9"},
		"repetition":          {finish([]byte(magic), structure{{2, []structure{root(1), leafOf("text", byteArrays, 5)}}}), "the unknown repetition 5"},
		"wide":                {finish([]byte(magic), structure{{2, []structure{root(1), {{1, int(fixedArrays)}, {2, math.MaxInt32}, {4, "text"}}}}}), "of the type 7"},
		"rows":                {finish([]byte(magic), structure{{2, []structure{root(0)}}, {3, 5}}), "but its row groups have 0"},
		"place":               {oneRow(pages{data: page(1, plain, plainText("a"))[:0], entries: 1}), "truncated"},
		"codec":               {oneRow(pages{data: page(1, plain, plainText("a")), entries: 1, codec: 77}), "compression codec 77 is unknown"},
		"LZO":                 {oneRow(pages{data: page(1, plain, plainText("a")), entries: 1, codec: 3}), "LZO"},
		"large page":          {oneRow(pages{data: page(1, plain, nil, many), entries: 1, codec: zstandard}), "the pages take more than"},
		"large dictionary":    {oneRow(pages{data: dictionary(1, nil, many), entries: 1, codec: zstandard}), "the pages take more than"},
		"negative page":       {oneRow(pages{data: page(1, plain, nil, -5), entries: 1, codec: zstandard}), "a page of -5"},
		"page of 63 bits":     {oneRow(pages{data: slices.Concat(dictionary(1, plainText("a")), page(1, plain, plainText("a"), math.MaxInt64)), entries: 1}), "entries in 9223372036854775807 bytes"},
		"entries of 63 bits":  {oneRow(pages{data: page(math.MaxInt64, plain, plainText("a")), entries: math.MaxInt64}), "a page declares 9223372036854775807 entries"},
		"chunks":              {finish([]byte(magic), structure{{2, append([]structure{root(64)}, slices.Repeat([]structure{leafOf("k", int32s, optional)}, 64)...)}, {4, slices.Repeat([]structure{{{1, make([]structure, 64)}}}, maxChunks/64+2)}}), "columns to read"},
		"page without bytes":  {oneRow(pages{data: pageOf(dataPage, many, nil, member{5, structure{{1, 1}}}), entries: 1}), "a page of 0 bytes"},
		"bomb":                {oneRow(pages{data: page(1, plain, zeros(100<<20), 1000), entries: 1, codec: zstandard}), "decompressing"},
		"small bomb":          {oneRow(pages{data: page(1, plain, zeros(10), 1000), entries: 1, codec: zstandard}), "a page has 10 bytes, but declares 1000"},
		"long value":          {oneRow(pages{data: page(1, plain, []byte("\xff\xff\xff\x7fx")), entries: 1}), "a value of"},
		"entries":             {oneRow(pages{data: page(many, plain, plainText("a")), entries: 1}), "where only 1 are left"},
		"more entries":        {oneRow(pages{data: page(9, plain, plainText("a")), entries: 9}), "have more"},
		"fewer entries":       {file(textOnly, 2, pages{data: page(1, plain, plainText("a")), entries: 1}), "ends before"},
		"fewer values":        {file(textOnly, many, pages{data: page(many, plain, plainText("a")), entries: many}), "fewer values"},
		"dictionary entries":  {oneRow(pages{data: dictionary(many, plainText("a")), entries: 1}), "a dictionary of"},
		"dictionaries":        {oneRow(pages{data: slices.Concat(dictionary(1, plainText("a")), dictionary(1, plainText("a"))), entries: 1}), "two dictionaries"},
		"no dictionary":       {oneRow(pages{data: page(1, dictionaryIndices, indices(1)), entries: 1}), "of a dictionary of 0"},
		"index":               {oneRow(pages{data: slices.Concat(dictionary(1, plainText("a")), page(1, dictionaryIndices, append([]byte{1}, run(1, 1)...))), entries: 1}), "entry 1 of a dictionary of 1"},
		"index width":         {oneRow(pages{data: slices.Concat(dictionary(1, plainText("a")), page(1, dictionaryIndices, []byte{33, 2, 0})), entries: 1}), "32 bits"},
		"encoding":            {oneRow(pages{data: page(1, deltaPacked, plainText("a")), entries: 1}), "in the encoding 5"},
		"differences":         {oneRow(pages{data: page(1, deltaLengths, []byte{0x80, 0x80, 0x80, 0x80, 8, 1, 1, 1}), entries: 1}), "differences in blocks"},
		"many differences":    {oneRow(pages{data: page(1, deltaLengths, []byte{0x80, 1, 4, 9, 0}), entries: 1}), "9 differences"},
		"negative length":     {oneRow(pages{data: page(1, deltaLengths, []byte{0x80, 1, 4, 1, 1}), entries: 1}), "a value of -1 bytes"},
		"prefix":              {oneRow(pages{data: page(1, deltaStrings, []byte{0x80, 1, 4, 1, 2, 0x80, 1, 4, 1, 0}), entries: 1}), "shares 1 bytes with the previous one, which has 0"},
		"level":               {oneList(pages{data: page(1, plain, slices.Concat(levelsOf(run(1, 0)), levelsOf(run(1, 4)), plainText("a"))), entries: 1}), "a level is 4"},
		"row within a list":   {oneList(pages{data: page(1, plain, slices.Concat(levelsOf(run(1, 1)), levelsOf(run(1, 3)), plainText("a"))), entries: 1}), "begins within"},
		"levels cut":          {oneList(pages{data: page(1, plain, []byte{1, 0, 0}), entries: 1}), "fewer values"},
		"levels too long":     {oneList(pages{data: page(1, plain, []byte{9, 0, 0, 0, 1}), entries: 1}), "9 bytes of levels"},
		"packed levels":       {oneList(pages{data: pageOf(dataPage, 8, make([]byte, 8), member{5, structure{{1, 1}, {2, plain}, {3, 4}, {4, 4}}}), entries: 1}), "BIT_PACKED"},
		"parts disagree":      {file(pair, 1, part(2), part(3)), "do not agree"},
		"endless row":         {oneList(pages{data: page(many, dictionaryIndices, elements(many, indices(many))), entries: many}), "of a dictionary"},
		"row of nulls":        {oneList(pages{data: page(many, plain, slices.Concat(levelsOf(run(1, 0), run(many-1, 1)), levelsOf(run(many, 2)))), entries: many}), "the row has more than"},
		"row from dictionary": {oneList(pages{data: slices.Concat(dictionary(1, plainText(long)), page(many, dictionaryIndices, elements(many, indices(many)))), entries: many}), "the row has more than"},
		"row of escapes":      {oneRow(pages{data: page(1, plain, plainText(strings.Repeat("\x00", bound/3))), entries: 1}), "the row has more than"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := all(test.data)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Count(err.Error(), "hint: ") != 1 {
			t.Errorf("%s: %v; want %q and a hint", name, err, test.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 16*bound+uint64(128*len(test.data)) {
			t.Errorf("%s: %d bytes allocated for a file of %d", name, n, len(test.data))
		}
	}
	nulls := oneList(pages{data: page(many, plain, slices.Concat(levelsOf(run(1, 0), run(many-1, 1)), levelsOf(run(many, 2)))), entries: many})
	r, err := Open(bytes.NewReader(nulls), int64(len(nulls)), 1<<30, "text")
	must(t, errors.Join(err, r.Next()))
	if _, err := r.AppendObject(nil, "text"); err == nil || !strings.Contains(err.Error(), "lists of a row have more than 1048576 elements; hint: ") {
		t.Errorf("a row of nulls: %v", err)
	}
	// A row that is passed over is bounded too.
	nulls = file(listOfTexts, 2, pages{data: page(many, plain, slices.Concat(levelsOf(run(1, 0), run(many-1, 1)), levelsOf(run(many, 2)))), entries: many})
	r, err = Open(bytes.NewReader(nulls), int64(len(nulls)), 1<<30, "text")
	must(t, errors.Join(err, r.Next(), r.Next()))
	if _, err := r.AppendObject(nil, "text"); err == nil || !strings.Contains(err.Error(), "lists of a row have more than 1048576 elements; hint: ") {
		t.Errorf("a row of nulls before: %v", err)
	}
	if _, err := all(oneRow(pages{data: page(1, plain, plainText("a")), entries: 1, codec: 4})); !errors.Is(err, ErrNotSupported) {
		t.Errorf("Brotli: %v", err)
	}
}

// TestCutOff: no beginning of a file is a file.
func TestCutOff(t *testing.T) {
	files, _ := fixtures(t)
	for name, data := range files {
		for n := 0; n < len(data); n += 1 + n/40 {
			if _, err := all(data[:n]); err == nil || strings.Count(err.Error(), "hint: ") != 1 {
				t.Errorf("the first %d bytes of %s: %v", n, name, err)
			}
		}
	}
}

// TestChecksums: where pages have checksums, no changed byte of a value goes unnoticed.
func TestChecksums(t *testing.T) {
	files, _ := fixtures(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"texts-pages", "chats-pages"} {
		data := files[name]
		found := 0
		for range 2000 {
			changed := slices.Clone(data)
			changed[random.IntN(len(data))] ^= byte(1 + random.IntN(255))
			if _, err := all(changed); err != nil && strings.Contains(err.Error(), "checksum") {
				found++
			}
		}
		if found < 200 {
			t.Errorf("%s: %d changes found", name, found)
		}
	}
}

// TestChanged: files with a few changed bytes, most of them in metadata, are read or refused, within the bound.
func TestChanged(t *testing.T) {
	files, _ := fixtures(t)
	refused := 0
	for name, data := range files {
		random := rand.New(rand.NewPCG(3, uint64(len(data))))
		for range 300 {
			changed := slices.Clone(data)
			for range 1 + random.IntN(2) {
				at := random.IntN(len(data))
				if random.IntN(2) == 0 {
					at = len(data) - 1 - random.IntN(min(len(data), 900))
				}
				changed[at] = byte(random.IntN(256))
			}
			_, err := all(changed)
			if err == nil {
				continue
			}
			if refused++; strings.Count(err.Error(), "hint: ") != 1 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d refused", refused)
	}
}

// FuzzReader: no file crashes the reader or takes more memory than it may, and what it returns is JSON.
func FuzzReader(f *testing.F) {
	files, _ := fixtures(f)
	for _, data := range files {
		f.Add(data)
	}
	for _, schema := range [][]structure{textOnly, listOfTexts} {
		f.Add(file(schema, 1, pages{data: page(1, plain, plainText("a")), entries: 1}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := open(data)
		if err != nil {
			return
		}
		names := slices.Compact(slices.Sorted(slices.Values(first.Names())))
		r, err := open(data, names...)
		if err != nil {
			return
		}
		for range 2000 {
			if err := r.Next(); err != nil {
				if err != io.EOF && !strings.Contains(err.Error(), "hint: ") {
					t.Fatal(err)
				}
				return
			}
			row, err := r.AppendObject(nil, names...)
			if r.held > bound {
				t.Fatalf("%d bytes held", r.held)
			}
			if err != nil {
				if !strings.Contains(err.Error(), "hint: ") {
					t.Fatal(err)
				}
				return
			}
			if !json.Valid(row) || len(row) > len(names)*(bound+1000) {
				t.Fatalf("a row of %d bytes: %.200q", len(row), row)
			}
		}
	})
}
