package schedule

import "fmt"

// UsageError says that a schedule was asked for that cannot exist. It is the user's to correct.
type UsageError struct {
	What string // what was asked
	Why  string // why it cannot be
	Hint string // what to ask instead
}

func (e *UsageError) Error() string {
	return fmt.Sprintf("%s: %s\nhint: %s", e.What, e.Why, e.Hint)
}

// OrderError says what is wrong with a given order: which rank, which unit there, and why it cannot run.
type OrderError struct {
	Rank     int
	Position int    // index into Orders[Rank], or -1 if something is missing
	Unit     string // in the schedule's notation
	Reason   string
	Hint     string
	TooLarge bool // the order is sound, but needs more memory than allowed
}

func (e *OrderError) Error() string {
	where := fmt.Sprintf("rank %d", e.Rank)
	if e.Position >= 0 {
		where += fmt.Sprintf(", position %d", e.Position)
	}
	return fmt.Sprintf("%s: %s: %s\nhint: %s", where, e.Unit, e.Reason, e.Hint)
}

// SplitError says that no division of layers over stages fits.
type SplitError struct{ Layers, Stages int }

func (e *SplitError) Error() string {
	return fmt.Sprintf("%s on %s: in every division some stage does not fit\nhint: take more stages, or allow more recomputation or offloading",
		plural(e.Layers, "layer"), plural(e.Stages, "stage"))
}
