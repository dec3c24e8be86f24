package driver

import (
	"context"
	"time"
)

// Garbage is a resource that a driver made and that nothing needs any more.
type Garbage struct {
	Kind GarbageKind
	// Name identifies the resource within its Kind; Collect finds it by this name.
	Name string
	// Workload is the workload for which the resource was made; empty for images.
	Workload ID
	// Reason says in one short line why the resource is garbage.
	Reason string
	// Bytes is the disk space that removing the resource frees; 0 if unknown.
	Bytes int64
}

// GarbageKind is a kind of resource that can become garbage.
type GarbageKind string

// The kinds of garbage. An Orphan is an instance with our labels for which the agent has no order. It may
// hold the only copy of data, so it is removed only if a user asks for it or PERSYS_GC_ORPHANS is set.
const (
	Orphan    GarbageKind = "orphan"
	Leftover  GarbageKind = "leftover" // left by an interrupted replacement of an instance
	Project   GarbageKind = "project"  // the project folder of a Compose stack that no longer exists
	Network   GarbageKind = "network"  // a network of a deleted stack
	ISO       GarbageKind = "iso"      // the cloud-init image of a deleted virtual machine
	ImageFile GarbageKind = "image"    // an unused image beyond the disk budget, pulled by this agent
	Record    GarbageKind = "record"   // the record of a deleted workload or image in the agent's store
	OldVolume GarbageKind = "volume"   // a released volume whose retention policy is not retain
	LeftDisk  GarbageKind = "disk"     // disks that a virtual machine left when it moved to another node
)

// GarbageQuery holds the facts that a driver needs to find garbage.
type GarbageQuery struct {
	// Wanted reports whether the agent has an order for a workload. Busy reports whether an action on the
	// workload is in progress now; resources of a busy workload are left for the next collection.
	Wanted, Busy func(ID) bool
	// Settled is the minimum age at which an unused resource is garbage. A younger unused resource may belong
	// to an operation that has not ended.
	Settled time.Duration
	// LeftFor is how long the disks of a workload that moved to another node stay on this node before they are
	// garbage.
	LeftFor time.Duration
	// Pulled lists the images that this agent pulled, oldest first. ImageBudget is how many bytes of
	// unused pulled images may stay; a negative budget has no limit.
	Pulled      []PulledImage
	ImageBudget int64
}

// PulledImage is an image that this agent pulled. Other images are never removed.
type PulledImage struct {
	Ref string // name of the image, or its id if a newer image took over the name
	At  time.Time
}

// Collector is implemented by drivers that can find and remove garbage. Both methods fail if the engine does
// not answer, because an incomplete list would make live resources look unused.
type Collector interface {
	// Garbage lists garbage and changes nothing.
	Garbage(ctx context.Context, q GarbageQuery) ([]Garbage, error)
	// Collect removes one resource if labels or records still show that it is garbage. Removing an
	// absent resource succeeds.
	Collect(ctx context.Context, g Garbage) error
}
