package planner

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/athanor-llm/athanor/search"
)

// againTime bounds the time of planning again for memory that is not used, before a run's first step.
const againTime = 5 * time.Second

// PlanAgain says what memory of the device that the present plan leaves unused would bring: a plan without the user's
// decisions or, where the user made none, twice the batch. "" means that planning again found nothing that is
// worth changing; known is false if there was not enough time to tell.
func PlanAgain(ctx context.Context, t *Task, now *search.Candidate) (brings string, known bool, err error) {
	var w *supposition
	switch free := t.Spec.WithFreePlan(); {
	case !reflect.DeepEqual(t.Spec.Plan, free.Plan):
		w = &supposition{WhatIf: search.WhatIf{Set: "plan=auto"}, Task: Task{Machine: t.Machine.Suppose(), Graph: t.Graph, Spec: free}}
	case t.mayChange():
		w = t.pull(larger(t.Spec))
	}
	if w == nil {
		return "", true, nil
	}
	within, cancel := context.WithTimeout(ctx, againTime)
	defer cancel()
	if err := w.sketch(within); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return "", false, nil
	} else if err != nil {
		return "", false, err
	}
	const worth = 1.05 // times as many tokens in the same time
	is := t.tokens() / now.Seconds()
	if w.Seconds == 0 || w.TokenRate < worth*is {
		return "", true, nil
	}
	text := fmt.Sprintf("with %s it would be at least %.0f instead of %.0f tokens/s, by the model: %s", w.Set, w.TokenRate, is, w.best.Label)
	if w.Price != "" {
		text += "; other results: " + w.Price
	}
	return text, true, nil
}
