package pool

// pause tells the processor that a loop waits: it saves power and leaves the core to a sibling hyper-thread.
//
//go:noescape
func pause()
