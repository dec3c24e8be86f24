package driver

import "context"

// Looker is implemented by drivers that can inspect one workload at a lower cost than List.
type Looker interface {
	// Look returns the entry that List would return for id, or nil if there is none.
	Look(ctx context.Context, id ID) (*Observed, error)
}
