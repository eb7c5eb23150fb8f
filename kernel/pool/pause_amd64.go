package pool

// pause is a spin-wait hint: it saves power and leaves the core to a sibling hyper-thread.
//
//go:noescape
func pause()
