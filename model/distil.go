package model

import "fmt"

// Distil says that a model learns from a teacher beside the text, see package graph. The zero value says that it does not.
type Distil struct {
	Top         int     // of the vocabulary: the teacher's most probable tokens; 0: there is no teacher
	Temperature float64 // that logits are divided by
	Weight      float64 // of what the teacher says; that of the text is 1 - Weight
}

// Asked says that a model is asked, as a teacher, for its most probable tokens, see package graph. The zero value says that it is not.
type Asked struct {
	Top         int     // as in Distil
	Temperature float64 // likewise
}

// MostTop bounds Distil.Top and Asked.Top.
const MostTop = 1024

// CheckDistil returns an error for values out of range.
func CheckDistil(m *Model) error {
	switch d := m.Distil; {
	case d.Top == 0:
		return nil
	case d.Top < 0 || d.Top > min(MostTop, m.Vocab):
		return fmt.Errorf("distill.top is %d; hint: use 1 to %d, usually 16 to 64", d.Top, min(MostTop, m.Vocab))
	case !(d.Temperature > 0 && d.Temperature <= 100):
		return fmt.Errorf("distill.temperature is %v; hint: use a positive number, usually 1 to 4", d.Temperature)
	case !(d.Weight > 0 && d.Weight <= 1):
		return fmt.Errorf("distill.weight is %v; hint: use a number above 0 and at most 1, usually 0.5", d.Weight)
	}
	return nil
}
