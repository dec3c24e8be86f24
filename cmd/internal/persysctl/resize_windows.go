package persysctl

import "context"

// resized returns nil, a channel that never receives a value, because Windows has no signal for a change of
// the terminal size.
func resized(context.Context) <-chan struct{} { return nil }
