package graph

import (
	"errors"

	"github.com/athanor-llm/athanor/model"
)

// Distillation (Hinton et al., 1503.02531): a model learns from a teacher's probabilities beside the text. Of each token's distribution the
// teacher's K most probable tokens are known, and how probable all others are together: they are one token in the divergence, so that the
// model is told of the mass that is missing, and not to have none. With K the whole vocabulary it is the divergence itself. At a temperature t,
// with p the teacher's probabilities and q = softmax(z/t) the model's,
//
//	loss = (1-w) nll + w t² (sum of p ln(p/q) over the K tokens + p' ln(p'/q')),  p' = 1 - sum of p, q' = 1 - sum of q
//
// and its derivative with respect to z is w t (q - p) for the K tokens and w t q (1 - p'/q') for the others.
//
// What the teacher says is an input like targets, with K columns, so a plan places, copies and prices it. In validations no row has
// any, and the loss is that of the text.

// LeastRest bounds q' from below, since it is divided by: above the rounding of sums of f32.
const LeastRest = 1e-7

// teacherInputs makes the inputs that have what a teacher says.
func teacherInputs(b *builder) {
	if k := b.m.Distil.Top; k > 0 {
		b.g.TeacherIDs = b.value(Value{Name: "teacher.ids", Kind: Input, DType: I32, PerToken: true, Cols: k})
		b.g.TeacherLogs = b.value(Value{Name: "teacher.logs", Kind: Input, DType: F32, PerToken: true, Cols: k})
	}
}

// distil appends the loss to the head's chunks of rows.
func distil(b *builder) {
	g, d := b.g, b.m.Distil
	b.chunk = true
	g.Losses = b.tokens("losses", 1, F32)
	b.node(Distil, Attr{Grad: true, Limit: b.m.LogitCap, Rate: d.Weight, Scale: d.Temperature}, b.all(g.Losses), b.logits(), b.all(g.Targets), b.all(g.Scalars),
		b.all(g.TeacherIDs), b.all(g.TeacherLogs))
	b.node(LossSum, Attr{}, b.all(g.Total), b.all(g.Losses))
	b.chunk = false
}

// sayTop appends what a teacher says to the head's chunks of rows, so that its logits need not leave the device, nor all be there.
func sayTop(b *builder) {
	asked := b.m.Asked
	if asked.Top == 0 {
		return
	}
	b.chunk = true
	b.g.SaidIDs, b.g.SaidLogs = b.tokens("said.ids", asked.Top, I32), b.tokens("said.logs", asked.Top, F32)
	b.node(TopLogs, Attr{Scale: asked.Temperature}, b.all(b.g.SaidIDs), b.all(b.g.SaidLogs), b.logits())
	b.chunk = false
}

// checkDistil returns an error where a teacher's probabilities cannot be used: the logits of a whole vocabulary are needed at once.
func checkDistil(m *model.Model, docs *Documents) error {
	const hint = "; hint: leave distill out"
	switch {
	case m.Distil.Top == 0:
		return nil
	case docs != nil && docs.Preference > 0:
		return errors.New("losses of pairs have no teacher" + hint + ", or preference")
	case model.Classifies(m):
		return errors.New("a head with labels has no teacher" + hint + ", or labels")
	}
	return nil
}
