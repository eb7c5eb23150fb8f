package simd

// Sets returns the tables that this processor can use, the best first.
func Sets() []*Set { return []*Set{Portable()} }

// Best returns the table for this processor.
func Best() *Set { return Sets()[0] }
