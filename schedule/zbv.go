package schedule
func zeroBubbleV(q Request) (*Schedule, error) { return nil, &UsageError{"x", "y", "z"} }
