package train

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/session"
)

// writePairs writes some lines, and pairs of different lengths, several of which fit into a window of 32 tokens.
func writePairs(t *testing.T, path string, from, to int, lines ...string) {
	t.Helper()
	for k := from; k < to; k++ {
		lines = append(lines, fmt.Sprintf(`{"prompt": "%d", "chosen": "%s", "rejected": "no%s"}`, k, strings.Repeat(" a", k%3), strings.Repeat(" b", k%4)))
	}
	check(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o644))
}

// pairsOf returns the windows' documents and what the reference has of them.
func pairsOf(w data.Windows, windows []int64, known []float32) (documents []data.Stretch, values []float32) {
	for _, i := range windows {
		list := w.Stretches(i)
		documents = append(documents, list...)
		values = append(values, known[2*w.Pairs(i):][:len(list)]...)
	}
	return documents, values
}

// formula returns the loss and the rewards of pairs whose documents are that much likelier than under the reference.
func formula(ratios []float32, beta float64) (loss float64, r folder.Rewards) {
	n := len(ratios) / 2
	for k := range n {
		chosen, rejected := beta*float64(ratios[2*k]), beta*float64(ratios[2*k+1])
		loss += math.Log1p(math.Exp(rejected-chosen)) / float64(n)
		r.Chosen += chosen / float64(n)
		r.Rejected += rejected / float64(n)
		if chosen > rejected {
			r.Accuracy += 1 / float64(n)
		}
	}
	r.Pairs, r.Margin = n, r.Chosen-r.Rejected
	return loss, r
}

// TestRewards: if the reference is what the model has of each document less a known difference, losses and rewards are those of the formula, for
// the pairs of a step and for those held out, however many a window or a batch has, and of whichever source they are.
func TestRewards(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const beta = 0.3
	seed := testkit.Seed(t)
	dir := t.TempDir()
	writePairs(t, dir+"/a.jsonl", 0, 50)
	writePairs(t, dir+"/b.jsonl", 50, 80)
	near := func(what string, loss float64, got *folder.Rewards, ratios []float32) {
		t.Helper()
		want, r := formula(ratios, beta)
		for k, d := range []float64{loss - want, got.Accuracy - r.Accuracy, got.Margin - r.Margin, got.Chosen - r.Chosen, got.Rejected - r.Rejected} {
			if !(math.Abs(d) < 1e-5) {
				t.Errorf("%s: loss %v and %+v, want %v and %+v (%d)", what, loss, *got, want, r, k)
			}
		}
		if got.Pairs != r.Pairs || r.Pairs*2 != len(ratios) {
			t.Errorf("%s: %d pairs, want %d", what, got.Pairs, r.Pairs)
		}
	}
	for _, batch := range []int{1, 3} {
		tr, s := openRun(t, runConfig(t, t.TempDir()), fmt.Sprintf("data=[%s/a.jsonl, {files: %s/b.jsonl, times: 2}]", dir, dir), fmt.Sprint("preference.beta=", beta),
			fmt.Sprint("global_batch=", batch), "validation_fraction=0.3", "eval_batches=100")
		defer tr.Close()
		if got := tr.identity().Documents; got != "pairs (best fit)" {
			t.Errorf("windows are identified as %q", got)
		}
		check(t, tr.refer(t.Context(), nil))
		r := rand.New(rand.NewPCG(seed, 1))
		differences := [][]float32{}
		for _, list := range [][]float32{tr.reference.train, tr.reference.held} {
			d := make([]float32, len(list))
			for k := range d {
				d[k] = float32(r.NormFloat64() * 4)
				list[k] -= d[k]
			}
			differences = append(differences, d)
		}
		loss, err := tr.Validate(t.Context())
		check(t, err)
		if n := s.Held.Pairs(s.Held.Count()); n <= s.Held.Count() || 2*int(n) != len(differences[1]) {
			t.Fatalf("%d pairs in %d windows", n, s.Held.Count())
		}
		near("validation", loss, tr.rewards, differences[1])

		windows, at, before := []int64{}, *tr.sampler, tr.sampler.Cursor()
		for range batch {
			windows = append(windows, at.Window())
			at.Skip(1)
		}
		documents, ratios := pairsOf(s.Train, windows, differences[0])
		m, err := tr.Next(t.Context())
		check(t, err)
		near("a step", m.Loss, m.Rewards, ratios)

		// What is to blame for a number is found in the document that has the token.
		for k, first := range tr.pairs.begins {
			row, seq := first/s.Spec.SequenceLength, s.Spec.SequenceLength
			for _, token := range []int{first % seq, first%seq + int(documents[k].Len()) - 1} {
				text, err := tr.place(&session.Culprit{First: row, Last: row + 1, Token: min(token, seq-1)}, before)
				want := fmt.Sprintf("sequence %d of the %d in the batch, token %d: tokens %d to %d of %s, document %d,", row+1, batch, min(token, seq-1)+1,
					documents[k].First, documents[k].End, s.nameOf(documents[k].Tokens), documents[k].Tokens.Document(documents[k].First)+1)
				if check(t, err); !strings.Contains(text, want) {
					t.Errorf("%s\nwant %s", text, want)
				}
			}
		}
		text, err := tr.place(&session.Culprit{Last: 1, Token: -1}, before)
		want := fmt.Sprintf("in the batch, of %d documents, the first of which is: tokens %d to %d", len(s.Train.Stretches(windows[0])), documents[0].First, documents[0].End)
		if check(t, err); !strings.Contains(text, want) {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
}

// TestReferenceNotFinite: the document whose log-probability is not finite is named. Its pair and another one each fill a window, since
// what is not a number may reach documents before it through attention (0 times NaN).
func TestReferenceNotFinite(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	path := filepath.Join(t.TempDir(), "pairs.jsonl")
	full := strings.Repeat("7", 65)
	writePairs(t, path, 0, 40, `{"prompt": "7", "chosen": "", "rejected": "`+full+`"}`, `{"prompt": "~", "chosen": "", "rejected": "`+full+`"}`)
	tr, s := openRun(t, runConfig(t, t.TempDir()), "data="+path, "preference.beta=0.1")
	defer tr.Close()
	ids := s.Tokenizer.NewEncoder().Encode(nil, []byte("~"))
	embedding, width := make([]float32, s.Graph.Params[0].Elems()), s.Model.Width
	check(t, tr.Session.Read(0, optimizer.Weights, embedding))
	embedding[int(ids[0])*width] = float32(math.NaN())
	check(t, tr.Session.Write(0, optimizer.Weights, embedding))
	var blamed []string // the first of the two that have it
	for _, w := range []data.Windows{s.Train, s.Held} {
		for i := range w.Count() {
			for _, d := range w.Stretches(i) {
				for k := d.First; k < d.End; k++ {
					if data.ID(d.Tokens.At(k)) == ids[0] {
						blamed = append(blamed, fmt.Sprintf("tokens %d to %d of ", d.First, d.End))
					}
				}
			}
		}
	}
	if err := tr.refer(t.Context(), nil); len(blamed) != 2 || err == nil || !strings.Contains(err.Error(), blamed[0]) || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("%v, want %v", err, blamed)
	}
}

// TestReferenceOfOthers: a checkpoint's reference is taken only for as many pairs as it has.
func TestReferenceOfOthers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	path := filepath.Join(t.TempDir(), "pairs.jsonl")
	writePairs(t, path, 0, 40)
	tr, s := openRun(t, runConfig(t, t.TempDir()), "data="+path, "preference.beta=0.1", "max_steps=1")
	var said events
	check(t, tr.Train(t.Context(), &said))
	ck, err := checkpoint.Open(checkpoint.Disk{}, tr.saved)
	check(t, err)
	defer ck.Close()
	var got reference
	check(t, got.load(ck, s))
	if !slices.Equal(got.train, tr.reference.train) || !slices.Equal(got.held, tr.reference.held) || len(got.train) == 0 {
		t.Errorf("%v, want %v", got, tr.reference)
	}
	for _, other := range []Setup{{Spec: s.Spec, Train: s.Held, Held: s.Held}, {Spec: s.Spec, Train: s.Train, Held: s.Train}} {
		if err := got.load(ck, &other); err == nil || !strings.Contains(err.Error(), "resume with the data of the checkpoint") {
			t.Errorf("another corpus: %v", err)
		}
	}
	check(t, tr.Close())
}

// TestAnswerRewards: if the references are what the model has of each document less known differences, the KL, losses and rewards are those
// of the formula, for the answers of a step and for those held out, of whichever source they are.
func TestAnswerRewards(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const beta, good, bad = 0.3, 1.5, 0.5
	seed := testkit.Seed(t)
	dir := t.TempDir()
	for name, n := range map[string]int{"a": 70, "b": 30} {
		var lines []string
		for k := range n {
			lines = append(lines, fmt.Sprintf(`{"prompt": "%s%d", "completion": "%s", "label": %v}`, name, k/2, strings.Repeat(" a", k%4), k%3 == 0))
		}
		check(t, os.WriteFile(dir+"/"+name+".jsonl", []byte(strings.Join(lines, "\n")), 0o644))
	}
	for _, c := range []struct {
		loss  string
		batch int
		shift float64 // of what is known of mismatched documents
	}{{"kto", 3, 1}, {"kto", 2, -9}, {"apo_zero_unpaired", 3, 1}} {
		tr, s := openRun(t, runConfig(t, t.TempDir()), fmt.Sprintf("data=[%s/a.jsonl, {files: %s/b.jsonl, times: 2}]", dir, dir), fmt.Sprint("preference.beta=", beta), "preference.loss="+c.loss,
			fmt.Sprint("preference.desirable_weight=", good), fmt.Sprint("preference.undesirable_weight=", bad), fmt.Sprint("global_batch=", c.batch), "validation_fraction=0.3", "eval_batches=1")
		defer tr.Close()
		check(t, tr.refer(t.Context(), nil))
		r := rand.New(rand.NewPCG(seed, 1))
		var differences [][]float32
		for k, list := range [][]float32{tr.reference.train, tr.reference.mismatched.train, tr.reference.held, tr.reference.mismatched.held} {
			d := make([]float32, len(list))
			for i := range d {
				d[i] = float32(r.NormFloat64()*2 + c.shift*float64(k%2))
				list[i] -= d[i]
			}
			differences = append(differences, d)
		}
		verify := func(what string, w data.Windows, windows []int64, own, mismatched []float32, loss float64, got *folder.Rewards) {
			t.Helper()
			var want folder.Rewards
			var labels []bool
			var ratios []float32
			kl, n := 0.0, 0
			for _, i := range windows {
				first, end := w.Documents(i), w.Documents(i+1)
				labels, ratios = w.Good(labels, i), append(ratios, own[first:end]...)
				for k := first; k < end && c.loss == "kto"; k++ {
					kl += float64(mismatched[k])
				}
				n += int(end - first)
			}
			kl = max(kl/float64(n), 0)
			sum := 0.0
			for k, x := range ratios {
				weight, sign := bad, -1.0
				if labels[k] {
					weight, sign = good, 1
					want.Good++
					want.Chosen += beta * float64(x)
				} else {
					want.Rejected += beta * float64(x)
				}
				sum += weight * (1 - 1/(1+math.Exp(-sign*beta*(float64(x)-kl)))) / float64(n)
			}
			if want.Good == 0 || want.Good == n {
				t.Fatalf("%s: %d of %d answers are good", what, want.Good, n)
			}
			want.Chosen, want.Rejected = want.Chosen/float64(want.Good), want.Rejected/float64(n-want.Good)
			for k, d := range []float64{loss - sum, got.KL - kl, got.Chosen - want.Chosen, got.Rejected - want.Rejected, got.Margin - want.Chosen + want.Rejected} {
				if !(math.Abs(d) < 2e-5) {
					t.Errorf("%v, %s: loss %v and %+v, want %v, KL %v and %+v (%d)", c, what, loss, *got, sum, kl, want, k)
				}
			}
			if got.Answers != n || got.Good != want.Good || got.Pairs != 0 {
				t.Errorf("%v, %s: %+v, want %d answers", c, what, *got, n)
			}
			if positive := kl > 0; positive != (c.loss == "kto" && c.shift > 0) {
				t.Errorf("%v: KL %v", c, kl)
			}
		}
		loss, err := tr.Validate(t.Context())
		check(t, err)
		var held []int64
		for k := range int64(c.batch) {
			held = append(held, k*s.Held.Count()/int64(c.batch))
		}
		verify("validation", s.Held, held, differences[2], differences[3], loss, tr.rewards)
		windows, at := []int64{}, *tr.sampler
		for range c.batch {
			windows = append(windows, at.Window())
			at.Skip(1)
		}
		m, err := tr.Next(t.Context())
		check(t, err)
		verify("a step", s.Train, windows, differences[0], differences[1], m.Loss, m.Rewards)
	}
}
