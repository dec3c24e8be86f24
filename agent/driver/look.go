package driver

import "context"

// Looker is a Driver that can look at one workload at less cost than at all of them. It is optional.
type Looker interface {
	// Look is what List would tell of one workload now; nil if it would not list it.
	Look(ctx context.Context, id ID) (*Observed, error)
}
