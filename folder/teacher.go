package folder

import (
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/session"
)

// Teacher says which next tokens a model finds most probable, on Folder.Device in Folder.DType. Close it after use.
type Teacher struct {
	Sequences int // that are computed together
	session   *session.Session
	seq, top  int
	read      []float64 // of each token, top ids or their log-probabilities
}

// OpenTeacher opens one for sequences of seq tokens, which says the top most probable tokens at a temperature. The folder is its own afterwards.
func OpenTeacher(ctx context.Context, f *Folder, seq, top int, temperature float64) (*Teacher, error) {
	asked := *f.Model
	asked.Asked = model.Asked{Top: top, Temperature: temperature}
	f.Model = &asked
	t := &Teacher{Sequences: evalRows, seq: seq, top: top, read: make([]float64, evalRows*seq*top)}
	var err error
	t.session, err = f.Session(ctx, seq, t.Sequences, lower.Eval)
	return t, err
}

// Say writes of each token of at most Sequences rows, of seq+1 tokens each, the ids of the most probable next tokens, in descending order,
// and their log-probabilities, top of both. Of equally probable tokens the one with the lower id comes first.
func (t *Teacher) Say(ctx context.Context, rows [][]int32, ids []int32, logs []float32) error {
	b, n := flatten(rows, t.Sequences, t.session.Graph)
	if _, err := t.session.Step(ctx, 0, b, session.Scalars{Targets: n}); err != nil {
		return err
	}
	said := t.read[:len(rows)*t.seq*t.top] // the rest is of no rows
	if err := t.session.Engine(0).ReadBuffer("said.logs", t.read); err != nil {
		return err
	}
	for i, x := range said {
		if logs[i] = float32(x); i%t.top == 0 && !(x <= 0) {
			return NotFinite(fmt.Errorf("the teacher's logits of token %d of a sequence are not finite", i/t.top%t.seq))
		}
	}
	if err := t.session.Engine(0).ReadBuffer("said.ids", t.read); err != nil {
		return err
	}
	for i, x := range said {
		ids[i] = int32(x)
	}
	return nil
}

// Close frees it.
func (t *Teacher) Close() {
	session.CloseAll(t.session.Devices)
	t.session.Close()
}
