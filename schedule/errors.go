package schedule

import "fmt"

// UsageError reports a request for a schedule that cannot exist.
type UsageError struct {
	What string // the part of the request that is wrong
	Why  string // why it is impossible
	Hint string // what to request instead
}

func (e *UsageError) Error() string {
	return fmt.Sprintf("%s: %s\nhint: %s", e.What, e.Why, e.Hint)
}

// OrderError reports why an order cannot run, and the first rank and unit concerned.
type OrderError struct {
	Rank     int
	Position int    // index into Orders[Rank], or -1 if something is missing
	Unit     string // in the schedule's notation
	Reason   string
	Hint     string
	TooLarge bool // the order can run, but needs more memory than allowed
}

func (e *OrderError) Error() string {
	where := fmt.Sprintf("rank %d", e.Rank)
	if e.Position >= 0 {
		where += fmt.Sprintf(", position %d", e.Position)
	}
	return fmt.Sprintf("%s: %s: %s\nhint: %s", where, e.Unit, e.Reason, e.Hint)
}

// SplitError reports that in every division of layers over stages, a stage does not fit.
type SplitError struct{ Layers, Stages int }

func (e *SplitError) Error() string {
	return fmt.Sprintf("%s on %s: however they are divided, some stage does not fit\nhint: take more stages, or allow more recomputation or offloading",
		plural(e.Layers, "layer"), plural(e.Stages, "stage"))
}
