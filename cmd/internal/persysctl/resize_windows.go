package persysctl

import "context"

// resized returns nil, a channel on which nothing is sent, because Windows has no signal for a new size of
// the terminal.
func resized(context.Context) <-chan struct{} { return nil }
