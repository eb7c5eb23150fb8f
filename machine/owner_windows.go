package machine

// checkOwn accepts every folder: temporary folders are the user's own.
func checkOwn(string) error { return nil }
