package generation

import (
	"context"

	"github.com/athanor-llm/athanor/folder"
)

// single generates one sequence after the other, where layers hand states from token to token, which have no slots.
type single struct{ *folder.Generator }

// ReadPrompts reads the prompt, all but its last token.
func (s single) ReadPrompts(ctx context.Context, list []*folder.Reading) error {
	for _, r := range list {
		last := len(r.Prompt) - 1
		if r.At == last {
			continue
		}
		if r.At == 0 {
			s.Reset()
		}
		if err := s.Extend(ctx, r.Prompt[r.At:last]...); err != nil {
			return err
		}
		r.At = last
	}
	return nil
}

// Accepts reports whether a step takes one more token: it takes one.
func (s single) Accepts(list []folder.Placed, _ int) bool { return len(list) == 0 }

// Step reads a token.
func (s single) Step(ctx context.Context, list []folder.Placed) error {
	if list[0].Position == 0 {
		s.Reset()
	}
	return s.Extend(ctx, list[0].Token)
}

// Logits returns those that follow the token. They may be changed.
func (s single) Logits(int) []float64 { return s.Generator.Logits() }
