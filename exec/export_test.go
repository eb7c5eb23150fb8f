package exec

// Errs are the errors of the latest step by rank.
func (g *Group) Errs() []error { return g.errs }
