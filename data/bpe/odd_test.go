package bpe

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// TestOddPipelines: settings that are rarely found together give the ids of `tokenizers` 0.23.3: a word that is in the vocabulary both as a
// character and as a byte, marks that are no accents, added tokens that take what belongs to others.
func TestOddPipelines(t *testing.T) {
	vocab := map[string]int{}
	for i, r := range []rune("abcdefghijklmnopqrstuvwxyz /\n<>|।") {
		vocab[string(r)] = i
	}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = len(vocab)
	}
	const strip = `{"type": "StripAccents"}`
	added := func(id int, content, more string) string {
		text, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"id": %d, "content": %s, "special": true%s}`, id, text, more)
	}
	two := func(more, other string) string {
		return added(289, "<u>", `, "normalized": true, `+more) + "," + added(290, other, "")
	}
	for _, c := range []struct {
		whole                   bool
		normalizer, split, more string
		text                    string
		want                    []int32
	}{
		{true, "null", "null", "", "a/\n/ é", []int32{0, 27, 28, 27, 26, 228, 202}},
		{true, "null", `{"type": "WhitespaceSplit"}`, "", "/ \n é a", []int32{27, 228, 202, 0}},
		{true, "null", `{"type": "Digits", "individual_digits": true}`, "", "a1/2", []int32{0, 82, 27, 83}},
		{false, strip, "null", "", "aि\u0301b\u20dd", []int32{0, 1}},
		{false, `{"type": "Sequence", "normalizers": [{"type": "NFD"}, ` + strip + `]}`, "null", "", "éaৌ", []int32{4, 0}},
		{false, "null", "null", two(`"rstrip": true`, " of"), "a<u> of b<u> c of", []int32{0, 289, 290, 26, 1, 289, 2, 290}},
		{false, "null", "null", two(`"lstrip": true`, "of "), "of <u> of  <u>", []int32{290, 289, 26, 290, 289}},
		{false, "null", "null", two(`"single_word": true`, "a<"), "a<u> <u>a <u>", []int32{290, 20, 30, 26, 29, 20, 30, 0, 26, 289}},
	} {
		model, err := json.Marshal(map[string]any{"type": "BPE", "byte_fallback": true, "ignore_merges": c.whole, "vocab": vocab, "merges": []string{}})
		if err != nil {
			t.Fatal(err)
		}
		file := fmt.Sprintf(`{"added_tokens": [%s], "normalizer": %s, "pre_tokenizer": %s, "post_processor": null, "decoder": null, "model": %s}`, c.more, c.normalizer, c.split, model)
		tokenizer, err := Parse([]byte(file), nil)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := tokenizer.Encode([]byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
