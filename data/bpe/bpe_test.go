package bpe

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// fixtures are strings and the ids that Hugging Face tokenizers give them
// (testdata/make.py).
type fixtures struct {
	Texts []string             `json:"texts"`
	IDs   map[string][][]int32 `json:"ids"`
}

func readFixtures(t testing.TB) fixtures {
	t.Helper()
	raw, err := os.ReadFile("testdata/ids.json")
	if err != nil {
		t.Fatal(err)
	}
	var f fixtures
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Texts) < 400 || len(f.IDs) != 12 {
		t.Fatalf("ids.json has %d texts for %d tokenizers", len(f.Texts), len(f.IDs))
	}
	return f
}

// fixtureTokenizers are all the tokenizers of ids.json.
func fixtureTokenizers(t testing.TB) map[string]*Tokenizer {
	t.Helper()
	all := map[string]*Tokenizer{"published gpt2": GPT2()}
	for _, name := range []string{"gpt2", "llama3", "qwen2", "digits", "neox", "o200k"} {
		tokenizer, err := Load(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = tokenizer
	}
	return all
}

func TestIDsOfHuggingFace(t *testing.T) {
	f := readFixtures(t)
	for name, tokenizer := range fixtureTokenizers(t) {
		e := tokenizer.NewEncoder()
		for i, text := range f.Texts {
			got := e.Encode(nil, []byte(text))
			if !slices.Equal(got, f.IDs[name][i]) {
				t.Errorf("%s: %q\n got %v\nwant %v", name, text, got, f.IDs[name][i])
			}
		}
	}
}

func TestGPT2Merges(t *testing.T) {
	const want = "80d121a7b35cab0a6344b48302353f3eccdc93b2889e22901b77f783cbc6bb24"
	sum := sha256.Sum256(gpt2Merges)
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("gpt2.merges has sha256 %s, want %s", got, want)
	}
	tokenizer := GPT2()
	if id, ok := tokenizer.EndOfText(); tokenizer.VocabularySize() != 50257 || !ok || id != 50256 {
		t.Errorf("%d tokens, end of text %d", tokenizer.VocabularySize(), id)
	}
}

// anyText draws bytes that look like text, like text with holes, or like noise.
func anyText() *rapid.Generator[[]byte] {
	return rapid.OneOf(
		rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
		rapid.SliceOf(rapid.Byte()),
		rapid.Map(rapid.SliceOf(rapid.SampledFrom([]string{"a", "the", " ", "  ", "\n", "\t", "'s", "'LL", "12", "9", "!", "{\n",
			"\u00e9", "\u0301", "\u65e5", "\u00a0", "\u017f", "\xff", "\xe6\x97", EndOfText, "<|endof", strings.Repeat("ab", 40)})),
			func(parts []string) []byte { return []byte(strings.Join(parts, "")) }),
	)
}

// Decode(Encode(x)) = x for all bytes, and where added tokens have no meaning too.
func TestRoundTrip(t *testing.T) {
	all := fixtureTokenizers(t)
	delete(all, "qwen2") // their normalizer changes text
	delete(all, "neox")
	for name, tokenizer := range all {
		t.Run(name, func(t *testing.T) {
			e := tokenizer.NewEncoder()
			testkit.Check(t, func(t *rapid.T) {
				text := anyText().Draw(t, "text")
				for _, ids := range [][]int32{e.Encode(nil, text), e.EncodeOrdinary(nil, text)} {
					got, err := tokenizer.Decode(ids)
					if err != nil || !bytes.Equal(got, text) {
						t.Fatalf("%q came back as %q: %v", text, got, err)
					}
				}
			})
		})
	}
}

// naive merges one pre-token by the definition: the lowest rank, leftmost, first.
func naive(t *Tokenizer, word []byte) []int32 {
	ids := make([]int32, len(word))
	for i, b := range word {
		ids[i] = t.byteID[b]
	}
	for {
		best, at := len(t.merges), -1
		for i := 0; i+1 < len(ids); i++ {
			for rank, m := range t.merges[:best] {
				if m.Left == ids[i] && m.Right == ids[i+1] {
					best, at = rank, i
				}
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, t.merges[best].ID)
	}
}

// The scan, the heap and the cache agree with the definition.
func TestMergeByDefinition(t *testing.T) {
	tokenizer := fixtureTokenizers(t)["gpt2"]
	e := tokenizer.NewEncoder()
	testkit.Check(t, func(t *rapid.T) {
		word := []byte(rapid.StringMatching(`[ aeinorstlcd]{1,48}`).Draw(t, "word"))
		want := naive(tokenizer, word)
		if got := e.mergeShort(nil, word); !slices.Equal(got, want) {
			t.Fatalf("scan: %q -> %v, want %v", word, got, want)
		}
		if got := e.long.merge(nil, tokenizer, word); !slices.Equal(got, want) {
			t.Fatalf("heap: %q -> %v, want %v", word, got, want)
		}
		padded := append(slices.Clone(word), "xxxxxxxxxxxxxxxxxxxx"...)
		for range 2 { // the second time from the cache, followed by other bytes
			if got := e.word(nil, padded, len(word)); !slices.Equal(got, want) {
				t.Fatalf("cache: %q -> %v, want %v", word, got, want)
			}
			padded = padded[:len(word)]
		}
	})
}

// Text cut at a Boundary has the ids of its pieces.
func TestBoundary(t *testing.T) {
	for name, tokenizer := range fixtureTokenizers(t) {
		t.Run(name, func(t *testing.T) {
			cuts, foreign := 0, 0
			testkit.Check(t, func(t *rapid.T) {
				random := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "Z", " ", "\n", "\n", "\r", "\t", "'", "s", "1", "!", "/", "{",
					"\u00e9", "\u0301", "\u0436", "\u6c34", "\u0436\n\u6c34", "\u3000", "\u00a0", "\u2028", "\u0085", "\u200d", "\ufffd", "\xff", "\xe6\xb0", EndOfText}), 0, 20)
				// A place of each kind is in every text, or few texts might have none.
				text := []byte(strings.Join(slices.Concat(random.Draw(t, "first"), []string{"a\nZ"}, random.Draw(t, "second"), []string{"\u0436\n\u6c34"},
					random.Draw(t, "third")), ""))
				whole := tokenizer.Encode(text)
				for i := range text {
					if at := tokenizer.Cut(text[:i], false); i%4 == len(text)%4 && at > 0 && !slices.Equal(encodeParts(tokenizer, text, at), whole) {
						t.Fatalf("%q, of which %d bytes are known, cut at %d: %v, whole %v", text, i, at, encodeParts(tokenizer, text, at), whole)
					}
					if !tokenizer.Boundary(text, i) {
						continue
					}
					cuts++
					if text[i-1] >= utf8.RuneSelf || text[i] >= utf8.RuneSelf {
						foreign++
					}
					if pieces := encodeParts(tokenizer, text, i); !slices.Equal(pieces, whole) {
						t.Fatalf("%q cut at %d: %v, whole %v", text, i, pieces, whole)
					}
				}
			})
			if cuts == 0 || foreign == 0 {
				t.Errorf("%d boundaries in all texts, %d between letters that are not ASCII", cuts, foreign)
			}
		})
	}
}

// encodeParts returns the ids of a text that is cut at i.
func encodeParts(t *Tokenizer, text []byte, i int) []int32 {
	return append(t.Encode(text[:i]), t.NewEncoder().Continue(nil, text[i:])...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A pre-token of megabytes takes proportional time and bounded memory.
func TestHugeWord(t *testing.T) {
	tokenizer := fixtureTokenizers(t)["gpt2"]
	for _, text := range [][]byte{
		bytes.Repeat([]byte("a"), 1<<20), bytes.Repeat([]byte(" "), 1<<20), bytes.Repeat([]byte("\n"), 1<<20),
		bytes.Repeat([]byte{0xE6}, 1<<20), bytes.Repeat([]byte("<|"), 1<<19), bytes.Repeat([]byte("'"), 1<<20),
	} {
		e := tokenizer.NewEncoder()
		got, err := tokenizer.Decode(e.Encode(nil, text))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("a run of %q does not come back: %v", text[:2], err)
		}
		if cap(e.long.links) > maxWord {
			t.Errorf("%d bytes of a pre-token were merged at once", cap(e.long.links))
		}
	}
}

func TestEncodeAllocatesNothing(t *testing.T) {
	text := []byte(strings.Repeat("func (e *Encoder) Encode(dst []int32, text []byte) []int32 {\n\tfor len(text) > 0 {\n", 50))
	e := GPT2().NewEncoder()
	ids := e.Encode(nil, text)
	if n := testing.AllocsPerRun(10, func() { ids = e.Encode(ids[:0], text) }); n != 0 {
		t.Errorf("%v allocations in a call", n)
	}
}

func BenchmarkEncode(b *testing.B) {
	names, _ := filepath.Glob(os.ExpandEnv("../../*/*.go"))
	var text []byte
	for _, name := range names {
		raw, err := os.ReadFile(name)
		must(b, err)
		text = append(text, raw...)
	}
	for _, name := range []string{"published gpt2", "gpt2", "llama3", "qwen2"} {
		tokenizer := fixtureTokenizers(b)[name]
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			e := tokenizer.NewEncoder()
			var ids []int32
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				ids = e.Encode(ids[:0], text)
			}
		})
	}
}

func ExampleTokenizer_Encode() {
	tokenizer := GPT2()
	ids := tokenizer.Encode([]byte("Hello world"))
	text, _ := tokenizer.Decode(ids)
	fmt.Println(ids, string(text))
	// Output: [15496 995] Hello world
}
