package driver

import (
	"context"
	"time"
)

// Garbage is one thing that a driver made and nobody needs any more.
type Garbage struct {
	// Kind of thing.
	Kind GarbageKind
	// Name for people, and, with Kind, what Collect finds it by.
	Name string
	// Workload that it was made for; empty for images.
	Workload ID
	// Reason is one short line.
	Reason string
	// Bytes that its removal frees, where that is known.
	Bytes int64
}

// GarbageKind is a kind of leftover.
type GarbageKind string

// The kinds. Only an orphan may be the last copy of something: it runs, or ran, as a workload that
// nobody ordered, and is removed only when a person asks for it.
const (
	Orphan    GarbageKind = "orphan"
	Leftover  GarbageKind = "leftover" // of a replacement that was cut short
	Project   GarbageKind = "project"  // a Compose project's folder without the project
	Network   GarbageKind = "network"  // of a stack that is gone
	ISO       GarbageKind = "iso"      // cloud-init of a virtual machine that is gone
	ImageFile GarbageKind = "image"    // pulled by this agent, unused, past the budget
	Record    GarbageKind = "record"   // the agent's own, about what is gone
	OldVolume GarbageKind = "volume"   // released, and not to be retained
)

// GarbageQuery is what a driver must know to tell garbage.
type GarbageQuery struct {
	// Wanted says whether a workload is ordered, Busy whether it is being worked on just now: what
	// belongs to a busy one is left for the next time.
	Wanted, Busy func(ID) bool
	// Settled is how old a thing is before it can be garbage: a younger one may be part of something
	// that is not finished.
	Settled time.Duration
	// Pulled are the images that this agent pulled, oldest first; ImageBudget is how many bytes of
	// them may lie unused, negative for any number.
	Pulled      []PulledImage
	ImageBudget int64
}

// PulledImage is an image that this agent pulled: no other is ever removed.
type PulledImage struct {
	Ref string // or the id of one that lost its name to a newer one
	At  time.Time
}

// Collector is a driver that finds and removes its leftovers. Both refuse when the engine does not
// answer: an engine in trouble shows less than there is.
type Collector interface {
	// Garbage looks and changes nothing.
	Garbage(ctx context.Context, q GarbageQuery) ([]Garbage, error)
	// Collect removes one of them if it still is what Garbage saw, by labels or records of ours.
	// Removing what is absent succeeds.
	Collect(ctx context.Context, g Garbage) error
}
