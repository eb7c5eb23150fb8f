package folder

import (
	"context"
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/session"
)

// Teacher says which next tokens a model finds most probable, on Folder.Device in Folder.DType. Close it after use.
//
// Known weaknesses: logits of whole sequences come to the host, 12 bytes for each of the vocabulary and token, and one core picks from them.
type Teacher struct {
	Sequences   int // that are computed together
	session     *session.Session
	seq, vocab  int
	top         int
	temperature float64
	logits      []float64
}

// OpenTeacher opens one for sequences of seq tokens, which says the top most probable tokens at a temperature.
func OpenTeacher(ctx context.Context, f *Folder, seq, top int, temperature float64) (*Teacher, error) {
	const room = 256 << 20 // bytes of logits
	t := &Teacher{seq: seq, vocab: f.Model.Vocab, top: top, temperature: temperature}
	t.Sequences = min(max(room/(12*seq*t.vocab), 1), evalRows)
	var err error
	if t.session, err = f.Session(ctx, seq, t.Sequences, lower.Logits); err != nil {
		return nil, err
	}
	t.logits = make([]float64, t.Sequences*seq*t.vocab)
	return t, nil
}

// Say writes of each token of at most Sequences rows, of seq+1 tokens each, the ids of the most probable next tokens, in descending order,
// and their log-probabilities, top of both. Of equally probable tokens the one with the lower id comes first.
func (t *Teacher) Say(ctx context.Context, rows [][]int32, ids []int32, logs []float32) error {
	b, n := flatten(rows, t.Sequences, t.session.Graph)
	if _, err := t.session.Step(ctx, 0, b, session.Scalars{Targets: n}); err != nil {
		return err
	}
	if err := t.session.Engine(0).ReadBuffer("logits", t.logits); err != nil {
		return err
	}
	for n := range len(rows) * t.seq {
		if !topLogs(t.logits[n*t.vocab:][:t.vocab], t.temperature, ids[n*t.top:][:t.top], logs[n*t.top:][:t.top]) {
			return NotFinite(fmt.Errorf("the teacher's logits of token %d of a sequence are not finite", n%t.seq))
		}
	}
	return nil
}

// Close frees it.
func (t *Teacher) Close() {
	session.CloseAll(t.session.Devices)
	t.session.Close()
}

// topLogs picks the largest logits, and reports whether they have probabilities.
func topLogs(logits []float64, temperature float64, ids []int32, logs []float32) bool {
	n := 0
	for id, x := range logits {
		k := n
		for k > 0 && !(logits[ids[k-1]] >= x) {
			k--
		}
		if k == len(ids) {
			continue
		}
		n = min(n+1, len(ids))
		copy(ids[k+1:n], ids[k:n-1])
		ids[k] = int32(id)
	}
	most, sum := logits[ids[0]]/temperature, 0.0
	for _, x := range logits {
		sum += math.Exp(x/temperature - most)
	}
	for k, id := range ids {
		logs[k] = float32(logits[id]/temperature - most - math.Log(sum))
	}
	return sum >= 1 && !math.IsInf(sum, 0)
}
