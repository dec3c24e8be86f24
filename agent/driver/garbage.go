package driver

import (
	"context"
	"time"
)

// Garbage is a resource that a driver made and that nothing needs any more.
type Garbage struct {
	// Kind of resource.
	Kind GarbageKind
	// Name identifies the resource within its Kind; Collect finds it by this name.
	Name string
	// Workload for which it was made; empty for images.
	Workload ID
	// Reason is one short line.
	Reason string
	// Bytes that its removal frees; 0 if unknown.
	Bytes int64
}

// GarbageKind is a kind of leftover.
type GarbageKind string

// The kinds. Only an orphan may hold the last copy of data: it runs or ran as a workload that no
// scheduler ordered. It is removed only at a person's request.
const (
	Orphan    GarbageKind = "orphan"
	Leftover  GarbageKind = "leftover" // of an interrupted replacement
	Project   GarbageKind = "project"  // a Compose project's folder without the project
	Network   GarbageKind = "network"  // of a deleted stack
	ISO       GarbageKind = "iso"      // cloud-init of a deleted virtual machine
	ImageFile GarbageKind = "image"    // pulled by this agent, unused, past the budget
	Record    GarbageKind = "record"   // the agent's own record of a deleted workload
	OldVolume GarbageKind = "volume"   // released, with a policy other than retain
)

// GarbageQuery holds the facts that a driver needs to find garbage.
type GarbageQuery struct {
	// Wanted reports whether a workload is ordered. Busy reports whether a task works on it now:
	// resources of a busy workload are left for the next collection.
	Wanted, Busy func(ID) bool
	// Settled is the least age of garbage. A younger resource may be part of an unfinished operation.
	Settled time.Duration
	// Pulled lists the images that this agent pulled, oldest first. ImageBudget is how many bytes of
	// unused pulled images may stay; a negative budget has no limit.
	Pulled      []PulledImage
	ImageBudget int64
}

// PulledImage is an image that this agent pulled. Other images are never removed.
type PulledImage struct {
	Ref string // or the image id, if a newer image took the name
	At  time.Time
}

// Collector is implemented by drivers that find and remove their garbage. Both methods fail if the
// engine does not answer, because an incomplete list would make live resources look unused.
type Collector interface {
	// Garbage lists garbage and changes nothing.
	Garbage(ctx context.Context, q GarbageQuery) ([]Garbage, error)
	// Collect removes one resource if labels or records still show that it is garbage. Removing an
	// absent resource succeeds.
	Collect(ctx context.Context, g Garbage) error
}
