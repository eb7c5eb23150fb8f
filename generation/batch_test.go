package generation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// opened opens the sample model.
func opened(t *testing.T, dir string, sequences int, dtype graph.DType) *Batch {
	t.Helper()
	f, err := folder.Open(dir)
	check(t, err)
	b, err := Open(t.Context(), f, Options{Context: 120, Sequences: sequences, Device: "cpu", DType: dtype})
	check(t, err)
	t.Cleanup(func() { check(t, errors.Join(b.Close(), f.Close())) })
	return b
}

// answered is what a request got.
type answered struct {
	*Result
	parts string
	err   error
}

// serve serves requests, and returns what each got.
func serve(t *testing.T, b *Batch, list []*Request) []answered {
	t.Helper()
	out, requests := make([]answered, len(list)), make(chan *Request, len(list))
	for i, r := range list {
		check(t, b.Check(r))
		own := *r
		own.Each = func(p Part) { out[i].parts += p.Text }
		own.Done = func(result *Result, err error) { out[i].Result, out[i].err = result, err }
		requests <- &own
	}
	close(requests)
	check(t, b.Run(t.Context(), requests))
	return out
}

// request draws a request.
func request(r *rand.Rand, vocab int) *Request {
	q := &Request{Tokens: 1 + r.IntN(30), Logprobs: -1, Trim: r.IntN(2) == 0}
	for range 1 + r.IntN(80) {
		q.Prompt = append(q.Prompt, int32(r.IntN(vocab)))
	}
	if r.IntN(3) > 0 {
		q.Sampling = Sampling{Temperature: 0.2 + r.Float64(), TopK: r.IntN(3) * 20, TopP: r.Float64(), MinP: 0.1 * r.Float64(), Seed: r.Uint64()}
	}
	if r.IntN(3) == 0 {
		q.Sampling.Repetition, q.Sampling.Presence, q.Sampling.Frequency = 1.2, r.Float64(), r.Float64()
	}
	if r.IntN(3) == 0 {
		q.Stop = []string{"e", "th"}
	}
	if r.IntN(3) == 0 {
		q.Logprobs, q.Echo = r.IntN(4), r.IntN(2) == 0
	}
	return q
}

// TestBatch: the same request gives the same text, tokens and log-probabilities, bit for bit, whatever else is in the batch and
// however many slots there are; and parts make up the text.
func TestBatch(t *testing.T) {
	r := testkit.Rand(t)
	dir := samples.ModelFolder(t)
	for _, dtype := range []graph.DType{graph.F32, graph.BF16} {
		var list []*Request
		for range 40 {
			list = append(list, request(r, 290))
		}
		alone := serve(t, opened(t, dir, 1, dtype), list)
		order := r.Perm(len(list))
		mixed := make([]*Request, len(list))
		for i, k := range order {
			mixed[i] = list[k]
		}
		together := serve(t, opened(t, dir, 7, dtype), mixed)
		for i, k := range order {
			want, got := alone[k], together[i]
			if got.err != nil || got.Text != want.Text || got.Reason != want.Reason || got.Added != want.Added || !slices.EqualFunc(got.Tokens, want.Tokens, sameToken) {
				t.Errorf("%v, request %d, %+v:\n%+v, alone\n%+v", dtype, k, *list[k], got, want)
			}
			if got.parts != got.Text {
				t.Errorf("the parts are %q, the text is %q", got.parts, got.Text)
			}
		}
	}
}

func sameToken(a, b Token) bool {
	return a.ID == b.ID && a.First == b.First && a.Logprob == b.Logprob && slices.Equal(a.Top, b.Top)
}

// TestEnds: a text ends before a stop string, or after as many tokens as were asked for; the tokens of a prompt that are
// reported with it have the log-probabilities that its prefixes give.
func TestEnds(t *testing.T) {
	b := opened(t, samples.ModelFolder(t), 3, graph.F32)
	plain := &Request{Prompt: []int32{5, 6, 7}, Tokens: 40, Logprobs: 2, Echo: true}
	long := serve(t, b, []*Request{plain})[0]
	if long.Reason != Full || long.Added != 40 || len(long.Tokens) != 43 || !long.Tokens[0].First {
		t.Fatalf("%+v", long)
	}
	middle := regexp.MustCompile(`[A-Za-z]{3}`).FindString(long.Text[len(long.Text)/3:]) // characters, which stand for themselves
	if middle == "" {
		t.Fatalf("%q", long.Text)
	}
	short := *plain
	short.Stop = []string{"\x00never", middle}
	got := serve(t, b, []*Request{&short})[0]
	if want, _, _ := strings.Cut(long.Text, middle); got.Text != want || got.Reason != Stopped || got.parts != want {
		t.Errorf("%+v, want %q", got, want)
	}
	scored := &Request{Logprobs: 1, Echo: true}
	for _, token := range long.Tokens[:30] {
		scored.Prompt = append(scored.Prompt, token.ID)
	}
	again := serve(t, b, []*Request{scored})[0]
	if again.Added != 0 || len(again.Tokens) != 30 {
		t.Fatalf("%+v", again)
	}
	for i, token := range again.Tokens {
		if token.Logprob != long.Tokens[i].Logprob || token.Logprob > 0 {
			t.Errorf("token %d: %v, when it was generated %v", i, token.Logprob, long.Tokens[i].Logprob)
		}
	}
}

// TestLeave: a request whose context ends is gone, and the others do not notice.
func TestLeave(t *testing.T) {
	b := opened(t, samples.ModelFolder(t), 2, graph.F32)
	stay := &Request{Prompt: []int32{1, 2, 3}, Tokens: 60, Logprobs: -1}
	want := serve(t, b, []*Request{stay})[0]
	ctx, cancel := context.WithCancel(t.Context())
	requests := make(chan *Request, 3)
	var got, left error
	var text string
	requests <- &Request{Prompt: []int32{9}, Tokens: 100, Logprobs: -1, Context: ctx, Each: func(Part) { cancel() }, Done: func(_ *Result, err error) { left = err }}
	own := *stay
	own.Done = func(r *Result, err error) { text, got = r.Text, err }
	requests <- &own
	close(requests)
	check(t, b.Run(t.Context(), requests))
	if !errors.Is(left, context.Canceled) || got != nil || text != want.Text || len(b.free) != 2 {
		t.Errorf("%v, %v, %q, want %q", left, got, text, want.Text)
	}
}

// TestSampling: tokens are drawn as often as probabilities say, and only those that the filters leave.
func TestSampling(t *testing.T) {
	logits := []float64{math.Log(0.4), math.Log(0.1), math.Log(0.3), math.Log(0.2), math.Inf(-1)}
	for _, c := range []struct {
		s    Sampling
		want []float64
	}{
		{Sampling{Temperature: 1}, []float64{0.4, 0.1, 0.3, 0.2, 0}},
		{Sampling{}, []float64{1, 0, 0, 0, 0}},
		{Sampling{Temperature: 0.5}, []float64{16. / 30, 1. / 30, 9. / 30, 4. / 30, 0}},
		{Sampling{Temperature: 1, TopK: 2}, []float64{4. / 7, 0, 3. / 7, 0, 0}},
		{Sampling{Temperature: 1, TopP: 0.65}, []float64{4. / 7, 0, 3. / 7, 0, 0}},
		{Sampling{Temperature: 1, TopP: 0.75}, []float64{4. / 9, 0, 3. / 9, 2. / 9, 0}},
		{Sampling{Temperature: 1, TopK: 3, TopP: 0.5}, []float64{4. / 7, 0, 3. / 7, 0, 0}},
		{Sampling{Temperature: 1, MinP: 0.45}, []float64{4. / 9, 0, 3. / 9, 2. / 9, 0}},
	} {
		const draws = 20000
		count := make([]float64, len(logits))
		for seed := range uint64(draws) {
			s := c.s
			s.Seed = seed
			count[newChooser(s, nil).choose(slices.Clone(logits))]++
		}
		for i, want := range c.want {
			if got := count[i] / draws; math.Abs(got-want) > 4*math.Sqrt(want*(1-want)/draws) {
				t.Errorf("%+v: token %d in %.3f of the draws, want %.3f", c.s, i, got, want)
			}
		}
	}
}

// TestPenalties: what occurred is less likely, as transformers (repetition) and OpenAI's API (presence, frequency) have it.
func TestPenalties(t *testing.T) {
	c := newChooser(Sampling{Repetition: 2, Presence: 0.25, Frequency: 0.5}, []int32{0, 1})
	c.count[2] = 3
	logits := []float64{4, -4, 8, 1}
	c.penalise(logits)
	if want := []float64{2, -8, 4 - 0.25 - 1.5, 1}; !slices.Equal(logits, want) {
		t.Errorf("%v, want %v", logits, want)
	}
}

// TestText: what could be part of a stop string or of a character is held back, and nothing is lost or said twice; control tokens are left out, but
// end a text if they are stop strings.
func TestText(t *testing.T) {
	for _, c := range []struct {
		stops, tokens []string
		parts         string
	}{
		{nil, []string{"ab", "c"}, "ab|c|"},
		{[]string{"stop"}, []string{"as", "t", "ap", "s", "to", "px"}, "a||stap|||!"},
		{[]string{"b", "ab"}, []string{"xab"}, "x!"},
		{nil, []string{"\xe2\x82", "\xac", "\xff", "\xf0\x9f"}, "|€|\ufffd||"},
		{[]string{"aab"}, []string{"a", "a", "a", "b"}, "||a|!"},
		{[]string{"b</s>", "</s>"}, []string{"a", "\x00<s>", "b", "\x00</s>", "c"}, "a|||b!"}, // control tokens are in no text
	} {
		text, got := newText(c.stops), ""
		for _, token := range c.tokens {
			if control, ok := strings.CutPrefix(token, "\x00"); ok {
				got += text.addControl([]byte(control))
			} else {
				got += text.add([]byte(token))
			}
			if text.ended {
				got += "!"
				break
			}
			got += "|"
		}
		if got != c.parts {
			t.Errorf("%q, stops %q: %q, want %q", c.tokens, c.stops, got, c.parts)
		}
	}
}

// TestReadable: bytes that are no characters are replaced as Python's bytes.decode(errors="replace") does, and Rust's from_utf8_lossy in tokenizers.
func TestReadable(t *testing.T) {
	for text, want := range map[string]string{
		"ab\xe2\x82\xac":            "ab€",
		"\xe2\x82":                  "?",
		"\xf0\x9f\xf0\x9f\x98\x80a": "?😀a",
		"\x80\x80":                  "??",
		"\xe0\x80a":                 "??a",
		"\xf5\xed\xa0\x80":          "????",
		"\xc3(\xf0\x90\x80z":        "?(?z",
	} {
		if got := strings.ReplaceAll(readable([]byte(text)), "\ufffd", "?"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestCheck: what cannot be served is refused, with the reason.
func TestCheck(t *testing.T) {
	b := opened(t, samples.ModelFolder(t), 1, graph.F32)
	ok := Request{Prompt: []int32{1}, Tokens: 1, Logprobs: -1}
	for _, c := range []struct {
		change func(r *Request)
		want   string
	}{
		{func(r *Request) { r.Prompt = nil }, "no tokens"},
		{func(r *Request) { r.Prompt = make([]int32, 121) }, "121 tokens"},
		{func(r *Request) { r.Prompt = []int32{300} }, "vocabulary"},
		{func(r *Request) { r.Prompt = []int32{-1} }, "vocabulary"},
		{func(r *Request) { r.Tokens = 0 }, "max_tokens"},
		{func(r *Request) { r.Stop = []string{""} }, "stop"},
		{func(r *Request) { r.Sampling.Temperature = math.NaN() }, "temperature"},
		{func(r *Request) { r.Sampling.TopP = 1.5 }, "top_p"},
		{func(r *Request) { r.Sampling.TopK = -1 }, "top_k"},
	} {
		r := ok
		c.change(&r)
		if err := b.Check(&r); err == nil || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	check(t, b.Check(&ok))
}
